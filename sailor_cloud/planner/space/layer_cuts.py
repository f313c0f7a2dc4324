"""Divides the layers among consecutive stages so that the busiest one computes as little as possible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sailor_cloud.planner.space.space import Seat, Space

# The most stages of a pipeline of a large job.
MAX_STAGES = 24
# The bisection for the least time of the busiest stage ends with an interval of this share of it.
_PRECISION = 0.002

# For every first layer, the seconds of one, two, ... layers as far as they fit in memory.
_Ends = list[list[float]]


@dataclass
class Cutter:
    """Cuts by time and memory; the times of stages are kept."""

    space: Space
    _ends: dict[tuple[str, int, int, int, int, int], tuple[_Ends, float]] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = self.space.known.searches.setdefault("ends of stages", {})

    def cut(
        self, seats: Sequence[Seat], *, size: int, microbatches: int, replicas: int
    ) -> tuple[tuple[int, ...], float] | None:
        """Return the cut of one of `replicas` pipelines with nearly the least busiest stage, and that stage's seconds.

        Each stage takes as many layers as it can, so with very unequal layers others may be better. None if there are
        more stages than layers, or if no cut fits.
        """
        stages = len(seats)
        if stages > self.space.layers:
            return None
        timed = [
            self._table(seat, size, min(stages - s, microbatches), min(replicas, 2)) for s, seat in enumerate(seats)
        ]
        tables, most_s = [table for table, _ in timed], max(most for _, most in timed)
        if self.space.even_layers:
            _, longest = self.space.lengths(stages)
            tables = [[row[:longest] for row in table] for table in tables]
        low, best = 0.0, self._greedy(tables, most_s)
        if best is None:
            return None
        while best[1] > low * (1.0 + _PRECISION):
            middle = 0.5 * (low + best[1])
            better = self._greedy(tables, middle)
            # A stage may take slightly less time with one more layer, so the result may not be faster.
            low, best = (low, better) if better is not None and better[1] < best[1] else (middle, best)
        return best

    def _greedy(self, tables: list[_Ends], most_s: float) -> tuple[tuple[int, ...], float] | None:
        """Give each stage as many layers as it can compute in time; return the cut and the busiest stage's seconds."""
        layers, first, busiest_s = self.space.layers, 0, 0.0
        borders = [first]
        least, _ = self.space.lengths(len(tables))
        most = layers - least * len(tables)
        for table in tables:
            row = table[first]
            taken = bisect_right(row, most_s)
            if taken < least:
                return None
            most += least
            taken = min(taken, most - first)
            busiest_s = max(busiest_s, row[taken - 1])
            first += taken
            borders.append(first)
        return (tuple(borders), busiest_s) if first == layers else None

    def _table(self, seat: Seat, size: int, held: int, sharers: int) -> tuple[_Ends, float]:
        """Return, for every first layer, the seconds of one, two, ... layers as far as they fit, and the most."""
        key = (self.space.pools[seat.pool].accelerator.name, seat.tp, size, held, sharers, self.space.zero_stage)
        if key not in self._ends:
            ends = self._build(seat, size, held, sharers)
            self._ends[key] = ends, max((row[-1] for row in ends if row), default=0.0)
        return self._ends[key]

    def _build(self, seat: Seat, size: int, held: int, sharers: int) -> _Ends:
        seconds = self.space.stages_s(seat, size, in_flight=held, replicas=sharers)
        # Recomputation makes a longer stage slower in one jump, so a shorter stage never takes more.
        rows: list[list[float]] = []
        for row in range(self.space.layers):
            times = seconds[row, row + 1 :]
            rows.append([float(value) for value in times[: int(np.isfinite(times).cumprod().sum())]])
        return rows
