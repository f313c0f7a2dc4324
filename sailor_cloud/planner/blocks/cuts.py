"""Shares the layers out over a row of stages, so that the busiest is busy as short as possible."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.chains import after_share
from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.simulator import Execution, busy_s
from sailor_cloud.simulator.scenario import Transfers

# Halvings of the interval in which the least time of the busiest stage lies.
_HALVINGS = 14
# Where tensors make no stage busier than this times what it computes they don't matter. Else so many times are tried at
# once, so often, each time between two neighbours of the times before.
_CLOSE = 1.001
_AT_ONCE, _TURNS = 8, 2

Floats = NDArray[np.float64]


@dataclass
class Cutter:
    """Cuts by time and memory; the times of stages are kept."""

    space: Space
    _ends: dict[tuple[str, int, int, int, int, int], list[list[float]]] = field(init=False)

    def __post_init__(self) -> None:
        self._ends = self.space.known.searches.setdefault("ends of stages", {})

    def cut(
        self, seats: Sequence[Seat], size: int, microbatches: int, replicas: int
    ) -> tuple[tuple[int, ...], float] | None:
        """Return the cut of one of `replicas` pipelines and the seconds of the busiest stage, or None."""
        stages = len(seats)
        if stages > self.space.layers:
            return None
        tables = [
            self._table(seat, size, min(stages - s, microbatches), min(replicas, 2)) for s, seat in enumerate(seats)
        ]
        high = max((table[0][-1] for table in tables if table[0]), default=0.0)
        found = self._greedy(tables, high)
        if found is None:
            return None
        low = 0.0
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            better = self._greedy(tables, middle)
            if better is None:
                low = middle
            else:
                high, found = middle, better
        return found, high

    def cuts(
        self, seats: Sequence[Seat], size: int, microbatches: int, replicas: int, flows: Sequence[int]
    ) -> list[tuple[int, ...]]:
        """Return the cut with the busiest stage that computes least, and one that counts tensors if that is another.

        `flows`: for each cut, how many share its network card. Arguments else as of `cut`.
        """
        found = self.cut(seats, size, microbatches, replicas)
        if found is None:
            return []
        plain, longest_s = found
        waits = _Waits.of(self.space, seats, size, microbatches, replicas, flows)
        busy_s = waits.busy_s(plain)
        if busy_s <= longest_s * _CLOSE:
            return [plain]
        other = waits.cut(longest_s * (1.0 - 2.0**-_HALVINGS), busy_s)
        return [plain] if other is None or other == plain else [plain, other]

    def _greedy(self, tables: list[list[list[float]]], most_s: float) -> tuple[int, ...] | None:
        """Give each stage as many layers as it gets through in time."""
        layers, borders = self.space.layers, [0]
        for s, table in enumerate(tables):
            first = borders[-1]
            taken = bisect_right(table[first], most_s)
            if taken == 0:
                return None
            borders.append(min(first + taken, layers - (len(tables) - 1 - s)))
        return tuple(borders) if borders[-1] == layers else None

    def _table(self, seat: Seat, size: int, held: int, sharers: int) -> list[list[float]]:
        """Return, for every first layer, the seconds of one, two, ... layers as far as they fit in memory."""
        key = (self.space.pools[seat.pool].accelerator.name, seat.tp, size, held, sharers, self.space.zero_stage)
        if key not in self._ends:
            self._ends[key] = self._build(seat, size, held, sharers)
        return self._ends[key]

    def _build(self, seat: Seat, size: int, held: int, sharers: int) -> list[list[float]]:
        seconds = self.space.stages_s(seat, size, in_flight=held, replicas=sharers)
        # Recomputation makes a longer stage slower at once; what a shorter one takes is never more.
        rows: list[list[float]] = []
        for row in range(self.space.layers):
            times = seconds[row, row + 1 :]
            rows.append([float(value) for value in times[: int(np.isfinite(times).cumprod().sum())]])
        return rows


@dataclass(frozen=True, slots=True)
class _Waits:
    """What stages of one pipeline compute, [layers + 1, layers + 1] each, and the cuts between them, [layers + 1]."""

    execution: Execution
    compute_s: list[Floats]
    cuts_s: list[Floats]

    @classmethod
    def of(
        cls, space: Space, seats: Sequence[Seat], size: int, microbatches: int, replicas: int, flows: Sequence[int]
    ) -> _Waits:
        stages = len(seats)
        return cls(
            execution=space.scenario.execution,
            compute_s=[
                space.stages_s(seat, size, in_flight=min(stages - s, microbatches), replicas=min(replicas, 2))
                for s, seat in enumerate(seats)
            ],
            cuts_s=[
                space.boundary(src, dst, size, flows=shared)
                for (src, dst), shared in zip(pairwise(seats), flows, strict=True)
            ],
        )

    def busy_s(self, cut: Sequence[int]) -> float:
        """Return how long the busiest stage of a cut is busy with a microbatch."""
        compute = np.array([each[span] for each, span in zip(self.compute_s, pairwise(cut), strict=True)])
        between = np.array([each[layer] for each, layer in zip(self.cuts_s, cut[1:-1], strict=True)])
        return float(busy_s(compute, between, execution=self.execution).max())

    def cut(self, low: float, high: float) -> tuple[int, ...] | None:
        """Return about the cut whose busiest stage is busy shortest; None where no cut keeps below `high`."""
        found: tuple[int, ...] | None = None
        for _ in range(_TURNS):
            limits = np.linspace(low, high, _AT_ONCE + 1)[1:]
            kept = self._within(limits)
            at = next((number for number, cut in enumerate(kept) if cut is not None), None)
            if at is None:
                break
            found, low, high = kept[at], low if at == 0 else float(limits[at - 1]), float(limits[at])
        return found

    def _within(self, limits: Floats) -> list[tuple[int, ...] | None]:
        """Return for each limit a cut with which no stage is busy for longer, None where there is none.

        Overlapped transfers make runs of neighbours wait that hand microbatches round: the mean of what they compute
        and of the cuts between them is how long they are busy. The excess of a run's sum over as many limits as it has
        stages is kept for the worst run that ends with a stage.
        """
        overlapped = self.execution.transfers is Transfers.OVERLAPPED
        after = after_share(self.execution)
        layers = len(self.compute_s[0]) - 1
        excess = np.full((len(limits), layers + 1), np.inf)
        excess[:, 0] = 0.0
        begins = []
        for s, compute in enumerate(self.compute_s):
            before = self.cuts_s[s - 1] if s else np.zeros(layers + 1)
            behind = self.cuts_s[s] if s < len(self.cuts_s) else np.zeros(layers + 1)
            if overlapped:
                begun = np.where(before / 2.0 <= limits[:, None], np.maximum(excess + before, 0.0), np.inf)
                begun = begun if s else excess
                busy = compute
            else:
                begun = np.where(np.isfinite(excess), 0.0, np.inf)
                busy = compute + before[:, None] + after * behind
            total = begun[:, :, None] + busy - limits[:, None, None]
            begin = total.argmin(axis=1)
            excess = np.take_along_axis(total, begin[:, None], axis=1)[:, 0]
            excess = np.where(excess <= 0.0, excess, np.inf)
            begins.append(begin)
        return [
            self._traced([begin[number] for begin in begins]) if np.isfinite(excess[number, layers]) else None
            for number in range(len(limits))
        ]

    def _traced(self, begins: Sequence[NDArray[np.int64]]) -> tuple[int, ...]:
        cut = [len(self.compute_s[0]) - 1]
        for begin in reversed(begins):
            cut.append(int(begin[cut[-1]]))
        return tuple(reversed(cut))
