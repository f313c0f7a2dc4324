"""Estimates what the replay will find of drafts: gradient sums run beside the last backward passes.

The closed form, by which plans are searched and bounded, begins the sums when all passes are over. Here a stage is
through with its passes as much sooner than its pipeline as the last microbatch takes from it back to the first stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from sailor_cloud.planner.assess import Assessor, Pace
from sailor_cloud.planner.draft import Draft, DraftPipeline, Rank, nodes_of, significant, to_plan
from sailor_cloud.planner.goals import Figure
from sailor_cloud.planner.replayed import replayed
from sailor_cloud.simulator import StageTable, evaluate

# By what to multiply estimated figures, where they are known to be off.
Factors = Mapping[Figure, float]


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a pipeline's schedule: when stages are through with their passes, as seconds of the iteration."""

    ends_s: tuple[float, ...]
    tables: tuple[StageTable, ...]
    update_s: tuple[float, ...]
    cut: tuple[int, ...]


@dataclass(slots=True)
class Overlap:
    """Estimates of one space and target; `factors` are heeded where drafts are compared."""

    assessor: Assessor
    factors: Factors = field(default_factory=dict)

    def expected(self, draft: Draft) -> Draft:
        """Return a draft with about its figures under the replay."""
        return draft if draft.expected is not None else replace(draft, expected=self.figures(draft))

    def rank(self, draft: Draft) -> Rank:
        """Return what drafts are compared by, as the closed form's `Assessor.rank` does."""
        figures = self.figures(draft) if draft.expected is None else draft.expected
        scaled = {figure: value * self.factors.get(figure, 1.0) for figure, value in figures.items()}
        return self.assessor.excess(draft, scaled), (significant(figures[self.assessor.target.goal]), draft.order())

    def measured(self, draft: Draft) -> Factors:
        """Return by how much the limited figures of a draft under the replay differ from the estimated ones.

        The simulator's bill holds what the planner's leaves out, so that this matters where money is limited.
        """
        limits, space = self.assessor.target.limits, self.assessor.space
        if not limits:
            return {}
        about = self.figures(draft)
        found = replayed(draft, evaluate(to_plan(space, draft), space.scenario))
        return {limit.figure: float(found[limit.figure]) / about[limit.figure] for limit in limits}

    def figures(self, draft: Draft) -> Mapping[Figure, float]:
        """Return about the figures of a draft under the replay."""
        paces = self.assessor.paces(draft) if self.assessor.space.scenario.engine.overlap_sync else None
        if paces is None:
            return draft.figures
        egress = sum(
            pace.usd_per_sample * part.microbatch_size * part.microbatches
            for part, pace in zip(draft.pipelines, paces, strict=True)
        )
        numbers: dict[tuple[int, int], int] = {}
        tails: list[_Tail] = []
        alike = []
        for part, pace in zip(draft.pipelines, paces, strict=True):
            key = (id(pace), part.microbatches)
            if key not in numbers:
                numbers[key] = len(tails)
                tails.append(self._tail(part, pace, len(paces)))
            alike.append(numbers[key])
        seconds, usd = self._summed(draft, tails, alike)
        seconds += self._crowding_s(draft, paces)
        bill = self.assessor.standing(draft).bill
        assert bill is not None, "a draft keeps quotas"
        figures = bill.figures(np.array(seconds), np.array(egress + usd))
        return {figure: float(value) for figure, value in figures.items()}

    def _summed(self, draft: Draft, tails: Sequence[_Tail], alike: Sequence[int]) -> tuple[float, float]:
        """Return the seconds until all stages are through with sums, steps and gathers, and the sums' USD of egress.

        `alike`: of each pipeline the number of its tail.
        """
        bucket_bytes = self.assessor.space.scenario.engine.bucket_bytes
        through: dict[tuple[int, int], float] = {}
        usd = 0.0
        gathers: list[tuple[tuple[tuple[int, int], ...], float]] = []
        share = tails[0].tables[0].sharding.gathered_share
        layout, cuts = zip(*((part.slots, part.cut) for part in draft.pipelines), strict=True)
        for each in self.assessor.sync.sums(layout, cuts):
            # A stage may hold nothing but a tied weight, which is summed apart.
            if not each.nbytes:
                continue
            bucket = min(1.0, bucket_bytes / (each.nbytes * (1.0 - share)))
            ready = [
                _ready_s(tails[number], s, each.layers, bucket)
                for number, s in {(alike[p], s) for p, s in each.members}
            ]
            first, last = max(begun for begun, _ in ready), max(done for _, done in ready)
            start = max(first, max(through.get(member, 0.0) for member in each.members))
            sum_s = each.seconds * (1.0 - share)
            through.update(dict.fromkeys(each.members, max(start + sum_s, last + bucket * sum_s)))
            usd += each.usd
            gathers.append((each.members, each.seconds - sum_s))
        alone = max(end + update for tail in tails for end, update in zip(tail.ends_s, tail.update_s, strict=True))
        for (p, s), end in through.items():
            tail = tails[alike[p]]
            through[p, s] = max(end, tail.ends_s[s]) + tail.update_s[s]
        if share:
            for members, gather_s in gathers:
                through.update(dict.fromkeys(members, max(through[member] for member in members) + gather_s))
        return max([alone, *through.values()]), usd

    def _crowding_s(self, draft: Draft, paces: Sequence[Pace]) -> float:
        """Return by how much longer passes take where ranks share cores, each pipeline's work spread over its time."""
        cores = self.assessor.space.cores(nodes_of(tuple(part.slots for part in draft.pipelines)).total())
        if not np.isfinite(cores):
            return 0.0
        counts = [part.microbatches for part in draft.pipelines]
        ends = [pace.schedule_s(count) for pace, count in zip(paces, counts, strict=True)]
        work = [pace.passes_core_s * count for pace, count in zip(paces, counts, strict=True)]
        lanes = sorted(zip(ends, work, strict=True))
        longer, before = 0.0, 0.0
        for number, (end, _) in enumerate(lanes):
            running = sum(spent / until for until, spent in lanes[number:])
            longer += (end - before) * max(0.0, running / cores - 1.0)
            before = end
        return longer

    def _tail(self, part: DraftPipeline, pace: Pace, replicas: int) -> _Tail:
        space = self.assessor.space
        tables = tuple(
            space.table(seat.pool, seat.tp, part.microbatch_size, recompute=again)
            for seat, again in zip(pace.seats, part.recompute, strict=True)
        )
        spans = list(pairwise(part.cut))
        ends = [pace.schedule_s(part.microbatches)]
        for table, span, cut_s in zip(tables[:-1], spans[:-1], pace.cuts_s, strict=True):
            # Of a cut's time the gradient's way is about half.
            ends.append(ends[-1] - float(table.backward_s(*span)) - cut_s / 2.0)
        update = (float(table.update_s(*span, shards=replicas)) for table, span in zip(tables, spans, strict=True))
        return _Tail(tuple(ends), tables, tuple(update), part.cut)


def _ready_s(tail: _Tail, stage: int, layers: tuple[int, int] | None, bucket: float) -> tuple[float, float]:
    """Return when a stage has the first bucket of the gradients of layers, a share of them, and when it has all."""
    end_s = tail.ends_s[stage]
    if layers is None:
        return end_s, end_s
    table, held = tail.tables[stage], tail.cut[stage : stage + 2]
    first, end = max(layers[0], held[0]), min(layers[1], held[1])
    last = end_s - float(table.backward_s(held[0], first))
    return last - (1.0 - bucket) * float(table.backward_s(first, end)), last
