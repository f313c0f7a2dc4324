"""What an iteration of one of several equal pipelines takes, for every way to cut it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.simulator import Engine, busy_s, fill_s
from sailor_cloud.simulator.engines import Transfers

# So many times are tried at once, so often, each time between two neighbours of the times before.
_AT_ONCE, _TURNS = 8, 2

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UncutPipeline:
    """A pipeline that isn't cut yet, one of `replicas`; `flows`: how many share the network card at each cut."""

    seats: tuple[Seat, ...]
    flows: tuple[int, ...]
    size: int
    microbatches: int
    replicas: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """Seconds of a pipeline's stages: compute and all-reduces [layers + 1, layers + 1], cuts [layers + 1]."""

    engine: Engine
    microbatches: int
    compute_s: list[Floats]
    cuts_s: list[Floats]
    sums_s: Sequence[Floats]

    @classmethod
    def of(cls, space: Space, pipeline: UncutPipeline, sums_s: Sequence[Floats]) -> Schedule:
        seats, count = pipeline.seats, pipeline.microbatches
        compute_s = [
            space.stages_s(
                seat, pipeline.size, in_flight=min(len(seats) - s, count), replicas=min(pipeline.replicas, 2)
            )
            for s, seat in enumerate(seats)
        ]
        if space.even_layers:
            allowed = space.holding(*space.lengths(len(seats)))
            compute_s = [np.where(allowed, each, np.inf) for each in compute_s]
        return cls(
            engine=space.scenario.engine,
            microbatches=count,
            compute_s=compute_s,
            cuts_s=[
                space.boundary(src, dst, pipeline.size, flows=shared)
                for (src, dst), shared in zip(pairwise(seats), pipeline.flows, strict=True)
            ],
            sums_s=sums_s,
        )

    def seconds(self, cut: Sequence[int]) -> float:
        """Return the seconds of an iteration but for the optimizer step."""
        compute, between = self._of(cut)
        busy = float(busy_s(compute, between, engine=self.engine).max())
        return self.steady_s(busy) + float(fill_s(compute, between)) + self.sum_s(cut)

    def steady_s(self, busy_s: float) -> float:
        """Return the seconds of all microbatches but the first where each keeps some stage busy for so long."""
        return (self.microbatches - 1) * busy_s

    def busy_s(self, cut: Sequence[int]) -> float:
        """Return how long the busiest stage of a cut is busy with a microbatch."""
        return float(busy_s(*self._of(cut), engine=self.engine).max())

    def sum_s(self, cut: Sequence[int]) -> float:
        """Return the seconds of the longest all-reduce; those of different stages run at once."""
        return max(float(each[span]) for each, span in zip(self.sums_s, pairwise(cut), strict=True))

    def most_layers(self, most_s: float) -> list[list[int]]:
        """Return how many layers each stage may have, from each layer on, so that its sum takes no longer.

        Nor with fewer layers, which may go over their links more slowly.
        """
        counts: dict[int, list[int]] = {}
        for each in self.sums_s:
            if id(each) not in counts:
                short = np.logical_and.accumulate(np.triu(each <= most_s, 1) | np.tri(len(each), dtype=bool), axis=1)
                counts[id(each)] = np.triu(short, 1).sum(axis=1).tolist()
        return [counts[id(each)] for each in self.sums_s]

    def _of(self, cut: Sequence[int]) -> tuple[Floats, Floats]:
        compute = np.array([each[span] for each, span in zip(self.compute_s, pairwise(cut), strict=True)])
        between = np.array([each[layer] for each, layer in zip(self.cuts_s, cut[1:-1], strict=True)])
        return compute, between

    def cut(self, low: float, high: float, *, most_s: float) -> tuple[int, ...] | None:
        """Return about the cut whose busiest stage is busy shortest; None where no cut keeps below `high`.

        No sum takes longer than `most_s`.
        """
        allowed = [
            np.where(sums <= most_s, each, np.inf) for each, sums in zip(self.compute_s, self.sums_s, strict=True)
        ]
        found: tuple[int, ...] | None = None
        for _ in range(_TURNS):
            limits = np.linspace(low, high, _AT_ONCE + 1)[1:]
            kept = self._within(limits, allowed)
            at = next((number for number, cut in enumerate(kept) if cut is not None), None)
            if at is None:
                break
            found, low, high = kept[at], low if at == 0 else float(limits[at - 1]), float(limits[at])
        return found

    def _within(self, limits: Floats, compute_s: Sequence[Floats]) -> list[tuple[int, ...] | None]:
        """Return for each limit a cut with which no stage is busy for longer, None where there is none.

        Overlapped transfers make runs of neighbours wait that hand microbatches round: the mean of what they compute
        and of the cuts between them is how long they are busy. The excess of a run's sum over as many limits as it has
        stages is kept for the worst run that ends with a stage.
        """
        overlapped = self.engine.transfers is Transfers.OVERLAPPED
        after = after_share(self.engine)
        layers = len(compute_s[0]) - 1
        excess = np.full((len(limits), layers + 1), np.inf)
        excess[:, 0] = 0.0
        begins = []
        for s, compute in enumerate(compute_s):
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


def after_share(engine: Engine) -> float:
    """Return which part of the cut after a stage keeps it busy, as far as that can be said of one stage alone."""
    return {Transfers.BLOCKING: 1.0, Transfers.RECEIVER: 0.5, Transfers.OVERLAPPED: 0.0}[engine.transfers]
