"""One refresh: read, check, merge with earlier refreshes, write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog import providers as sold
from sailor_cloud.catalog.catalog import Catalog, did_you_mean
from sailor_cloud.catalog.files import snapshot as snapshots
from sailor_cloud.catalog.files.offer_file import write_offers
from sailor_cloud.catalog.providers.fetched import Fetched, PriceRequest, Progress, Refusal, shapes_of
from sailor_cloud.catalog.refresh import public
from sailor_cloud.catalog.refresh.plausible import known_ranges, plausible_offers
from sailor_cloud.catalog.storage import load
from sailor_cloud.clock import Clock
from sailor_cloud.errors import CredentialsError, DataError, Problem, RequestError
from sailor_cloud.model.job import Cloud
from sailor_cloud.model.offer import Offer, Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """The result of a refresh. `missing` names what could not be read; then the refresh is partial.

    `skipped` says why providers were left out that the caller did not name. `folder` is None if nothing could be read.
    """

    taken_at: datetime
    folder: Path | None
    offers: Mapping[Provider, int]
    refused: Mapping[Refusal, int]
    withdrawn: int
    missing: tuple[str, ...]
    skipped: Mapping[Provider, str] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        return self.folder is not None and not self.missing


def refresh(
    *,
    providers: Sequence[Provider] = (),
    regions: Iterable[str] = (),
    cloud: Cloud | None = None,
    clock: Clock,
    progress: Progress,
    with_public: bool = True,
) -> Refreshed:
    """Read prices of some providers and regions, of all if none is named.

    Without credentials for a provider, its prices come from public catalogs, unless `with_public` is False.

    `cloud` names accounts if the credentials alone do not. Writes a snapshot if anything was read. Raises
    CredentialsError if neither credentials nor public catalogs yield prices of a named provider. Raises RequestError
    for an unknown region or an unusable folder, and DataError if the snapshot can't be written.
    """
    resources.writable_home()
    shipped, current = load(resources.data_root()), load()
    wanted = frozenset(regions)
    now = clock.now()
    fetched: dict[Provider, Fetched] = {}
    skipped: dict[Provider, str] = {}
    tried: dict[Provider, Fetched] = {}
    errors: dict[Provider, CredentialsError] = {}
    for provider, own in _asked(shipped, providers, wanted).items():
        try:
            shapes = shapes_of(shipped.offers(provider=provider))
            request = PriceRequest(regions=wanted & own, known=own, shapes=shapes, cloud=cloud or Cloud(), now=now)
            fetched[provider] = sold.of(provider).prices(request, progress)
        except CredentialsError as error:
            found = None
            if with_public and sold.of(provider).public_prices:
                found = public.fetch(provider, current.offers(provider=provider), wanted & own, now.date(), progress)
            if found is not None and found.offers:
                fetched[provider] = found
                skipped[provider] = f"its own prices ({error}); public catalogs were read instead"
                continue
            if found is not None:
                tried[provider] = found
            errors[provider] = error
            skipped[provider] = str(error) if found is None else _no_prices({provider: found}, errors)
            if provider in providers:
                raise CredentialsError(skipped[provider]) from error
    if not fetched:
        raise CredentialsError(_no_prices(tried, errors) if len(tried) == len(skipped) else "\n".join(skipped.values()))
    with snapshots.exclusive():
        return _finish(shipped, fetched, skipped, now)


def _no_prices(tried: Mapping[Provider, Fetched], errors: Mapping[Provider, CredentialsError]) -> str:
    """Return why neither public catalogs nor the providers themselves gave prices."""
    missing = [fault for found in tried.values() for fault in found.missing]
    silent = {fault: why for found in tried.values() for fault, why in found.unreachable.items()}
    if silent and len(silent) == len(missing):
        hosts: dict[str, dict[str, None]] = {}
        for host, reason in silent.values():
            hosts.setdefault(reason, {})[host] = None
        reasons = "; ".join(f"{' and '.join(names)}: {reason}" for reason, names in hosts.items())
        catalogs = f"the public catalogs can't be reached ({reasons})"
    else:
        catalogs = f"the public catalogs gave no newer prices ({'; '.join(missing) or 'nothing newer'})"
    first, *others = tried
    if others:
        names = " and ".join(tried)
        return f"{catalogs}, and {names} can't be asked: '--provider {first}' says which credentials it needs"
    return f"{catalogs}, and {first} can't be asked: {errors[first]}"


def write_known(folder: Path) -> None:
    """Write the newest known prices as a pricing folder, without doubtful ones. Raises DataError if that fails."""
    known = [offer for offer in load().offers() if offer.listed is None]
    try:
        (folder / "offers").mkdir(parents=True, exist_ok=True)
        for provider in sorted({offer.provider for offer in known}):
            staged = folder / "offers" / f".{provider}.new"
            staged.unlink(missing_ok=True)
            write_offers(staged, (offer for offer in known if offer.provider is provider))
            staged.replace(folder / "offers" / f"{provider}.csv")
    except OSError as error:
        raise DataError(f"can't write prices to {folder}: {error.strerror}") from error


def _asked(shipped: Catalog, providers: Sequence[Provider], regions: frozenset[str]) -> dict[Provider, frozenset[str]]:
    """Return the regions of each provider to read."""
    asked = providers or sold.with_account()
    own = {provider: frozenset(region.name for region in shipped.regions(provider)) for provider in asked}
    known = frozenset().union(*own.values())
    unknown = sorted(regions - known)
    if unknown:
        raise RequestError(
            [
                Problem(
                    path="--region",
                    message=f"{name!r} is no region of {' or '.join(own)}",
                    hint=did_you_mean(name, known),
                )
                for name in unknown
            ]
        )
    return {provider: names for provider, names in own.items() if not regions or regions & names}


def _finish(
    shipped: Catalog, fetched: Mapping[Provider, Fetched], skipped: Mapping[Provider, str], now: datetime
) -> Refreshed:
    current = load()
    previous = snapshots.latest()
    ranges = known_ranges(shipped.offers())
    merged = {} if previous is None else {offer.id: offer for offer in previous.offers}
    counts: dict[Provider, int] = {}
    refused: Counter[Refusal] = Counter()
    zones = {current.zone(name) for name in current.zones()}
    for provider, found in fetched.items():
        kept, faults = plausible_offers(found.offers, current.offers(), ranges)
        refused += found.refused + faults
        counts[provider] = len(kept)
        merged.update((offer.id, offer) for offer in kept)
        zones |= {zone for zone in found.listed if zone.name in {offer.zone for offer in kept}}
    missing = tuple(fault for found in fetched.values() for fault in found.missing)
    before = frozenset() if previous is None else previous.withdrawn
    gone = _withdrawn({offer.id: offer for offer in shipped.offers()} | merged, before, fetched)
    folder = None
    if any(counts.values()):
        folder = snapshots.write(merged.values(), gone, zones, taken_at=now).folder
    return Refreshed(
        taken_at=now,
        folder=folder,
        offers=counts,
        refused=dict(refused),
        withdrawn=len(gone),
        missing=missing,
        skipped=skipped,
    )


def _withdrawn(
    offers: Mapping[str, Offer], before: frozenset[str], fetched: Mapping[Provider, Fetched]
) -> frozenset[str]:
    """Return the ids of offers that their zone does not list, by this refresh, else by the previous one."""
    listed = {zone.name: shapes for found in fetched.values() for zone, shapes in found.listed.items()}
    return frozenset(
        offer.id
        for offer in offers.values()
        if (
            (offer.instance_type, offer.accelerator, offer.accelerator_count) not in listed[offer.zone]
            if offer.zone in listed
            else offer.id in before
        )
    )
