"""What each instance type needs and how it is sold, without prices: one row each, with source and date."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path

from sailor_cloud import resources
from sailor_cloud.catalog.files.tables import RowParser
from sailor_cloud.catalog.providers import tables
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.model.provider import names


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineType:
    """One instance type.

    `markets`: those it is sold in, empty if it is no longer sold. `boot_disk`: the type of its boot disk.
    `network_cards`: their number; `efa_cards`: how many of them carry EFA. `compact`: its instances may be placed close
    together. `image`: the kind of image that it boots; `own` if the cloud has none with drivers.
    """

    provider: Provider
    instance_type: str
    markets: frozenset[Market]
    boot_disk: str
    network_cards: int
    efa_cards: tuple[int, ...]
    compact: bool
    image: str
    source: str
    as_of: date

    def why_not(self, market: Market) -> str | None:
        """Return why it can't be bought in a market, or None if it can."""
        if market in self.markets or (market.has_terms and self.markets):
            return None
        if not self.markets:
            return f"{self.provider} does not list it any more ({self.source}, {self.as_of})"
        sold = " and ".join(sorted(other.value for other in self.markets))
        return f"{self.provider} sells it as {sold} only, or against a reservation ({self.source}, {self.as_of})"


_ROW = RowParser(
    MachineType,
    markets=lambda text: frozenset(Market(market) for market in text.split()),
    efa_cards=lambda text: tuple(int(card) for card in text.split()),
)


def load_machine_types(*, root: Path | None = None, pricing: Path | None = None) -> tuple[MachineType, ...]:
    """Return all rows. Raises DataError."""
    paths = tables("pricing", "machines.csv", root=root or resources.data_root(), named=pricing)
    return tuple(row for path in paths for row in _ROW.all(path))


def machine_type(offer: Offer) -> MachineType | None:
    """Return the shipped row of an offer's type; None if there is none, as for newer types."""
    return _known(names()).get((offer.provider, offer.instance_type))


def by_name(rows: Iterable[MachineType]) -> dict[tuple[Provider, str], MachineType]:
    return {(row.provider, row.instance_type): row for row in rows}


@cache
def _known(providers: tuple[str, ...]) -> dict[tuple[Provider, str], MachineType]:
    """Return the rows of the currently registered providers."""
    return by_name(load_machine_types())
