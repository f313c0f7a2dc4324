"""What each provider sells, how it bills, and the sources of its prices and quotas: one folder each, found by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sailor_cloud.model.offer import Market
from sailor_cloud.model.provider import CLUSTERS, Provider, module_of, names

if TYPE_CHECKING:
    from sailor_cloud.catalog.account.quotas import QuotaLimits, QuotaNeed
    from sailor_cloud.catalog.account.reservations import Reservation
    from sailor_cloud.catalog.providers.fetched import Fetched, PriceRequest, Progress
    from sailor_cloud.model.job import Cloud
    from sailor_cloud.model.offer import Offer
    from sailor_cloud.model.regions import Zone


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExample:
    """What differs between beginners' job files; the defaults suit a cloud with A100 and V100.

    `model` is a preset's name; "" writes a small inline model. `account`: a line of the part `cloud` and its comment.
    """

    zones: tuple[str, ...]
    markets: tuple[str, ...] = ("spot", "on-demand")
    accelerators: tuple[tuple[str, int], ...] = (("A100-40", 16), ("V100-16", 16))
    account: tuple[str, str] | None = None
    name: str = "opt-350m"
    model: str = "opt-350m"
    batch: int = 256
    sequence_length: int = 2048
    steps: int = 2000
    precision: str = "fp16"
    goal: str = "maximize-throughput"
    budget_usd: float = 300.0
    deadline: str = "24h"


class CatalogProvider(Protocol):
    """The `PROVIDER` of a package's module `catalog`; subclasses state what differs.

    `startup_s`, `teardown_s`: seconds that a node is paid for before the first and after the last step. Assumptions:
    90 s to boot, 180 s for the driver, 60 s for pip (torch and deepspeed measured at 52 s on 2 cores, 2026-11), 90 s to
    ship, import, check and calibrate.
    `nodes_at_once`, `creation_s`: how many nodes rate limits allow at a time, and how long each batch takes.
    `shared_rate`: all regions share one rate limit.
    `preemptions_per_hour`: preemptions per spot instance and hour if the catalog has no figure.
    `caps_spot_prices`: a request for a spot node can state a highest price, above which the node is preempted.
    `on_this_machine`: nodes are processes of this machine, which need no GPU and reach no other provider's nodes.
    `bills_services`: disks, addresses, gateways, buckets and traffic cost money in addition to instances.
    `may_be_free`: a price of 0 is valid, as for a cluster that charges nobody, and not unknown.
    `publisher`: who bills for it, if that is not the provider's name.
    `public_prices`: public catalogs list it, with `accelerators_apart` from the machines that carry them;
    `price_lists`: it publishes one for each region itself, as AWS does.
    `bucket_scheme`: how URLs of its buckets begin. `nat_free_buckets`: traffic to them bypasses NAT in every region.
    `spans_regions`: nodes in all its regions share one private network.
    `general_curves`: bandwidth curves without a zone also apply to instances with known network limits.
    `reserves`: markets with terms; a run `buys` those of them that the account lacks.
    `has_account`: prices and quotas are read with an account's credentials.
    `data`: a folder in the form of the shipped ones, whose `pricing`, `bandwidth_profiles` and `compute_profiles`
    extend those.
    `example`: what `sailor-cloud init` writes.
    """

    startup_s: float = 420.0
    teardown_s: float = 120.0
    nodes_at_once: int = 10
    creation_s: float = 60.0
    shared_rate: bool = True
    preemptions_per_hour: float
    caps_spot_prices: bool = False
    on_this_machine: bool = False
    bills_services: bool = True
    may_be_free: bool = False
    publisher: str = ""
    public_prices: bool = False
    accelerators_apart: bool = False
    price_lists: bool = False
    bucket_scheme: str | None = None
    nat_free_buckets: bool = False
    spans_regions: bool = False
    general_curves: bool = True
    has_account: bool = False
    reserves: frozenset[Market] = frozenset()
    buys: frozenset[Market] = frozenset()
    data: Path | None = None
    example: JobExample | None = None

    def account_of(self, cloud: Cloud) -> str:
        """Return which of several accounts a job's quotas belong to; "" is the one of the credentials."""
        return ""

    def zone_hint(self, name: str, zones: Iterable[Zone]) -> str:
        """Return a replacement for a zone name outside the provider's `zones`; "" if only guesses can help."""
        return ""

    def prices(self, request: PriceRequest, progress: Progress) -> Fetched:
        """Return today's prices. Raises CredentialsError; `missing` names everything else that can't be read."""
        from sailor_cloud.catalog.providers.fetched import Fetched

        return Fetched()

    def sold(self, offers: Sequence[Offer], cloud: Cloud, missing: list[str]) -> Mapping[str, bool]:
        """Return by id whether the zones of some offers sell their types, without offers whose answer is unknown.

        `missing` names what can't be read. Raises CredentialsError.
        """
        return {}

    def quota_reads(
        self, needs: Sequence[QuotaNeed], cloud: Cloud, missing: list[str]
    ) -> Sequence[tuple[str, Callable[[], QuotaLimits]]]:
        """Return the requests that read an account's quotas, each with its subject. Raises CredentialsError.

        A request adds what can't be read to `missing`.
        """
        return ()

    def reservations(self, regions: Sequence[str], cloud: Cloud, missing: list[str]) -> Sequence[Reservation]:
        """Return the account's current and future reservations in regions. Raises CredentialsError."""
        return ()


def of(provider: Provider) -> CatalogProvider:
    """Return a provider's catalog. Raises ImportError if its package lacks the module."""
    return _loaded(module_of(provider, "catalog"))


def _clouds() -> list[Provider]:
    """Return all except schedulers, whose inventories are slow to import and which have neither account nor example."""
    return [Provider(name) for name in names() if name not in CLUSTERS]


def with_account() -> tuple[Provider, ...]:
    """Return the providers with readable prices and quotas."""
    return tuple(name for name in _clouds() if of(name).has_account)


def with_example() -> tuple[Provider, ...]:
    """Return the providers that `sailor-cloud init` supports, free ones first."""
    found = [name for name in _clouds() if of(name).example is not None]
    return tuple(sorted(found, key=lambda name: of(name).bills_services))


def own_data(kind: str) -> tuple[Path, ...]:
    """Return providers' folders of one kind of data, such as `pricing`."""
    own = [folder for name in names() if (folder := of(Provider(name)).data) is not None]
    return tuple(folder / kind for folder in own if (folder / kind).is_dir())


def tables(kind: str, name: str, *, root: Path, named: Path | None = None) -> list[Path]:
    """Return the files of a table: from the folder that a user names, else the shipped one and providers' files."""
    if named is not None and (named / name).is_file():
        return [named / name]
    return [root / kind / name, *(path for folder in own_data(kind) if (path := folder / name).is_file())]


def of_buckets(scheme: str) -> Provider | None:
    """Return the provider whose bucket URLs start with a scheme."""
    return next((name for name in map(Provider, names()) if of(name).bucket_scheme == scheme), None)


@cache
def _loaded(module: str) -> CatalogProvider:
    provider: CatalogProvider = import_module(module).PROVIDER
    return provider
