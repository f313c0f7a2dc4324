"""How prices changed: between two states of the catalog, and over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog.files import snapshot as snapshots
from sailor_cloud.catalog.files.offer_file import OfferBook, offer_files, read_offers
from sailor_cloud.catalog.files.tables import optional, parse_date, records
from sailor_cloud.catalog.providers import tables
from sailor_cloud.model.offer import Market, Offer, Provider


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceChange:
    """An offer whose price differs; before or after is None if it was not offered or unknown."""

    before: Offer | None
    after: Offer | None

    @property
    def offer(self) -> Offer:
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def relative(self) -> float | None:
        """The change as a share of the price before, None without such a price."""
        if self.before is None or self.after is None:
            return None
        return self.after.usd_per_hour / self.before.usd_per_hour - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PricePoint:
    """A price on a day; `zone` is empty for a price of the whole region, and `accelerator` for a bare machine."""

    day: date
    provider: Provider
    region: str
    zone: str
    instance_type: str
    accelerator: str
    accelerator_count: int | None
    market: Market
    usd_per_hour: float
    source: str


def offers_known_on(day: date | None) -> tuple[Offer, ...]:
    """Return the offers in the catalog at the end of a day; None is the shipped state."""
    shipped = _shipped_offers()
    if day is None:
        return shipped
    taken = [snapshots.read(folder) for folder in snapshots.folders()]
    known = [snapshot for snapshot in taken if snapshot.taken_at.date() <= day]
    if not known:
        return shipped
    return OfferBook.of(shipped).updated_with(known[-1].offers, withdrawn=known[-1].withdrawn).offers_in()


def diff(before: Iterable[Offer], after: Iterable[Offer], *, least: float = 0.0) -> tuple[PriceChange, ...]:
    """Return what changed by more than `least` (a share), came or went; largest changes first."""
    old = {offer.id: offer for offer in before}
    new = {offer.id: offer for offer in after}
    changes = [
        PriceChange(before=old.get(name), after=new.get(name))
        for name in sorted(old.keys() | new.keys())
        if name not in old or name not in new or old[name].usd_per_hour != new[name].usd_per_hour
    ]
    kept = [change for change in changes if change.relative is None or abs(change.relative) > least]
    return tuple(sorted(kept, key=lambda change: -abs(change.relative or 0.0)))


def history(
    instance_type: str,
    *,
    regions: Iterable[str] | None = None,
    market: Market | None = None,
    since: date | None = None,
) -> tuple[PricePoint, ...]:
    """Return every known price of an instance type by day, region, zone and market, without repeated prices.

    Sources are the shipped history, the shipped offers and every refresh of this user.
    """
    wanted = None if regions is None else frozenset(regions)
    paths = tables("pricing", "price_history.csv", root=resources.data_root())
    points = [*recorded(paths), *(_point(offer) for offer in _shipped_offers())]
    for folder in snapshots.folders():
        points += [_point(offer) for offer in snapshots.read(folder).offers]
    chosen = {
        point
        for point in points
        if point.instance_type == instance_type
        and (wanted is None or point.region in wanted)
        and market in (None, point.market)
        and (since is None or point.day >= since)
    }
    ordered = sorted(chosen, key=lambda point: (_series(point), point.day, point.source))
    return tuple(
        point
        for index, point in enumerate(ordered)
        if index == 0
        or _series(ordered[index - 1]) != _series(point)
        or ordered[index - 1].usd_per_hour != point.usd_per_hour
    )


def _series(point: PricePoint) -> tuple[str, str, str, int, str]:
    return point.region, point.zone, point.accelerator, point.accelerator_count or 0, point.market.value


def _shipped_offers() -> tuple[Offer, ...]:
    offers = (offer for path in offer_files(resources.data_root()) for offer in read_offers(path))
    return tuple(offer for offer in offers if offer.confidence.of_market)


_HISTORY_COLUMNS = (
    "provider",
    "region",
    "instance_type",
    "accelerator",
    "day",
    "on_demand_usd_per_hour",
    "spot_usd_per_hour",
    "source",
)


def recorded(paths: Iterable[Path]) -> list[PricePoint]:
    """Return the prices of history files. Raises DataError."""
    rows = (row for path in paths for row in records(path, _HISTORY_COLUMNS, _recorded_points))
    return [point for pair in rows for point in pair]


def _recorded_points(
    provider: str,
    region: str,
    instance_type: str,
    accelerator: str,
    day: str,
    on_demand: str,
    spot: str,
    source: str,
) -> list[PricePoint]:
    return [
        PricePoint(
            day=parse_date(day),
            provider=Provider(provider),
            region=region,
            zone="",
            instance_type=instance_type,
            accelerator=accelerator,
            accelerator_count=None,
            market=market,
            usd_per_hour=price,
            source=source,
        )
        for market, price in ((Market.ON_DEMAND, optional(on_demand)), (Market.SPOT, optional(spot)))
        if price is not None
    ]


def _point(offer: Offer) -> PricePoint:
    return PricePoint(
        day=offer.as_of_from,
        provider=offer.provider,
        region=offer.region,
        zone=offer.zone,
        instance_type=offer.instance_type,
        accelerator=offer.accelerator,
        accelerator_count=offer.accelerator_count,
        market=offer.market,
        usd_per_hour=offer.usd_per_hour,
        source=offer.source,
    )
