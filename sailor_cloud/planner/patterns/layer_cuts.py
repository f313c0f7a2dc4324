"""Shares the layers out over a row of stages, so that the busiest is busy as short as possible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.patterns.pipeline_time import Schedule, UncutPipeline
from sailor_cloud.planner.space.space import Seat, Space

# Halvings of the interval in which the least time of the busiest stage lies.
_HALVINGS = 14
# Where tensors make no stage busier than this times what it computes they don't matter; nor do sums below that share of
# an iteration.
_CLOSE = 1.001
_SHORT = 0.005

Floats = NDArray[np.float64]
# For every first layer the seconds of one, two, ... layers as far as they fit in memory.
_Ends = list[list[float]]


@dataclass
class Cutter:
    """Cuts by time and memory; the times of stages are kept."""

    space: Space
    _ends: dict[tuple[str, int, int, int, int, int], _Ends] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = self.space.known.searches.setdefault("ends of stages", {})

    def cut(self, pipeline: UncutPipeline) -> tuple[tuple[int, ...], float] | None:
        """Return the cut of a pipeline and the seconds that its busiest stage computes, or None."""
        tables = self._tables(pipeline)
        return None if tables is None else self._shortest(tables)

    def fastest(self, pipeline: UncutPipeline, sums_s: Sequence[Floats]) -> tuple[int, ...] | None:
        """Return about the cut of a pipeline that makes an iteration shortest, None where there is none.

        It is the one with the busiest stage that computes least, or one that takes layers from the stages whose
        all-reduces are longest, or either with tensors that stages wait for counted. `sums_s`
        [layers + 1, layers + 1] of each stage: the seconds of its sum by first and end layer.
        """
        tables = self._tables(pipeline)
        found = None if tables is None else self._shortest(tables)
        if tables is None or found is None:
            return None
        schedule = Schedule.of(self.space, pipeline, sums_s)
        cuts = [found]
        capped = self._capped(tables, schedule, *found)
        if capped is not None:
            cuts.append(capped)
        chosen = {cut: schedule.seconds(cut) for cut, _ in cuts}
        for cut, longest_s in cuts:
            busy_s = schedule.busy_s(cut)
            if busy_s > longest_s * _CLOSE:
                most_s = schedule.sum_s(cut) if cut != found[0] else np.inf
                other = schedule.cut(longest_s * (1.0 - 2.0**-_HALVINGS), busy_s, most_s=most_s)
                if other is not None:
                    chosen.setdefault(other, schedule.seconds(other))
        return min(chosen, key=lambda cut: (chosen[cut], cut))

    def _capped(
        self, tables: list[_Ends], schedule: Schedule, cut: tuple[int, ...], longest_s: float
    ) -> tuple[tuple[int, ...], float] | None:
        """Return the cut that makes an iteration shortest of those with ever shorter sums, and its busiest stage."""
        best_s, best, first_s = schedule.seconds(cut), None, longest_s
        while True:
            sum_s = schedule.sum_s(cut)
            # Nothing is won where the time of sums left can't make up for how much longer stages compute.
            if sum_s <= _SHORT * best_s or schedule.steady_s(longest_s - first_s) >= sum_s:
                return best
            most = schedule.most_layers(sum_s * (1.0 - 1e-9))
            found = self._shortest(tables, low=longest_s * (1.0 - 2.0**-_HALVINGS), most=most)
            if found is None:
                return best
            cut, longest_s = found
            seconds = schedule.seconds(cut)
            if seconds < best_s:
                best_s, best = seconds, found

    def _shortest(
        self, tables: list[_Ends], *, low: float = 0.0, most: Sequence[Sequence[int]] | None = None
    ) -> tuple[tuple[int, ...], float] | None:
        """Return the cut whose busiest stage computes least, and how long; `low` is known to be no more than that.

        `most`: how many layers each stage may have from each layer on.
        """
        high = max((row[-1] for table in tables for row in table if row), default=0.0)
        found = self._greedy(tables, high, most)
        if found is None:
            return None
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            better = self._greedy(tables, middle, most)
            if better is None:
                low = middle
            else:
                high, found = middle, better
        return found, high

    def _tables(self, pipeline: UncutPipeline) -> list[_Ends] | None:
        """Return the table of every stage, None where there are more stages than layers."""
        stages = len(pipeline.seats)
        if stages > self.space.layers:
            return None
        tables = [
            self._table(seat, pipeline.size, min(stages - s, pipeline.microbatches), min(pipeline.replicas, 2))
            for s, seat in enumerate(pipeline.seats)
        ]
        if not self.space.even_layers:
            return tables
        _, longest = self.space.lengths(stages)
        return [[row[:longest] for row in table] for table in tables]

    def _greedy(
        self, tables: list[_Ends], most_s: float, most: Sequence[Sequence[int]] | None
    ) -> tuple[int, ...] | None:
        """Give each stage as many layers as it gets through in time."""
        layers, borders = self.space.layers, [0]
        least, _ = self.space.lengths(len(tables))
        for s, table in enumerate(tables):
            first = borders[-1]
            taken = bisect_right(table[first], most_s)
            if most is not None:
                taken = min(taken, most[s][first])
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
        # Recomputation makes a longer stage slower at once; what a shorter one takes is never more.
        rows: list[list[float]] = []
        for row in range(self.space.layers):
            times = seconds[row, row + 1 :]
            rows.append([float(value) for value in times[: int(np.isfinite(times).cumprod().sum())]])
        return rows
