"""Price-only providers: GPU prices where this program buys nothing. For comparison only; no plan uses them."""

from __future__ import annotations

import csv
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from functools import cache
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog.files.tables import RowParser, price
from sailor_cloud.durable import replaced
from sailor_cloud.errors import DataError, RequestError
from sailor_cloud.model.offer import Market

FILE = "elsewhere.csv"
# Names here and in gpuhunt, which does not have CoreWeave.
PROVIDERS: Mapping[str, str | None] = {
    "azure": "azure",
    "coreweave": None,
    "lambda": "lambdalabs",
    "nebius": "nebius",
    "oci": "oci",
    "runpod": "runpod",
    "vast": "vastai",
    "verda": "verda",
}
# gpuhunt's names for our accelerators, with the memory that distinguishes variants.
_ACCELERATORS = {
    ("A100", 40): "A100-40",
    ("A100", 80): "A100-80",
    ("B200", 180): "B200-180",
    ("B200", 192): "B200-180",
    ("B300", 288): "B300-288",
    ("H100", 80): "H100-80",
    ("H200", 141): "H200-141",
    ("L4", 24): "L4-24",
    ("L40S", 48): "L40S-48",
    ("P100", 16): "P100-16",
    ("T4", 16): "T4-16",
    ("V100", 16): "V100-16",
    ("V100", 32): "V100-32",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ElsewherePrice:
    """USD per GPU and hour at a provider; `as_of` is None if the source is undated."""

    provider: str
    accelerator: str
    market: Market
    usd_per_gpu_hour: float
    as_of: date | None
    source: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """What some GPUs cost per hour at one provider, by its oldest price."""

    provider: str
    usd_per_hour: float
    as_of: date | None


_ROW = RowParser(ElsewherePrice, usd_per_gpu_hour=price)
COLUMNS = _ROW.columns


def prices_elsewhere(folder: Path | None = None) -> tuple[ElsewherePrice, ...]:
    """Return the prices of price-only providers: those that `prices list --now` kept, else shipped ones."""
    if folder is None:
        own = resources.home() / FILE
        folder = own.parent if own.is_file() else resources.data_root() / "pricing"
    return _read(folder / FILE)


@cache
def _read(path: Path) -> tuple[ElsewherePrice, ...]:
    return tuple(_ROW.all(path, {"note": ""}))


def totals(devices: Mapping[str, int], prices: Iterable[ElsewherePrice]) -> tuple[Total, ...]:
    """Return the on-demand cost of these GPUs at each provider that lists all of their accelerators, cheapest first."""
    cheapest: dict[str, dict[str, ElsewherePrice]] = {}
    for one in prices:
        if one.market is Market.ON_DEMAND and one.accelerator in devices:
            known = cheapest.setdefault(one.provider, {})
            before = known.get(one.accelerator)
            if before is None or one.usd_per_gpu_hour < before.usd_per_gpu_hour:
                known[one.accelerator] = one
    found = []
    for provider, known in cheapest.items():
        if len(known) == len(devices):
            dates = [one.as_of for one in known.values()]
            usd = sum(count * known[name].usd_per_gpu_hour for name, count in devices.items())
            oldest = None if None in dates else min(day for day in dates if day is not None)
            found.append(Total(provider=provider, usd_per_hour=usd, as_of=oldest))
    return tuple(sorted(found, key=lambda total: (total.usd_per_hour, total.provider)))


def ask_gpuhunt(providers: Sequence[str], today: date) -> tuple[ElsewherePrice, ...]:
    """Read today's prices from the catalog of the gpuhunt package: the cheapest per provider, accelerator and market.

    Raises RequestError if the package or a provider in it is missing, DataError if the result is empty.
    """
    try:
        from gpuhunt import Catalog
        from gpuhunt._internal.catalog import OFFLINE_PROVIDERS
        from gpuhunt._internal.errors import GPUHuntError
    except ImportError as error:
        raise RequestError(
            "today's prices elsewhere need the package gpuhunt; run pip install 'sailor-cloud[elsewhere]'"
        ) from error
    absent = [name for name in providers if PROVIDERS[name] not in OFFLINE_PROVIDERS]
    if absent:
        raise RequestError(
            f"gpuhunt's catalog has no {' or '.join(absent)}; without --now, the shipped prices are shown"
        )
    names = {PROVIDERS[name]: name for name in providers}
    catalog = Catalog(balance_resources=False, auto_reload=False)
    # It logs a traceback for each provider that it can't load.
    logging.getLogger("gpuhunt").setLevel(logging.CRITICAL)
    try:
        catalog.load()
        items = catalog.query(provider=[name for name in names if name is not None])
    except (GPUHuntError, OSError, ValueError, KeyError) as error:
        raise DataError(f"gpuhunt's catalog can't be read: {error}") from error
    best: dict[tuple[str, str, Market], float] = {}
    for item in items:
        name = _ACCELERATORS.get((item.gpu_name or "", round(item.gpu_memory or 0)))
        if name is None or item.gpu_count < 1 or item.price <= 0:
            continue
        key = (names[item.provider], name, Market.SPOT if item.spot else Market.ON_DEMAND)
        best[key] = min(best.get(key, item.price), item.price / item.gpu_count)
    if not best:
        raise DataError(f"gpuhunt's catalog could not be loaded for {' and '.join(providers)}, or lists no GPU of ours")
    return tuple(
        ElsewherePrice(
            provider=provider,
            accelerator=accelerator,
            market=market,
            usd_per_gpu_hour=usd,
            as_of=today,
            source="gpuhunt",
        )
        for (provider, accelerator, market), usd in sorted(best.items())
    )


def store_prices(found: Sequence[ElsewherePrice]) -> Path:
    """Write prices to this user's file, replacing those of the same providers, and return its path."""
    asked = {one.provider for one in found}
    rows = [*(one for one in prices_elsewhere() if one.provider not in asked), *found]
    target = resources.home() / FILE
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with replaced(target) as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({**asdict(row), "as_of": row.as_of or ""} for row in rows)
    _read.cache_clear()
    return target
