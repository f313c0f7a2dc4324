"""Offers as rows of a CSV file, which become objects on first use."""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sailor_cloud.catalog.files.tables import (
    OFFER_COLUMNS,
    OFFER_DEFAULTS,
    parse_date,
    parse_flag,
    price,
    read_rows,
    records,
)
from sailor_cloud.catalog.providers import of, own_data
from sailor_cloud.durable import written
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider, ZoneConfidence, offer_id

# The most expensive node of the shipped prices costs 142 USD per hour.
MOST_USD_PER_HOUR = 1e5
MOST = 10**6


def sibling_id(offer: Offer, zone: str, market: Market) -> str:
    """Return the name of the offer of the same node in some zone and market."""
    count = str(offer.accelerator_count)
    return offer_id(offer.provider, zone, offer.instance_type, offer.accelerator, count, market.value)


def offer_files(root: Path, pricing: Path | None = None) -> list[Path]:
    """Return the price files of a pricing folder, else those of a data folder and of providers.

    Raises DataError if there is none.
    """
    named = [] if pricing is None else sorted(pricing.glob("offers/*.csv"))
    shipped = (root / "pricing", *own_data("pricing"))
    files = named or [path for folder in shipped for path in sorted(folder.glob("offers/*.csv"))]
    if not files:
        raise DataError(f"no offers in {root / 'pricing' / 'offers'}; reinstall sailor-cloud")
    return files


def read_offers(path: Path) -> Iterator[Offer]:
    """Yield the offers of one file. Raises DataError with file and line."""
    return records(path, OFFER_COLUMNS, offer_of, OFFER_DEFAULTS)


