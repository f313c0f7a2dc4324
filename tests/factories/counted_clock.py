"""A clock with which a time limit ends a search at the same step on any machine."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from factories.planning import AS_OF


@dataclass(slots=True)
class CountedClock:
    """A clock that advances by a second each time it is read."""

    looks: int = 0

    def now(self) -> datetime:
        return AS_OF

    def monotonic_s(self) -> float:
        self.looks += 1
        return float(self.looks)
