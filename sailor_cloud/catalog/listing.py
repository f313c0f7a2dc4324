"""Offers as a list to choose from, with costs per device and per unit of work."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.prices.doubts import age_days, is_stale
from sailor_cloud.catalog.prices.interruptions import Interruptions
from sailor_cloud.model.offer import Market, Offer, Precision, Provider


class SortKey(StrEnum):
    """The sort key of a list; all but `id` put the cheapest first."""

    USD_PER_HOUR = "usd-per-hour"
    USD_PER_GPU_HOUR = "usd-per-gpu-hour"
    USD_PER_PFLOPS_HOUR = "usd-per-pflops-hour"
    ID = "id"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """An offer with comparisons; `usd_per_pflops_hour` is per dense peak PFLOP/s, None without such a rate.

    `interruptions` is None for on-demand and if the provider does not report it.
    """

    offer: Offer
    usd_per_gpu_hour: float
    usd_per_pflops_hour: float | None
    age_days: int
    stale: bool
    interruptions: Interruptions | None


def listing(
    catalog: Catalog,
    *,
    as_of: date,
    sort: SortKey = SortKey.USD_PER_GPU_HOUR,
    precision: Precision = Precision.FP16,
    provider: Provider | None = None,
    regions: Iterable[str] | None = None,
    zones: Iterable[str] | None = None,
    accelerators: Iterable[str] | None = None,
    markets: Iterable[Market] | None = None,
    instance_types: Iterable[str] | None = None,
    max_usd_per_hour: float | None = None,
    priced_since: date | None = None,
) -> tuple[Listed, ...]:
    """Return the offers that meet all given conditions, compared and sorted; unknown values come last."""
    found = catalog.offers(
        provider=provider,
        zones=zones,
        accelerators=accelerators,
        markets=markets,
        instance_types=instance_types,
        max_usd_per_hour=max_usd_per_hour,
        priced_since=priced_since,
    )
    wanted = None if regions is None else frozenset(regions)
    rows = (_listed(offer, catalog, precision, as_of) for offer in found if wanted is None or offer.region in wanted)
    return tuple(sorted(rows, key=lambda row: (*_rank(row, sort), row.offer.id)))


def _listed(offer: Offer, catalog: Catalog, precision: Precision, as_of: date) -> Listed:
    rate = catalog.accelerator(offer.accelerator).peak_tflops(precision)
    per_device = offer.usd_per_hour / offer.accelerator_count
    return Listed(
        offer=offer,
        usd_per_gpu_hour=per_device,
        usd_per_pflops_hour=None if rate is None else per_device / (rate / 1e3),
        age_days=age_days(offer, as_of),
        stale=is_stale(offer, as_of),
        interruptions=catalog.interruptions.of(offer),
    )


def _rank(row: Listed, sort: SortKey) -> tuple[bool, float]:
    match sort:
        case SortKey.USD_PER_HOUR:
            return False, row.offer.usd_per_hour
        case SortKey.USD_PER_GPU_HOUR:
            return False, row.usd_per_gpu_hour
        case SortKey.USD_PER_PFLOPS_HOUR:
            return row.usd_per_pflops_hour is None, row.usd_per_pflops_hour or 0.0
        case SortKey.ID:
            return False, 0.0
