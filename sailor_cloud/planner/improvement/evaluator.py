"""The exact evaluator of the search: replayed figures of a draft, from parts that are computed once.

Iteration times equal those of the replay except for rounding. Totals leave out NAT traffic; `correction` accounts for
that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from sailor_cloud.planner.evaluate.assess import Assessor, Pace
from sailor_cloud.planner.evaluate.checkpoints import checkpoints_usd_per_hour, saving_share
from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.space.draft import Draft, DraftPipeline, Rank, nodes_of, significant, to_plan
from sailor_cloud.planner.space.goals import Figure
from sailor_cloud.simulator import Gather, StageTable, boundary_pairs, evaluate, gather_delay_s
from sailor_cloud.simulator.timing.replay import PipelineTimes
from sailor_cloud.simulator.timing.schedule_ends import schedule_ends
from sailor_cloud.units import SECONDS_PER_HOUR

# Factors for figures if the simulator's bill is higher than the planner's.
Factors = Mapping[Figure, float]


@dataclass(frozen=True, slots=True)
class _Tail:
    """The end of a pipeline's schedule, in seconds of the iteration.

    The end of each stage's passes; the end of its last backward pass, without handing tensors on; and, in the next
    iteration, the time at which the first microbatch reaches it.
    """

    ends_s: tuple[float, ...]
    gradients_s: tuple[float, ...]
    tables: tuple[StageTable, ...]
    update_s: tuple[float, ...]
    reached_s: tuple[float, ...]
    cut: tuple[int, ...]


@dataclass(slots=True)
class Evaluator:
    """Evaluates drafts of one space and target; `factors` apply to comparisons."""

    assessor: Assessor
    factors: Factors = field(default_factory=dict)
    _times: dict[tuple[object, ...], PipelineTimes] = field(init=False)
    _tails: dict[tuple[object, ...], _Tail] = field(init=False)

    def __post_init__(self) -> None:
        evaluated = self.assessor.space.evaluated
        self._times = evaluated.setdefault("times of pipelines", {})
        self._tails = evaluated.setdefault("tails of pipelines", {})

    def expected(self, draft: Draft) -> Draft:
        """Return a draft with its figures under the replay."""
        if draft.expected is not None:
            return draft
        space, found = self.assessor.space, replace(draft, expected=self.figures(draft))
        if space.known.record is not None:
            space.known.record(space, found)
        return found

    def rank(self, draft: Draft) -> Rank:
        """Return the sort key of a draft, as the closed form's `Assessor.rank` does."""
        figures = self.figures(draft) if draft.expected is None else draft.expected
        scaled = {figure: value * self.factors.get(figure, 1.0) for figure, value in figures.items()}
        return self.assessor.excess(draft, scaled), (significant(figures[self.assessor.target.goal]), draft.order())

    def correction(self, draft: Draft) -> Factors:
        """Return the ratio of the replay's figures to these, for the limited figures of a draft."""
        limits, space = self.assessor.target.limits, self.assessor.space
        if not limits:
            return {}
        about = self.figures(draft)
        found = replayed(draft, evaluate(to_plan(space, draft), space.scenario))
        return {limit.figure: _ratio(float(found[limit.figure]), about[limit.figure]) for limit in limits}

    def figures(self, draft: Draft) -> Mapping[Figure, float]:
        """Return the figures of a draft under the replay, or by the engine's formulas.

        Engines with only equal pipelines have few plans, so these are simulated completely.
        """
        space = self.assessor.space
        space.known.deadline.check()
        if space.scenario.engine.formulas is not None:
            return draft.figures
        if space.scenario.engine.uniform:
            whole = evaluate(to_plan(space, draft), space.scenario)
            found = {figure: float(value) for figure, value in replayed(draft, whole).items()}
            return found if whole.fits else dict.fromkeys(found, math.inf)
        paces = self.assessor.paces(draft)
        if paces is None:
            return draft.figures
        egress = sum(
            pace.usd_per_sample * part.microbatch_size * part.microbatches
            for part, pace in zip(draft.pipelines, paces, strict=True)
        )
        numbers: dict[tuple[object, ...], int] = {}
        tails: list[_Tail] = []
        alike = []
        for part, pace in zip(draft.pipelines, paces, strict=True):
            key = (pace, part.microbatches, len(paces))
            if key not in numbers:
                numbers[key] = len(tails)
                if key not in self._tails:
                    self._tails[key] = self._tail(part, pace, len(paces))
                tails.append(self._tails[key])
            alike.append(numbers[key])
        seconds, usd = self._reduced(draft, tails, alike)
        seconds += self._crowding_s(draft, paces)
        bill = self.assessor.layout_bill(draft).bill
        assert bill is not None, "a draft keeps quotas"
        first = draft.pipelines[0]
        figures = bill.figures(seconds, egress + usd, saving=saving_share(space, first.slots, first.cut))
        found = {figure: float(value) for figure, value in figures.items()}
        if bill.steps is not None:
            training_s = bill.steps * seconds
            found[Figure.TOTAL_USD] += checkpoints_usd_per_hour(space, draft) * training_s / SECONDS_PER_HOUR
        return found

    def _reduced(self, draft: Draft, tails: Sequence[_Tail], alike: Sequence[int]) -> tuple[float, float]:
        """Return the seconds until all stages finish all-reduce, step and gather, and the USD of egress.

        `alike`: for each pipeline, the index of its tail. Equal pipelines are in the same all-reduces, so one stands
        for all of them.
        """
        engine = self.assessor.space.scenario.engine
        overlapped = engine.overlaps_sync(self.assessor.space.zero_stage)
        ends = {(number, s): end for number, tail in enumerate(tails) for s, end in enumerate(tail.ends_s)}
        through: dict[tuple[int, int], float] = {} if overlapped else dict(ends)
        usd = 0.0
        gathers: list[Gather] = []
        sharding = tails[0].tables[0].sharding
        share, gradients = sharding.gathered_share, 2.0 * sharding.gradient / sharding.total
        layout, cuts = zip(*((part.slots, part.cut) for part in draft.pipelines), strict=True)
        for each in self.assessor.sync.sums(layout, cuts):
            # A stage may hold only a tied weight, which has its own all-reduce.
            if not each.nbytes:
                continue
            members = list({(alike[p], s) for p, s in each.members})
            sum_s = each.seconds * (1.0 - share)
            end = max(through.get(member, 0.0) for member in members) + sum_s
            bucket = min(1.0, engine.bucket_bytes / (each.nbytes * gradients))
            if overlapped:
                ready = [_ready_s(tails[number], s, each.layers, bucket) for number, s in members]
                first, last = max(begun for begun, _ in ready), max(done for _, done in ready)
                end = max(end, first + sum_s, last + bucket * sum_s)
            through.update(dict.fromkeys(members, end))
            usd += each.usd
            if share:
                needed = [_needed_s(tails[number], s, each.layers, bucket) for number, s in members]
                gathers.append(Gather(members=members, seconds=each.seconds - sum_s, bucket=bucket, needed_s=needed))
        for (number, s), end in ends.items():
            through[number, s] = max(end, through.get((number, s), 0.0)) + engine.idle_s + tails[number].update_s[s]
        if engine.overlap_gather:
            return max(through.values()) + max(gather_delay_s(reversed(gathers), through).values()), usd
        for gather in gathers:
            end = max(through[member] for member in gather.members) + gather.seconds
            through.update(dict.fromkeys(gather.members, end))
        return max(through.values()), usd

    def _crowding_s(self, draft: Draft, paces: Sequence[Pace]) -> float:
        """Return the extra seconds of passes on shared cores; a pipeline's work is spread evenly over its time."""
        if not self.assessor.space.on_this_machine:
            return 0.0
        cores = self.assessor.space.cores(nodes_of(tuple(part.slots for part in draft.pipelines)).total())
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
        space, spans = self.assessor.space, list(pairwise(part.cut))
        tables = tuple(
            space.table(seat.pool, seat.tp, part.microbatch_size, recompute=again)
            for seat, again in zip(pace.seats, part.recompute, strict=True)
        )
        key = (pace.seats, pace.flows, part.cut, part.microbatch_size, part.recompute)
        if key not in self._times:
            self._times[key] = self._pipeline_times(part, pace, tables)
        times = replace(self._times[key], microbatches=part.microbatches)
        ends, begun, _ = schedule_ends(times, space.scenario.engine.transfers)
        gradients = tuple(
            begin + float(table.backward_s(*span)) for begin, table, span in zip(begun, tables, spans, strict=True)
        )
        update = tuple(float(table.update_s(*span, shards=replicas)) for table, span in zip(tables, spans, strict=True))
        reached = tuple(times.reached_s(stage) for stage in range(len(tables)))
        return _Tail(ends, gradients, tables, update, reached, part.cut)

    def _pipeline_times(self, part: DraftPipeline, pace: Pace, tables: Sequence[StageTable]) -> PipelineTimes:
        space, spans = self.assessor.space, list(pairwise(part.cut))
        handing = [float(table.handing_s(*span)) for table, span in zip(tables, spans, strict=True)]
        activation: list[float] = []
        gradient: list[float] = []
        for (src, dst), layer, shared, table in zip(
            pairwise(pace.seats), part.cut[1:-1], pace.flows, tables, strict=False
        ):
            same_node = (src.pool, src.node) == (dst.pool, dst.node)
            pairs = boundary_pairs(src.tp, dst.tp)
            tensor = float(table.boundary_bytes[layer])
            for (a, b), seconds in (((src, dst), activation), ((dst, src), gradient)):
                link = space.scenario.stage_link(
                    space.link(a.pool, b.pool, same_node=same_node, pairs=pairs, flows=shared),
                    same_node=same_node,
                )
                seconds.append(float(link.transfer_s(tensor)) + space.scenario.engine.message_s)
        return PipelineTimes(
            forward_s=tuple(
                float(t.forward_s(*span)) + more for t, span, more in zip(tables, spans, handing, strict=True)
            ),
            backward_s=tuple(
                float(t.backward_s(*span)) + more for t, span, more in zip(tables, spans, handing, strict=True)
            ),
            activation_s=tuple(activation),
            gradient_s=tuple(gradient),
            microbatches=1,
        )


