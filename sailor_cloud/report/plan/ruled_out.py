"""What was ruled out, in few lines: zones and markets in which the same thing is out for the same reason together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from sailor_cloud.model.document import PlanDocument


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOutLine:
    what: str
    why: str


class Row(Protocol):
    """Something that is out; see model.document.Rejected."""

    @property
    def what(self) -> str: ...
    @property
    def why(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def market(self) -> str: ...


def ruled_out(document: PlanDocument) -> tuple[RuledOutLine, ...]:
    """Return what may not be bought or used, each with the reason."""
    return grouped(row for row in document.rejected if not row.restrictions)


def grouped(rows: Iterable[Row]) -> tuple[RuledOutLine, ...]:
    """Return a line for each thing and reason, in the order in which each first comes."""
    markets: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        markets.setdefault((row.subject or row.what, row.why, row.zone), []).append(row.market)
    zones: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for (subject, why, zone), found in markets.items():
        zones.setdefault((subject, why, tuple(found)), []).append(zone)
    return tuple(_line(*key, places) for key, places in zones.items())


def _line(subject: str, why: str, markets: tuple[str, ...], zones: list[str]) -> RuledOutLine:
    where = f" {', '.join(markets)} in {', '.join(zones)}" if zones[0] else ""
    return RuledOutLine(what=f"{subject}{where}", why=why)
