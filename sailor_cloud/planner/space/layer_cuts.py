"""Divides the layers among consecutive stages so that the busiest run of stages takes as little time as possible.

Where transfers overlap with computation, each microbatch adds at least the mean of any run of stages and the transfers
between them to the schedule. So stages beside a slow link get fewer layers.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.simulator import Transfers

# The most stages of a pipeline of a large job.
MAX_STAGES = 64
# The bisections for the least time of the busiest stage, and of the busiest run, end with an interval of this share.
_PRECISION, _OF_RUNS = 0.002, 0.02
# The share of a transfer that the stages up to it make up for, of those that are tried; the next ones do the rest.
_AHEAD = 0.5, 1.0, 0.0

# For every first layer, the seconds of one, two, ... layers as far as they fit in memory.
_Ends = list[list[float]]
# The accelerator, the devices, the microbatch size, the microbatches in flight, the replicas and the ZeRO stage.
_Kind = tuple[str, int, int, int, int, int]


@dataclass
class Cutter:
    """Cuts by time and memory; the times of stages are kept.

    `transfers`: whether cuts allow for transfers, as 1F1B needs. Plans with other schedules are faster without.
    """

    space: Space
    transfers: bool = True
    _ends: dict[_Kind, tuple[_Ends, float]] = field(init=False)
    # Cuts and seconds without transfers, by the kinds of the stages and whether their numbers of layers are even.
    _plain: dict[tuple[tuple[_Kind, ...], bool], tuple[tuple[int, ...], float] | None] = field(init=False)

    def __post_init__(self) -> None:
        self._plain = self.space.known.searches.setdefault("cuts without transfers", {})
        self._ends = self.space.known.searches.setdefault("ends of stages", {})

    def cut(
        self, seats: Sequence[Seat], *, size: int, microbatches: int, replicas: int
    ) -> tuple[tuple[int, ...], float] | None:
        """Return the cut of one of `replicas` pipelines with nearly the least busiest run, and the run's mean seconds.

        Each stage takes as many layers as it can, so with very unequal layers others may be better. None if there are
        more stages than layers, or if no cut fits.
        """
        stages = len(seats)
        if stages > self.space.layers:
            return None
        kinds = tuple(
            self._kind(seat, size, min(stages - s, microbatches), min(replicas, 2)) for s, seat in enumerate(seats)
        )
        timed = [self._table(kind, seat) for kind, seat in zip(kinds, seats, strict=True)]
        tables = [table for table, _ in timed]
        if self.space.even_layers:
            _, longest = self.space.lengths(stages)
            tables = [[row[:longest] for row in table] for table in tables]
        key = kinds, self.space.even_layers
        if key not in self._plain:
            self._plain[key] = self._without_transfers(tables, max(most for _, most in timed))
        best = self._plain[key]
        if best is None:
            return None
        waits = self._waits(seats, size) if self.transfers else None
        return best if waits is None else self._around(waits, tables, *best)

    def _without_transfers(self, tables: list[_Ends], most_s: float) -> tuple[tuple[int, ...], float] | None:
        """Return the cut with nearly the least busiest stage, and its seconds; None if no cut fits."""
        low, best = 0.0, self._greedy(tables, most_s)
        if best is None:
            return None
        while best[1] > low * (1.0 + _PRECISION):
            middle = 0.5 * (low + best[1])
            better = self._greedy(tables, middle)
            # A stage may take slightly less time with one more layer, so the result may not be faster.
            low, best = (low, better) if better is not None and better[1] < best[1] else (middle, best)
        return best

    def _around(
        self, waits: Sequence[float], tables: list[_Ends], cut: tuple[int, ...], busiest_s: float
    ) -> tuple[tuple[int, ...], float]:
        """Return the same with transfers; `cut` and `busiest_s` are without them."""
        # Each direction of a cut is a limit of its own.
        middle = low = max(busiest_s, 0.5 * max(waits)) * (1.0 + _PRECISION)
        high = low + max(waits)
        while high > low * (1.0 + _OF_RUNS):
            every = (self._greedy(tables, middle, waits, ahead) for ahead in _AHEAD)
            found = next(filter(None, every), None)
            low, high, cut = (middle, high, cut) if found is None else (low, middle, found[0])
            middle = 0.5 * (low + high)
        return cut, high

    def _waits(self, seats: Sequence[Seat], size: int) -> list[float] | None:
        """Return the seconds of the transfers between stages on different nodes, as if all nodes were full.

        None if there are none, or if stages wait for them anyway.
        """
        space, waits = self.space, [0.0] * len(seats)
        nodes = {(pool, node) for pool, _, node in seats}
        if len(nodes) < 2 or space.scenario.engine.transfers is not Transfers.OVERLAPPED:
            return None
        used = dict.fromkeys(nodes, 0)
        for pool, tp, node in seats:
            used[pool, node] += tp
        for s, (src, dst) in enumerate(pairwise(seats)):
            if (src.pool, src.node) != (dst.pool, dst.node):
                flows = [max(1, space.pools[seat.pool].devices // used[seat.pool, seat.node]) for seat in (src, dst)]
                waits[s] = float(space.boundary(src, dst, size, flows=max(flows))[space.layers // 2])
        return waits

    def _greedy(
        self, tables: list[_Ends], most_s: float, waits: Sequence[float] = (), ahead: float = 0.0
    ) -> tuple[tuple[int, ...], float] | None:
        """Give each stage as many layers as keep all stages, or the means of all runs with `waits`, up to `most_s`.

        Stages leave room for a share `ahead` of the next transfer if they can. Return the cut and the busiest stage's
        seconds.
        """
        layers, first, busiest_s, before_s = self.space.layers, 0, 0.0, 0.0
        borders = [first]
        least, _ = self.space.lengths(len(tables))
        most = layers - least * len(tables)
        for number, table in enumerate(tables):
            row = table[first]
            taken = bisect_right(row, most_s - before_s)
            if ahead and taken > least:
                taken = max(least, bisect_right(row, most_s - before_s - ahead * waits[number]))
            if taken < least:
                return None
            most += least
            taken = min(taken, most - first)
            seconds = row[taken - 1]
            busiest_s = max(busiest_s, seconds)
            if waits:
                # By how much runs up to here and the transfer exceed their share, which the next stage makes up for.
                before_s = max(0.0, before_s + seconds + waits[number] - most_s)
            first += taken
            borders.append(first)
        return (tuple(borders), busiest_s) if first == layers else None

    def _kind(self, seat: Seat, size: int, held: int, sharers: int) -> _Kind:
        """Return what the times of a stage depend on, besides its layers."""
        return self.space.pools[seat.pool].accelerator.name, seat.tp, size, held, sharers, self.space.zero_stage

    def _table(self, kind: _Kind, seat: Seat) -> tuple[_Ends, float]:
        """Return, for every first layer, the seconds of one, two, ... layers as far as they fit, and the most."""
        if kind not in self._ends:
            ends = self._build(seat, *kind[2:5])
            self._ends[kind] = ends, max((row[-1] for row in ends if row), default=0.0)
        return self._ends[kind]

    def _build(self, seat: Seat, size: int, held: int, sharers: int) -> _Ends:
        seconds = self.space.stages_s(seat, size, in_flight=held, replicas=sharers)
        # Recomputation makes a longer stage slower in one jump, so a shorter stage never takes more.
        layers = self.space.layers
        fits = np.isfinite(seconds[:layers, 1:]) | np.tri(layers, k=-1, dtype=bool)
        ends = np.logical_and.accumulate(fits, axis=1).sum(axis=1).tolist()
        return [row[first + 1 : end + 1] for first, (row, end) in enumerate(zip(seconds.tolist(), ends, strict=False))]