def _ready_s(tail: _Tail, stage: int, layers: tuple[int, int] | None, bucket: float) -> tuple[float, float]:
    """Return when a stage has the first bucket of a group's gradients, a share of them, and all of them."""
    done = tail.gradients_s[stage]
    if layers is None:
        return done, done
    table, held = tail.tables[stage], tail.cut[stage : stage + 2]
    first, end = max(layers[0], held[0]), min(layers[1], held[1])
    last = done - float(table.backward_s(held[0], first))
    return last - (1.0 - bucket) * float(table.backward_s(first, end)), last


def _needed_s(tail: _Tail, stage: int, layers: tuple[int, int] | None, bucket: float) -> tuple[float, float]:
    """Return when the next iteration uses the first and the last gathered weights of layers, as in the simulator."""
    table, (held, stop) = tail.tables[stage], tail.cut[stage : stage + 2]
    first, end = (held, held + 1) if layers is None else (max(layers[0], held), min(layers[1], stop))
    if layers is None and held:
        first, end = stop - 1, stop
    begun = tail.reached_s[stage] + float(table.forward_s(held, first))
    return begun, begun + (1.0 - bucket) * float(table.forward_s(first, end))


def _ratio(found: float, about: float) -> float:
    """Return the factor by which an estimate is wrong; 1 for an estimate of 0."""
    return found / about if about else 1.0
