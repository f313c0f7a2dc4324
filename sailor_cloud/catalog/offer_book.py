"""Offers by zone and by id. Rows of a price file become offers only when somebody asks for them: most never do."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sailor_cloud.catalog.offer_file import offer_of, offer_rows
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Offer, offer_id


@dataclass(frozen=True, slots=True)
class _Row:
    """A line of a price file as text."""

    path: Path
    line: int
    values: tuple[str, ...]


@dataclass(slots=True)
class OfferBook:
    """Offers, each at first a row or made already; `_zones` holds the ids of every zone."""

    _rows: dict[str, _Row]
    _zones: dict[str, list[str]]
    _made: dict[str, Offer] = field(default_factory=dict)
    _before: OfferBook | None = None

    @classmethod
    def of(cls, offers: Iterable[Offer]) -> OfferBook:
        """Return the book of some offers. Raises DataError where two have one id."""
        made: dict[str, Offer] = {}
        for offer in offers:
            if offer.id in made:
                raise _twice(offer.id, str(made[offer.id].usd_per_hour), str(offer.usd_per_hour))
            made[offer.id] = offer
        return cls({}, _by_zone((offer.zone, offer.id) for offer in made.values()), made)

    @classmethod
    def read(cls, paths: Sequence[Path]) -> OfferBook:
        """Return the book of price files. Raises DataError; a value that doesn't parse does when it is asked for."""
        rows: dict[str, _Row] = {}
        zones = []
        for path in paths:
            for line, values in offer_rows(path):
                provider, _, zone, instance_type, accelerator, count, _, _, market, price = values[:10]
                name = offer_id(provider, zone, instance_type, accelerator, count, market)
                if name in rows:
                    raise _twice(name, rows[name].values[9], price)
                rows[name] = _Row(path, line, values)
                zones.append((zone, name))
        return cls(rows, _by_zone(zones))

    def over(self, offers: Iterable[Offer], *, withdrawn: Collection[str] = ()) -> OfferBook:
        """Return the book with some offers in place of those of the same id, and without those that were withdrawn."""
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
        """Return the offer in whose place `over` put one. Raises DataError as `find` does."""
        return None if self._before is None else self._before.find(name)

    def find(self, name: str) -> Offer | None:
        """Return an offer by its id. Raises DataError with file and line where its row doesn't parse."""
        if name not in self._made and name in self._rows:
            row = self._rows[name]
            try:
                self._made[name] = offer_of(*row.values)
            except (ValueError, KeyError) as error:
                raise DataError(f"{row.path} line {row.line}: {error}") from error
        return self._made.get(name)

    def every(self, zones: Iterable[str] | None = None) -> tuple[Offer, ...]:
        """Return the offers of some zones, or of all, in the order of their ids. Raises DataError as `find`."""
        names = [name for zone in (self._zones if zones is None else set(zones)) for name in self._zones.get(zone, ())]
        found = (self.find(name) for name in sorted(names))
        return tuple(offer for offer in found if offer is not None)


def _by_zone(entries: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for zone, name in entries:
        found.setdefault(zone, []).append(name)
    return found


def _twice(name: str, one: str, other: str) -> DataError:
    return DataError(f"two prices for {name}: {one} and {other} USD/h")
