"""The time of an iteration whose local ranks share the cores of one machine.

The schedule is first replayed with a core for each rank. Wherever more ranks compute at once than there are cores, time
is stretched: all of them advance at cores / ranks of their pace, as under a fair scheduler. Transfers and sums of
gradients are stretched with them, since between local nodes they are copies by the same cores. Left out: the cores that
transfers take, about 2 % of the demo's work (measured 2026-11).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SharedClock:
    """Translates seconds of a schedule in which each rank has a core into seconds on shared cores.

    Both arrays grow and begin at 0, shape [knots]; time is linear between knots and unchanged in pace after the last.
    """

    alone_s: Floats
    shared_s: Floats

    @classmethod
    def of(cls, busy: Iterable[tuple[float, float, int]], *, cores: float) -> SharedClock:
        """Return the clock of a schedule; `busy`: start, end and number of ranks of everything that computes."""
        changes: dict[float, int] = {0.0: 0}
        for start, end, ranks in busy:
            changes[start] = changes.get(start, 0) + ranks
            changes[end] = changes.get(end, 0) - ranks
        at = np.array(sorted(changes))
        running = np.cumsum([changes[second] for second in at.tolist()])[:-1]
        taken = np.diff(at) * np.maximum(1.0, running / cores)
        return cls(at, np.concatenate([[0.0], np.cumsum(taken)]))

    def at(self, alone_s: ArrayLike) -> Floats:
        """Return when something happens on shared cores."""
        alone = np.asarray(alone_s, dtype=np.float64)
        beyond = np.maximum(0.0, alone - self.alone_s[-1])
        return np.asarray(np.interp(alone, self.alone_s, self.shared_s) + beyond)
