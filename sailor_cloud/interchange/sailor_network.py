"""Converts the bandwidth curves and traffic prices of Sailor's artifact to our tables."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

from sailor_cloud.catalog import Catalog
from sailor_cloud.catalog.files.tables import OFFER_COLUMNS, OFFER_DEFAULTS
from sailor_cloud.errors import DataError
from sailor_cloud.interchange.sailor_names import (
    MAX_CURVE_BYTES,
    MIN_CURVE_BYTES,
    USD_PER_DEVICE_HOUR,
    our_accelerator,
)
from sailor_cloud.network.curve_fit import COLUMNS as CURVE_COLUMNS
from sailor_cloud.network.egress import EgressRow

_EGRESS_COLUMNS = tuple(field.name for field in fields(EgressRow))


def write_curves(path: Path, between: dict[str, Any], within: dict[str, Any], *, as_of: str, source: str) -> int:
    """Write the curves of multizone_bandwidths_het.json and intra_node_bandwidths.json; return their number.

    Curves between unequal numbers of devices are left out: they repeat others and were not measured. Within a node of n
    devices, the artifact sends between its halves, hence n / 2 pairs.
    """
    rows: list[list[Any]] = []
    for gpu, by_count in sorted(within.items()):
        name = our_accelerator(gpu)
        for count, curve in sorted(by_count.items()):
            place = ["same-node", "", name, "", name, int(count) // 2]
            rows.append([*place, *_curve(curve, gpu), source, as_of])
    for src_zone, by_gpu in sorted(between.items()):
        for src, by_pairs in sorted(by_gpu.items()):
            for pairs, by_zone in sorted(by_pairs.items()):
                for dst_zone, by_dst in sorted(by_zone.items()):
                    for dst, by_dst_pairs in sorted(by_dst.items()):
                        if pairs not in by_dst_pairs:
                            continue
                        place = ["zones", src_zone, our_accelerator(src), dst_zone, our_accelerator(dst), int(pairs)]
                        rows.append([*place, *_curve(by_dst_pairs[pairs], src), source, as_of])
    _write(path, CURVE_COLUMNS, rows)
    return len(rows)


def write_egress(path: Path, costs: dict[str, dict[str, float]], known: Catalog, *, as_of: str, source: str) -> None:
    """Write the zone-to-zone prices of communication_cost.json.

    Raises DataError for a zone that the catalog lacks. Also raises it if two pairs of zones of the same regions have
    different prices, which our table can't hold.
    """
    prices: dict[tuple[str, ...], float] = {}
    for src, by_zone in sorted(costs.items()):
        for dst, usd in sorted(by_zone.items()):
            key = (known.zone(src).provider, *_scope(src, dst, known))
            if prices.setdefault(key, usd) != usd:
                raise DataError(
                    f"communication_cost.json: {src} to {dst} costs {usd}, another pair like it {prices[key]}; "
                    "prices must be the same for all zones of a region"
                )
    rows = [[*key, "sender", usd, "GB", "all", as_of, as_of, source, "medium"] for key, usd in sorted(prices.items())]
    _write(path, _EGRESS_COLUMNS, rows)


def write_offers(
    path: Path, zones: Iterable[str], nodes: dict[str, Any], known: Catalog, *, as_of: str, source: str
) -> tuple[str, ...]:
    """Write one instance type in every zone per accelerator with a price; return the accelerators without one.

    `nodes` is basic_cluster_config.json. The artifact has no CPUs and memory; they are written as 0. Raises DataError
    for a zone that the catalog lacks.
    """
    rows: list[list[Any]] = []
    unpriced = []
    for gpu, shape in sorted(nodes.items()):
        if not isinstance(shape, dict):
            continue
        name, count = our_accelerator(gpu), int(shape["gpus_per_node"])
        usd = USD_PER_DEVICE_HOUR.get(gpu)
        if usd is None:
            unpriced.append(name)
            continue
        for zone in map(known.zone, sorted(zones)):
            place = [zone.provider, zone.region, zone.name, f"sailor-{count}x{name}", name, count, 0, 0, "on-demand"]
            rows.append([*place, usd * count, as_of, as_of, source, "low", *OFFER_DEFAULTS.values()])
    _write(path, OFFER_COLUMNS, rows)
    return tuple(unpriced)


def _curve(entry: Any, where: str) -> list[Any]:
    try:
        (a, b, c), highest = entry
    except (TypeError, ValueError) as error:
        raise DataError(f"bandwidth curve of {where} is not [[a, b, c], bytes per second]: {entry!r}") from error
    return [a, b, c, MIN_CURVE_BYTES, MAX_CURVE_BYTES, highest, "", "yes"]


def _scope(src: str, dst: str, known: Catalog) -> tuple[str, str, str, str]:
    if src == dst:
        return ("same-zone", "*", "same-zone", "*")
    regions = known.region_of(src), known.region_of(dst)
    if regions[0] == regions[1]:
        return ("other-zone", "*", "other-zone", "*")
    return ("region", regions[0], "region", regions[1])


def _write(path: Path, columns: Iterable[str], rows: Iterable[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(rows)
