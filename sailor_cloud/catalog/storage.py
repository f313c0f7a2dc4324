"""Loads the catalog from a pricing folder: the shipped one or a user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sailor_cloud import resources
from sailor_cloud.catalog.account import account_quotas
from sailor_cloud.catalog.account.quotas import QuotaLimit, load_rules
from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.files import snapshot as snapshots
from sailor_cloud.catalog.files.offer_file import OfferBook, offer_files
from sailor_cloud.catalog.files.tables import (
    RowParser,
    Source,
    parse_date,
    price,
    records,
)
from sailor_cloud.catalog.machine_types import load_machine_types
from sailor_cloud.catalog.prices import changes
from sailor_cloud.catalog.prices.interruptions import BANDS, Interruptions, InterruptionTable
from sailor_cloud.catalog.prices.services import ServicePrice, Services
from sailor_cloud.catalog.providers import tables
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Accelerator, GroupLinks, Provider
from sailor_cloud.model.regions import Region, Zone

T = TypeVar("T")

_ZONE = RowParser(Zone, {"name": "zone"})
_SERVICE = RowParser(ServicePrice, usd_per_unit=price)
_GROUP_LINKS = RowParser(GroupLinks)
# For tables that were written before these columns existed.
_ACCELERATOR_DEFAULTS = {"node_links": "", "usable_memory_gib": ""}
_INTERRUPTION_COLUMNS = (
    "provider",
    "region",
    "instance_type",
    "monthly_interruption_frequency",
    "savings_over_on_demand_pct",
    "as_of",
    "source",
)


def load(root: Path | None = None, *, pricing: Path | None = None) -> Catalog:
    """Return the catalog of the shipped data with this user's refreshed prices.

    `root` names another data folder and `pricing` another pricing folder, by default the one from the command line.
    Both disable refreshed prices, and files that `pricing` lacks come from the root. Raises DataError; offers of a
    named folder are checked here, shipped ones on first use.
    """
    pricing = pricing or (resources.folders().pricing if root is None else None)
    home = root or resources.data_root()
    offers = OfferBook.read(offer_files(home, pricing and _existing(pricing)))
    if root is not None or pricing is not None:
        offers.offers_in()
    refreshed = snapshots.latest() if root is None and pricing is None else None
    if refreshed is not None:
        offers = offers.updated_with(refreshed.offers, withdrawn=refreshed.withdrawn)

    files = partial(tables, "pricing", root=home, named=pricing)

    def table(name: str, row: RowParser[T]) -> list[T]:
        return [found for path in files(name) for found in row.all(path)]

    zones = table("zones.csv", _ZONE)
    if refreshed is not None:
        zones += [row for path in refreshed.folder.glob("zones.csv") for row in _ZONE.all(path)]
    return Catalog(
        offers=offers,
        recorded=partial(changes.recorded, files("price_history.csv")),
        accelerators=_accelerators(files),
        zones=zones,
        regions=table("regions.csv", RowParser(Region, {"name": "region"})),
        services=Services(table("services.csv", _SERVICE)),
        interruptions=InterruptionTable(
            row
            for path in files("spot_interruptions.csv")
            for row in records(path, _INTERRUPTION_COLUMNS, _interruptions)
        ),
        sources=table("sources.csv", RowParser(Source)),
        quotas=_quotas(root, pricing),
        machine_types=load_machine_types(root=home, pricing=pricing),
    )


def load_services(*, pricing: Path | None = None) -> Services:
    """Return the prices of disks, addresses and NAT alone, as in `load` but without the offers."""
    named = pricing or resources.folders().pricing
    paths = tables("pricing", "services.csv", root=resources.data_root(), named=named)
    return Services(row for path in paths for row in _SERVICE.all(path))


def _accelerators(files: Callable[[str], Sequence[Path]]) -> list[Accelerator]:
    """Return the accelerators with the links of their groups."""
    groups: dict[str, list[GroupLinks]] = {"": []}
    for path in files("node_links.csv"):
        for row in _GROUP_LINKS.all(path):
            groups.setdefault(row.node_links, []).append(row)

    def linked(name: str) -> tuple[GroupLinks, ...]:
        if name not in groups:
            raise ValueError(f"no links of kind {name!r} in node_links.csv")
        return tuple(groups[name])

    parser = RowParser(Accelerator, node_links=linked)
    return [part for path in files("accelerators.csv") for part in parser.all(path, _ACCELERATOR_DEFAULTS)]


def _quotas(root: Path | None, pricing: Path | None) -> tuple[QuotaLimit, ...]:
    """Return the account's limits: from the pricing folder if named, else this user's unless `root` is given."""
    if pricing is None and root is not None:
        return ()
    path = account_quotas.own_file() if pricing is None else pricing / account_quotas.FILE_NAME
    if not path.is_file():
        return ()
    held, rules = account_quotas.read(path), load_rules(root)
    return account_quotas.limits(held if pricing is not None else account_quotas.known(held, rules), rules)


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; --pricing wants one with files as in pricing/README.md")
    return folder


def _interruptions(
    provider: str, region: str, instance_type: str, band: str, saving_pct: str, as_of: str, source: str
) -> Interruptions:
    low, high = BANDS[band]
    return Interruptions(
        provider=Provider(provider),
        region=region,
        instance_type=instance_type,
        low=low,
        high=high,
        saving=float(saving_pct) / 100 if saving_pct else None,
        as_of=parse_date(as_of),
        source=source,
    )
