"""An event loop in simulated time: it jumps to the next timer when nothing else is left to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

_T = TypeVar("_T")


@dataclass(slots=True)
class SimulatedClock:
    """Returns the loop's current time."""

    started_at: datetime
    elapsed_s: float = 0.0

    def now(self) -> datetime:
        return self.started_at + timedelta(seconds=self.elapsed_s)

    def monotonic_s(self) -> float:
        return self.elapsed_s

    def at(self, elapsed_s: float) -> datetime:
        return self.started_at + timedelta(seconds=elapsed_s)


class _Jump(selectors.DefaultSelector):
    """Jumps to the next timer instead of waiting for it."""

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set")
        self._clock.elapsed_s += max(0.0, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__(_Jump(clock))
        self._simulated = clock

    def time(self) -> float:
        return self._simulated.elapsed_s


def run_simulated(work: Coroutine[Any, Any, _T], clock: SimulatedClock) -> _T:
    """Run a coroutine to its end in simulated time. It must not use threads, nor wait for files or sockets."""
    with asyncio.Runner(loop_factory=lambda: _Loop(clock)) as runner:
        return runner.run(work)
