"""Loads bandwidth profiles and egress prices: the shipped ones or a user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sailor_cloud import resources
from sailor_cloud.catalog.files.tables import RowParser, optional, parse_date, raw_rows
from sailor_cloud.catalog.providers import tables
from sailor_cloud.model.offer import Provider
from sailor_cloud.network.egress import EgressRow, EgressTable, egress_key
from sailor_cloud.network.estimates import ZoneInfo
from sailor_cloud.network.grouped import Grouped, Row, parsed
from sailor_cloud.network.network import Network
from sailor_cloud.network.records import Curve, InstanceNetwork, RegionPair
from sailor_cloud.units import GB, GBIT_BYTES

T = TypeVar("T")

_curve = RowParser(Curve).of
_egress_row = RowParser(EgressRow).of


def load(root: Path | None = None, *, profiles: Path | None = None, pricing: Path | None = None) -> Network:
    """Return the network of the shipped data, with zones from price refreshes.

    `root` names another data folder, `profiles` and `pricing` folders whose files take precedence; `root` and `pricing`
    disable the refresh. Without a root, the user's folders apply. Raises DataError.
    """
    own = resources.folders() if root is None else resources.DataFolders()
    profiles, pricing = profiles or own.network, pricing or own.pricing
    home = root or resources.data_root()
    bandwidth = partial(tables, "bandwidth_profiles", root=home, named=profiles)
    prices = partial(tables, "pricing", root=home, named=pricing)
    refreshed = resources.refreshed_prices() if root is None and pricing is None else None
    zones = prices("zones.csv") + ([] if refreshed is None else list(refreshed.glob("zones.csv")))
    regions = {(row["provider"], row["region"]): row for row in _read(prices("regions.csv"), dict)}
    pairs, egress = _region_pairs(bandwidth("region_pairs.csv")), _egress_rows(prices("egress.csv"))
    if profiles is not None or pricing is not None:
        # A user's files are checked here, shipped ones on first use.
        for groups in (pairs, egress):
            for key in groups:
                groups[key]
    return Network(
        zones=_read(zones, lambda row: _zone(row, regions[row["provider"], row["region"]])),
        curves=_read(bandwidth("curves.csv"), _curve),
        instances=_read(bandwidth("instances.csv"), _instance),
        region_pairs=pairs,
        egress=EgressTable(egress),
    )


def _read(paths: Iterable[Path], build: Callable[[Row], T]) -> list[T]:
    return [parsed(path, line, row, build) for path in paths for line, row in _rows(path)]


def _region_pairs(paths: Sequence[Path]) -> Grouped[RegionPair]:
    columns = ("src_provider", "src_region", "dst_provider", "dst_region")
    return Grouped(paths, columns, lambda *values: values, _region_pair)


def _egress_rows(paths: Sequence[Path]) -> Grouped[EgressRow]:
    return Grouped(paths, ("provider", "src_scope", "src", "dst_scope", "dst"), egress_key, _egress_row)


def _rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield the lines of a CSV file with their number, values by column. Raises DataError."""
    header, rows = raw_rows(path)
    for line, values in enumerate(rows, start=2):
        if values:
            yield line, dict(zip(header, values, strict=False))


def _zone(row: Row, region: Row) -> ZoneInfo:
    return ZoneInfo(
        name=row["zone"],
        provider=Provider(row["provider"]),
        region=row["region"],
        egress_group=region["egress_group"],
        latitude=optional(region["latitude"]),
        longitude=optional(region["longitude"]),
    )


def _instance(row: Row) -> InstanceNetwork:
    device_link = optional(row["device_link_gb_per_s"])
    return InstanceNetwork(
        provider=Provider(row["provider"]),
        instance_type=row["instance_type"],
        accelerator=row["accelerator"],
        accelerator_count=int(row["accelerator_count"]),
        baseline_bytes_per_s=float(row["baseline_gbit_per_s"]) * GBIT_BYTES,
        device_link=row["device_link"],
        device_link_bytes_per_s=None if device_link is None else device_link * GB,
        source=row["source"],
    )


def _region_pair(row: Row) -> RegionPair:
    rtt_ms = optional(row["rtt_ms"])
    return RegionPair(
        bytes_per_s=float(row["gbit_per_s"]) * GBIT_BYTES,
        rtt_s=None if rtt_ms is None else rtt_ms / 1e3,
        external={"external": True, "internal": False}[row["address"]],
        source=row["source"],
        as_of=parse_date(row["as_of"]),
    )
