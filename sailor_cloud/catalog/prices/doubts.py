"""Which prices are old or doubted, and what plans count instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date

from sailor_cloud.catalog.files.offer_file import OfferBook, sibling_id
from sailor_cloud.catalog.prices.changes import PricePoint
from sailor_cloud.catalog.prices.interruptions import InterruptionTable
from sailor_cloud.model.offer import Confidence, Doubt, ListedPrice, Market, Offer, Provider
from sailor_cloud.units import usd_text

# For prices whose source has no date and whose commit is unknown: their age is unknown, and they are stale.
UNKNOWN_DAY = date(1970, 1, 1)
# Users state the price of reserved capacity, or it costs as much as on demand.
OLDEST_DAYS = dict.fromkeys(Market, 90) | {Market.SPOT: 7}


def age_days(offer: Offer, as_of: date) -> int:
    """Return the age of an offer's price in days; a price known between two dates counts from the older one."""
    return (as_of - offer.as_of_from).days


def age_text(priced: date, days: int) -> str:
    """Return the age of a price of some day in words."""
    return "unknown" if priced == UNKNOWN_DAY else f"{days} d"


def is_stale(offer: Offer, as_of: date) -> bool:
    """Return whether a price is too old to spend money on without confirmation."""
    if not offer.confidence.of_market:
        return False
    return age_days(offer, as_of) > OLDEST_DAYS[offer.market]


# A spot price further below on-demand is believed only if a second source has about the same.
FAR_UNDER_ON_DEMAND = 0.85
# A second source agrees if its price is at most this many times as high. By judgement: spot prices move between the
# dates of two sources, but the one known outlier is a third of the other source's price.
AGREEMENT = 1.5


@dataclass(slots=True)
class Doubts:
    """Finds doubted offers of a book and gives them the price that plans count.

    `zones` are those of each region. `recorded` returns the price history; it is called once, and only if needed.
    """

    book: OfferBook
    zones: Mapping[tuple[Provider, str], Sequence[str]]
    interruptions: InterruptionTable
    recorded: Callable[[], Iterable[PricePoint]]
    _counted: dict[str, Offer] = field(default_factory=dict)
    _history: dict[tuple[str, str, str, Market], PricePoint] | None = None

    def with_counted_price(self, offer: Offer) -> Offer:
        """Return the offer at the price that plans count; `listed` holds the price in the file if it is doubted."""
        if offer.id not in self._counted:
            self._counted[offer.id] = self._count(offer)
        return self._counted[offer.id]

    def _count(self, offer: Offer) -> Offer:
        doubts = self._doubts(offer)
        if not doubts:
            return offer
        known = [other for other in self._in_region(offer, offer.market) if not self._doubts(other)]
        used = max(known, key=lambda other: (other.usd_per_hour, other.id), default=None)
        if used is None and offer.market is Market.SPOT:
            used = self.on_demand(offer)
        if used is None or used.usd_per_hour <= offer.usd_per_hour:
            used = offer
        listed = ListedPrice(
            usd_per_hour=offer.usd_per_hour,
            source=offer.source,
            doubts=doubts,
            counted_from=None if used is offer else used.market,
        )
        return replace(
            offer,
            usd_per_hour=used.usd_per_hour,
            as_of_from=used.as_of_from,
            as_of_to=used.as_of_to,
            source=used.source,
            listed=listed,
        )

    def _doubts(self, offer: Offer) -> tuple[Doubt, ...]:
        if not offer.confidence.of_market:
            return ()
        found = []
        if offer.outlier:
            found.append(Doubt.OUTLIER)
        if offer.confidence is Confidence.LOW:
            found.append(Doubt.LOW_CONFIDENCE)
        if offer.market is Market.SPOT:
            on_demand = self.on_demand(offer)
            ceiling = 0.0 if on_demand is None else on_demand.usd_per_hour
            far_under = offer.usd_per_hour < (1.0 - FAR_UNDER_ON_DEMAND) * ceiling
            if far_under and not self._has_second_source(offer, ceiling):
                found.append(Doubt.FAR_UNDER_ON_DEMAND)
        return tuple(found)

    def on_demand(self, offer: Offer) -> Offer | None:
        """Return the on-demand offer of the same node: in its zone, else the most expensive one in its region.

        For a type without on-demand price, that of equally many accelerators in a larger node of the zone.
        """
        own = self.book.find(sibling_id(offer, offer.zone, Market.ON_DEMAND))
        if own is not None:
            return own
        same = max(self._in_region(offer, Market.ON_DEMAND), key=lambda other: other.usd_per_hour, default=None)
        if same is not None:
            return same
        larger = (
            replace(other, usd_per_hour=other.usd_per_hour / other.accelerator_count * offer.accelerator_count)
            for other in self.book.offers_in([offer.zone])
            if other.accelerator == offer.accelerator and other.market is Market.ON_DEMAND
        )
        return max(larger, key=lambda other: other.usd_per_hour, default=None)

    def _in_region(self, offer: Offer, market: Market) -> Iterator[Offer]:
        """Yield the offers of an instance type on a market in the zones of an offer's region."""
        for zone in self.zones.get((offer.provider, offer.region), ()):
            found = self.book.find(sibling_id(offer, zone, market))
            if found is not None:
                yield found

    def _has_second_source(self, offer: Offer, on_demand_usd: float) -> bool:
        most = AGREEMENT * offer.usd_per_hour
        advised = self.interruptions.of(offer)
        if advised is not None and advised.saving is not None and (1.0 - advised.saving) * on_demand_usd <= most:
            return True
        before = self.book.replaced(offer.id)
        if before is not None and before.source != offer.source and not before.outlier and before.usd_per_hour <= most:
            return True
        point = self._last_recorded(offer)
        return point is not None and point.source != offer.source and point.usd_per_hour <= most

    def _last_recorded(self, offer: Offer) -> PricePoint | None:
        if self._history is None:
            points = sorted(self.recorded(), key=lambda point: point.day)
            self._history = {(p.region, p.instance_type, p.accelerator, p.market): p for p in points}
        return self._history.get((offer.region, offer.instance_type, offer.accelerator, offer.market))


_REASONS = {
    Doubt.OUTLIER: "an outlier",
    Doubt.LOW_CONFIDENCE: "of low confidence",
    Doubt.FAR_UNDER_ON_DEMAND: f"more than {100 * FAR_UNDER_ON_DEMAND:.0f} % under on-demand without a second source",
}


def explained(offer: Offer) -> str:
    """Return why the price of an offer is doubted and what plans count; "" for other offers."""
    listed = offer.listed
    if listed is None:
        return ""
    reasons = " and ".join(_REASONS[doubt] for doubt in listed.doubts)
    ours, theirs = usd_text(offer.usd_per_hour), usd_text(listed.usd_per_hour)
    counted = (
        "no higher price is known"
        if listed.counted_from is None
        else f"plans count {ours}, the highest {listed.counted_from} price known in {offer.region}"
    )
    return (
        f"{offer.instance_type} {offer.market} in {offer.zone} is listed at {theirs} USD/h "
        f"({listed.source}), {reasons}; {counted}"
    )
