"""Refuses implausible prices, so that a wrong API response never makes a plan look cheap."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sailor_cloud.catalog.providers.fetched import Refusal
from sailor_cloud.model.offer import Market, Offer

LOWEST_SHARE_OF_ON_DEMAND = 0.01
# By this factor, a refreshed price may leave the range of known prices per device of its accelerator.
RANGE_FACTOR = 5.0
# AWS rounds spot prices to four places, so one equal to the on-demand price may be slightly above it.
_ROUNDING_USD = 1e-4

Range = tuple[float, float]


def known_ranges(offers: Iterable[Offer]) -> dict[tuple[str, Market], Range]:
    """Return the lowest and highest price per device and hour of each accelerator and market, without examples."""
    ranges: dict[tuple[str, Market], Range] = {}
    for offer in offers:
        if offer.confidence.of_market:
            price = offer.usd_per_hour / offer.accelerator_count
            low, high = ranges.get((offer.accelerator, offer.market), (price, price))
            ranges[offer.accelerator, offer.market] = (min(low, price), max(high, price))
    return ranges


def plausible_offers(
    offers: Iterable[Offer], known: Iterable[Offer], ranges: Mapping[tuple[str, Market], Range]
) -> tuple[list[Offer], Counter[Refusal]]:
    """Return the plausible offers, and how many others were refused for which reason.

    A spot price is compared with the on-demand price of the same instance and zone in `offers`, else in `known`.
    """
    rows = list(offers)
    on_demand = {_instance(offer): offer.usd_per_hour for offer in (*known, *rows) if offer.market is Market.ON_DEMAND}
    kept: list[Offer] = []
    refused: Counter[Refusal] = Counter()
    for offer in rows:
        ceiling = on_demand.get(_instance(offer))
        reason = _reason(offer, ceiling, ranges.get((offer.accelerator, offer.market)))
        if reason is not None:
            refused[reason] += 1
        elif offer.market is Market.SPOT and ceiling is not None and offer.usd_per_hour > ceiling:
            kept.append(replace(offer, usd_per_hour=ceiling))
        else:
            kept.append(offer)
    return kept, refused


def _instance(offer: Offer) -> tuple[str, str, str, int]:
    return offer.zone, offer.instance_type, offer.accelerator, offer.accelerator_count


def _reason(offer: Offer, ceiling: float | None, known: Range | None) -> Refusal | None:
    if offer.usd_per_hour <= 0:
        return Refusal.ZERO_PRICE
    if not math.isfinite(offer.usd_per_hour):
        return Refusal.IMPLAUSIBLE
    if offer.market is Market.SPOT and ceiling is not None:
        if offer.usd_per_hour < LOWEST_SHARE_OF_ON_DEMAND * ceiling:
            return Refusal.BELOW_ONE_PERCENT
        if offer.usd_per_hour > ceiling + _ROUNDING_USD:
            return Refusal.ABOVE_ON_DEMAND
    if known is not None:
        price = offer.usd_per_hour / offer.accelerator_count
        if not known[0] / RANGE_FACTOR <= price <= known[1] * RANGE_FACTOR:
            return Refusal.IMPLAUSIBLE
    return None
