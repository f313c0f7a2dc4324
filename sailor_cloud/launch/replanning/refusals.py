"""Refused purchases of a run, and for how long each is not tried again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.run.journal import Entry, Event


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """The unit of capacity: an instance type in a zone, on one market.

    It includes the accelerator, because some machines of Google Cloud take one of several.
    """

    instance_type: str
    accelerator: str
    zone: str
    market: Market

    @classmethod
    def of(cls, offer: Offer) -> Choice:
        return cls(offer.instance_type, offer.accelerator, offer.zone, offer.market)

    def __str__(self) -> str:
        return f"{self.instance_type} ({self.accelerator}, {self.market.value}) in {self.zone}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Choices that were unavailable; they are not tried again until a given time."""

    choices: frozenset[Choice]
    until: datetime

    def to_data(self) -> dict[str, Any]:
        """Return the refusal in the journal's form."""
        rows = [[one.instance_type, one.accelerator, one.zone, one.market.value] for one in sorted(self.choices)]
        return {"refused": rows, "until": self.until.isoformat()}


# Each repeated refusal doubles the pause, up to this factor.
_MOST_PATIENCE = 4


def refusal(offers: Iterable[Offer], known: Iterable[Refusal], *, now: datetime, pause_s: float) -> Refusal:
    """Return the refusal of some offers; `known` are earlier ones, which lengthen the pause."""
    choices = frozenset(Choice.of(offer) for offer in offers)
    before = sum(1 for one in known if one.choices & choices)
    return Refusal(choices, now + timedelta(seconds=pause_s * min(2**before, _MOST_PATIENCE)))


def refusals(entries: Iterable[Entry]) -> tuple[Refusal, ...]:
    """Return the refusals in a journal, so that a controller that takes over respects them."""
    return tuple(
        Refusal(
            frozenset(Choice(kind, name, zone, Market(market)) for kind, name, zone, market in entry.data["refused"]),
            datetime.fromisoformat(entry.data["until"]),
        )
        for entry in entries
        if entry.event is Event.NO_CAPACITY and "refused" in entry.data
    )


def blocked(known: Iterable[Refusal], now: datetime) -> dict[Choice, float]:
    """Return the blocked choices at a moment, each with the seconds until it may be requested again."""
    found: dict[Choice, float] = {}
    for one in known:
        for choice in one.choices if one.until > now else ():
            found[choice] = max(found.get(choice, 0.0), (one.until - now).total_seconds())
    return found
