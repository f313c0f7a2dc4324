"""Loads bandwidth profiles and egress prices: the shipped ones, or those of folders that a user names."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import cache
from pathlib import Path
from typing import TypeVar

from sailor_cloud import resources
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Confidence, Provider
from sailor_cloud.network.egress import EgressRow, EgressTable, Payer
from sailor_cloud.network.network import Network
from sailor_cloud.network.records import Curve, CurveScope, InstanceNetwork, RegionPair
from sailor_cloud.network.zones import ZoneInfo
from sailor_cloud.units import GB, GBIT_BYTES

T = TypeVar("T")


def load(root: Path | None = None, *, profiles: Path | None = None, pricing: Path | None = None) -> Network:
    """Return the network of the shipped data with the zones that a price refresh has found.

    `root` names another data folder, `profiles` and `pricing` folders whose files stand before those under it; `root`
    and `pricing` leave the refresh out. Raises DataError.
    """
    home = root or resources.data_root()
    bandwidth = [home / "bandwidth_profiles"] if profiles is None else [profiles, home / "bandwidth_profiles"]
    refreshed = resources.refreshed_prices() if root is None else None
    first = pricing or refreshed
    prices = [home / "pricing"] if first is None else [first, home / "pricing"]
    regions = {(row["provider"], row["region"]): row for row in _read(prices, "regions.csv", dict)}
    pairs: dict[tuple[Provider, str, Provider, str], list[RegionPair]] = {}
    for key, pair in _read(bandwidth, "region_pairs.csv", _region_pair):
        pairs.setdefault(key, []).append(pair)
    return Network(
        zones=_read(prices, "zones.csv", lambda row: _zone(row, regions[row["provider"], row["region"]])),
        curves=_read(bandwidth, "curves.csv", _curve),
        instances=_read(bandwidth, "instances.csv", _instance),
        region_pairs=pairs,
        egress=EgressTable(_read(prices, "egress.csv", _egress_row)),
    )


def _read(folders: Sequence[Path], name: str, build: Callable[[dict[str, str]], T]) -> list[T]:
    path = next((folder / name for folder in folders if (folder / name).is_file()), folders[-1] / name)
    return list(_rows(path, build))


def _rows(path: Path, build: Callable[[dict[str, str]], T]) -> Iterator[T]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            for line, row in enumerate(csv.DictReader(file, strict=True), start=2):
                try:
                    yield build(row)
                except KeyError as error:
                    raise DataError(f"{path} line {line}: no column or no such name: {error}") from error
                except (ValueError, TypeError) as error:
                    raise DataError(f"{path} line {line}: {error}") from error
    except FileNotFoundError as error:
        raise DataError(f"{path} is missing; give a folder with the data files or reinstall sailor-cloud") from error
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise DataError(f"{path} can't be read as CSV: {error}") from error


@cache
def _date(text: str) -> date:
    return date.fromisoformat(text)


def _optional(text: str) -> float | None:
    return float(text) if text else None


def _zone(row: dict[str, str], region: dict[str, str]) -> ZoneInfo:
    return ZoneInfo(
        name=row["zone"],
        provider=Provider(row["provider"]),
        region=row["region"],
        egress_group=region["egress_group"],
        latitude=_optional(region["latitude"]),
        longitude=_optional(region["longitude"]),
    )


def _curve(row: dict[str, str]) -> Curve:
    return Curve(
        scope=CurveScope(row["scope"]),
        src_zone=row["src_zone"],
        src_accelerator=row["src_accelerator"],
        dst_zone=row["dst_zone"],
        dst_accelerator=row["dst_accelerator"],
        pairs=int(row["pairs"]),
        a=float(row["a"]),
        b=float(row["b"]),
        c=float(row["c"]),
        min_bytes=float(row["min_bytes"]),
        max_bytes=float(row["max_bytes"]),
        max_bytes_per_s=float(row["max_bytes_per_s"]),
        rtt_ms=_optional(row["rtt_ms"]),
        measured={"yes": True, "no": False}[row["measured"]],
        source=row["source"],
        as_of=_date(row["as_of"]),
    )


def _instance(row: dict[str, str]) -> InstanceNetwork:
    device_link = _optional(row["device_link_gb_per_s"])
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


def _region_pair(row: dict[str, str]) -> tuple[tuple[Provider, str, Provider, str], RegionPair]:
    key = (Provider(row["src_provider"]), row["src_region"], Provider(row["dst_provider"]), row["dst_region"])
    rtt_ms = _optional(row["rtt_ms"])
    return key, RegionPair(
        bytes_per_s=float(row["gbit_per_s"]) * GBIT_BYTES,
        rtt_s=None if rtt_ms is None else rtt_ms / 1e3,
        external={"external": True, "internal": False}[row["address"]],
        source=row["source"],
        as_of=_date(row["as_of"]),
    )


def _egress_row(row: dict[str, str]) -> EgressRow:
    return EgressRow(
        provider=Provider(row["provider"]),
        src_scope=row["src_scope"],
        src=row["src"],
        dst_scope=row["dst_scope"],
        dst=row["dst"],
        payer=Payer(row["payer"]),
        usd_per_unit=float(row["usd_per_unit"]),
        unit=row["unit"],
        tier=row["tier"],
        as_of_from=_date(row["as_of_from"]),
        as_of_to=_date(row["as_of_to"]),
        source=row["source"],
        confidence=Confidence(row["confidence"]),
    )