def offer_rows(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the lines of one file with their numbers, as text for `offer_of`. Raises as `read_rows` does."""
    return enumerate(read_rows(path, OFFER_COLUMNS, OFFER_DEFAULTS), start=2)


def write_offers(path: Path, offers: Iterable[Offer]) -> None:
    """Write offers to a new file, synced to disk; reading it returns exactly the same offers."""
    with written(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(OFFER_COLUMNS)
        writer.writerows(_row(offer) for offer in offers)


def _row(offer: Offer) -> tuple[str, ...]:
    return (
        offer.provider,
        offer.region,
        offer.zone,
        offer.instance_type,
        offer.accelerator,
        str(offer.accelerator_count),
        str(offer.vcpus),
        repr(offer.memory_gib).removesuffix(".0"),
        offer.market.value,
        repr(offer.usd_per_hour),
        offer.as_of_from.isoformat(),
        offer.as_of_to.isoformat(),
        offer.source,
        offer.confidence.value,
        offer.zone_confidence.value,
        "yes" if offer.outlier else "no",
    )


def offer_of(
    provider: str,
    region: str,
    zone: str,
    instance_type: str,
    accelerator: str,
    count: str,
    vcpus: str,
    memory_gib: str,
    market: str,
    usd_per_hour: str,
    as_of_from: str,
    as_of_to: str,
    source: str,
    confidence: str,
    zone_confidence: str,
    outlier: str,
) -> Offer:
    """Return the offer of a line. Raises ValueError or KeyError."""
    first, last = parse_date(as_of_from), parse_date(as_of_to)
    if last < first:
        raise ValueError(f"as_of_to {as_of_to} is before as_of_from {as_of_from}")
    return Offer(
        id=offer_id(provider, zone, instance_type, accelerator, count, market),
        provider=Provider(provider),
        region=region,
        zone=zone,
        instance_type=instance_type,
        accelerator=accelerator,
        accelerator_count=_count("accelerator_count", count),
        vcpus=_count("vcpus", vcpus, least=0),
        memory_gib=_memory(memory_gib),
        market=Market(market),
        usd_per_hour=_price(provider, usd_per_hour),
        as_of_from=first,
        as_of_to=last,
        source=source,
        confidence=Confidence(confidence),
        zone_confidence=ZoneConfidence(zone_confidence),
        outlier=parse_flag(outlier),
    )


def _price(provider: str, text: str) -> float:
    if text in ("0", "0.0") and of(Provider(provider)).may_be_free:
        return 0.0
    usd = price(text)
    if usd > MOST_USD_PER_HOUR:
        raise ValueError(f"usd_per_hour {text} is more than {MOST_USD_PER_HOUR:,.0f}, which no node costs")
    return usd


def _count(column: str, text: str, *, least: int = 1) -> int:
    """Return a count; vCPUs and memory are 0 where a table does not say them, as in Sailor's artifact."""
    number = int(text)
    if not least <= number <= MOST:
        raise ValueError(f"{column} must be an integer from {least} to {MOST}, got {text}")
    return number


def _memory(text: str) -> float:
    gib = float(text)
    if not 0.0 <= gib <= MOST:
        raise ValueError(f"memory_gib must be a number from 0 to {MOST}, got {text}")
    return gib


class _Row(NamedTuple):
    """A line of a price file as text."""

    path: Path
    line: int
    values: tuple[str, ...]


@dataclass(slots=True)
class OfferBook:
    """Offers, each a row until its first use; `_zones` holds the ids of every zone."""

    _rows: dict[str, _Row]
    _zones: dict[str, list[str]]
    _made: dict[str, Offer] = field(default_factory=dict)
    _before: OfferBook | None = None

    @classmethod
    def of(cls, offers: Iterable[Offer]) -> OfferBook:
        """Return the book of some offers. Raises DataError if two share an id."""
        made: dict[str, Offer] = {}
        for offer in offers:
            if offer.id in made:
                raise _duplicate_error(offer.id, str(made[offer.id].usd_per_hour), str(offer.usd_per_hour))
            made[offer.id] = offer
        return cls({}, _by_zone((offer.zone, offer.id) for offer in made.values()), made)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> OfferBook:
        """Return the book of price files. Raises DataError, for values that do not parse on first use."""
        rows: dict[str, _Row] = {}
        zones = []
        for path in paths:
            for line, values in offer_rows(path):
                provider, _, zone, instance_type, accelerator, count, _, _, market, price = values[:10]
                name = offer_id(provider, zone, instance_type, accelerator, count, market)
                if name in rows:
                    raise _duplicate_error(name, rows[name].values[9], price)
                rows[name] = _Row(path, line, values)
                zones.append((zone, name))
        return cls(rows, _by_zone(zones))

    def updated_with(self, offers: Iterable[Offer], *, withdrawn: Collection[str] = ()) -> OfferBook:
        """Return the book with some offers replacing those of the same id, and without withdrawn ones."""
        newer = {offer.id: offer for offer in offers}
        gone = set(withdrawn)
        kept = {name: zone for zone, names in self._zones.items() for name in names} | {
            name: offer.zone for name, offer in newer.items()
        }
        return OfferBook(
            {name: row for name, row in self._rows.items() if name not in newer and name not in gone},
            _by_zone((zone, name) for name, zone in kept.items() if name not in gone),
            {name: offer for name, offer in (self._made | newer).items() if name not in gone},
            self,
        )

    def replaced(self, name: str) -> Offer | None:
        """Return the offer that `updated_with` replaced. Raises DataError as `find` does."""
        return None if self._before is None else self._before.find(name)

    def find(self, name: str) -> Offer | None:
        """Return an offer by its id. Raises DataError with file and line if its row does not parse."""
        if name not in self._made and name in self._rows:
            row = self._rows[name]
            try:
                self._made[name] = offer_of(*row.values)
            except (ValueError, KeyError) as error:
                raise DataError(f"{row.path} line {row.line}: {error}") from error
        return self._made.get(name)

    def offers_in(self, zones: Iterable[str] | None = None) -> tuple[Offer, ...]:
        """Return the offers of some zones, or of all, in the order of their ids. Raises DataError as `find`."""
        names = [name for zone in (self._zones if zones is None else set(zones)) for name in self._zones.get(zone, ())]
        found = (self.find(name) for name in sorted(names))
        return tuple(offer for offer in found if offer is not None)


def _by_zone(entries: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for zone, name in entries:
        found.setdefault(zone, []).append(name)
    return found


def _duplicate_error(name: str, one: str, other: str) -> DataError:
    return DataError(f"two prices for {name}: {one} and {other} USD/h")
