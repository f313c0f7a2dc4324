"""The injected clock through which the program gets the time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Returns the time of day (timezone-aware, UTC) and a monotonic number of seconds."""

    def now(self) -> datetime: ...

    def monotonic_s(self) -> float: ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def monotonic_s(self) -> float:
        return time.monotonic()


@dataclass(frozen=True, slots=True)
class DatedClock:
    """A clock with a fixed date that still measures durations; for `--as-of`."""

    instant: datetime

    def now(self) -> datetime:
        return self.instant

    def monotonic_s(self) -> float:
        return time.monotonic()


@dataclass(slots=True)
class FixedClock:
    """A clock that stops until it is advanced; for tests."""

    instant: datetime
    elapsed_s: float = 0.0

    def now(self) -> datetime:
        return self.instant

    def monotonic_s(self) -> float:
        return self.elapsed_s
