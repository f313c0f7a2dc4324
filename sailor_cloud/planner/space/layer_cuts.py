"""Divides the layers among consecutive stages so that the busiest one computes as little as possible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sailor_cloud.planner.space.space import Seat, Space

# The most stages of a pipeline of a large job.
MAX_STAGES = 24
# Halvings of the interval that holds the least time of the busiest stage.
_HALVINGS = 14

# For every first layer, the seconds of one, two, ... layers as far as they fit in memory.
_Ends = list[list[float]]


@dataclass
class Cutter:
    """Cuts by time and memory; the times of stages are kept."""

    space: Space
    _ends: dict[tuple[str, int, int, int, int, int], _Ends] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = self.space.known.searches.setdefault("ends of stages", {})

    def cut(
        self, seats: Sequence[Seat], *, size: int, microbatches: int, replicas: int
    ) -> tuple[tuple[int, ...], float] | None:
        """Return the cut of one of `replicas` pipelines with the least busiest stage, and its seconds.

        None if there are more stages than layers, or if no cut fits.
        """
        stages = len(seats)
        if stages > self.space.layers:
            return None
        tables = [
            self._table(seat, size, min(stages - s, microbatches), min(replicas, 2)) for s, seat in enumerate(seats)
        ]
        if self.space.even_layers:
            _, longest = self.space.lengths(stages)
            tables = [[row[:longest] for row in table] for table in tables]
        low, high = 0.0, max((row[-1] for table in tables for row in table if row), default=0.0)
        found = self._greedy(tables, high)
        if found is None:
            return None
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            better = self._greedy(tables, middle)
            if better is None:
                low = middle
            else:
                high, found = middle, better
        return found, high

    def _greedy(self, tables: list[_Ends], most_s: float) -> tuple[int, ...] | None:
        """Give each stage as many layers as it can compute in time."""
        layers, borders = self.space.layers, [0]
        least, _ = self.space.lengths(len(tables))
        for s, table in enumerate(tables):
            first = borders[-1]
            taken = bisect_right(table[first], most_s)
            if taken < least:
                return None
            borders.append(min(first + taken, layers - least * (len(tables) - 1 - s)))
        return tuple(borders) if borders[-1] == layers else None

    def _table(self, seat: Seat, size: int, held: int, sharers: int) -> _Ends:
        """Return, for every first layer, the seconds of one, two, ... layers as far as they fit in memory."""
        key = (self.space.pools[seat.pool].accelerator.name, seat.tp, size, held, sharers, self.space.zero_stage)
        if key not in self._ends:
            self._ends[key] = self._build(seat, size, held, sharers)
        return self._ends[key]

    def _build(self, seat: Seat, size: int, held: int, sharers: int) -> _Ends:
        seconds = self.space.stages_s(seat, size, in_flight=held, replicas=sharers)
        # Recomputation makes a longer stage slower in one jump, so a shorter stage never takes more.
        rows: list[list[float]] = []
        for row in range(self.space.layers):
            times = seconds[row, row + 1 :]
            rows.append([float(value) for value in times[: int(np.isfinite(times).cumprod().sum())]])
        return rows
