"""The time of one iteration: closed form and replay, the waits of each stage, and a timeline."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sailor_cloud.catalog.providers import of
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import Waits
from sailor_cloud.model.plan import PipelineSchedule
from sailor_cloud.simulator.engine import Formulas, StagePlace, Transfers, uniform_pipelines
from sailor_cloud.simulator.layout import Layout, Seat
from sailor_cloud.simulator.timing.card import cut_flows
from sailor_cloud.simulator.timing.closed_form import boundary_pairs, filled_s, interleaved_s, pipeline_s
from sailor_cloud.simulator.timing.replay import PipelineReplay, PipelineTimes, Span, replay
from sailor_cloud.simulator.timing.schedule_ends import schedule_ends
from sailor_cloud.simulator.timing.sync import (
    Gather,
    SyncGroup,
    Traffic,
    gather_delay_s,
    makespan_s,
    sync_groups,
    traffic,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SharedClock:
    """Converts times of a schedule with one core per rank into times on shared cores.

    Both arrays increase from 0, shape [knots]. Time is linear between knots and advances at the original pace after the
    last.
    """

    alone_s: Floats
    shared_s: Floats

    @classmethod
    def of(cls, busy: Iterable[tuple[float, float, int]], *, cores: float) -> SharedClock:
        """Return the clock of a schedule; `busy`: start, end and number of ranks of all computations."""
        start, end, ranks = np.array(list(busy), dtype=np.float64).reshape(-1, 3).T
        at, places = np.unique(np.concatenate([[0.0], start, end]), return_inverse=True)
        running = np.cumsum(np.bincount(places, np.concatenate([[0.0], ranks, -ranks])))[:-1]
        taken = np.diff(at) * np.maximum(1.0, running / cores)
        return cls(at, np.concatenate([[0.0], np.cumsum(taken)]))

    def at(self, alone_s: ArrayLike) -> Floats:
        """Return the time of an event on shared cores."""
        alone = np.asarray(alone_s, dtype=np.float64)
        beyond = np.maximum(0.0, alone - self.alone_s[-1])
        return np.asarray(np.interp(alone, self.alone_s, self.shared_s) + beyond)


# The most recorded forward passes of all stages together: for a timeline, and for ranks that share cores.
_MOST_RECORDED, _MOST_SHARED = 20_000, 2_000
# Timeline operations that use a core.
_COMPUTING = frozenset({"forward", "backward", "weight_gradients", "update"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineSpan:
    """One operation of a stage; seconds count from the start of the iteration. `chunk` as in `Span`."""

    pipeline: int
    stage: int
    what: str
    microbatch: int | None
    start_s: float
    end_s: float
    chunk: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageWaits:
    """The parts of one stage's iteration; the four sum to the replayed iteration."""

    pipeline: int
    stage: int
    waits: Waits


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Seconds of one microbatch's passes through a stage; `exposed_s` of both is the visible part of exchanges."""

    forward_s: float
    backward_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """Seconds of one iteration by closed form and by replay; `traffic` are bytes per iteration from zone to zone."""

    closed_form_s: float
    replay_s: float
    waits: tuple[StageWaits, ...]
    groups: tuple[SyncGroup, ...]
    traffic: Traffic
    timeline: tuple[TimelineSpan, ...]

    @property
    def busiest(self) -> Waits:
        """The waits of the stage that computes longest, the first if several do."""
        return max(self.waits, key=lambda stage: stage.waits.compute_s).waits


def run_iteration(layout: Layout, *, timeline: bool = False) -> Iteration:
    """Return one simulated iteration of a laid-out plan; `timeline` also records operations, unless there are too many.

    Local ranks share the cores of the scenario's machine, if it has one.
    """
    if layout.scenario.engine.formulas is not None:
        return _by_formulas(layout, layout.scenario.engine.formulas)
    passes = sum(len(pipeline.virtual_stages) * pipeline.microbatches for pipeline in layout.plan.pipelines)
    if passes > _MOST_SHARED and layout.on_machine:
        return _scaled_from_shorter(layout, passes)
    return _run(layout, timeline=timeline and passes <= _MOST_RECORDED, on_machine=layout.on_machine)


def _scaled_from_shorter(layout: Layout, passes: int) -> Iteration:
    """Return a long iteration on shared cores, slowed down as one with proportionally fewer microbatches."""
    pipelines = []
    for pipeline in layout.plan.pipelines:
        fewer = -(-pipeline.microbatches * _MOST_SHARED // passes)
        if len(pipeline.virtual_stages) > len(pipeline.stages):
            fewer += -fewer % (pipeline.per_round or 1)
        pipelines.append(replace(pipeline, microbatches=fewer))
    shorter = replace(layout, plan=replace(layout.plan, pipelines=tuple(pipelines)))
    alone, shared = (_run(shorter, timeline=False, on_machine=shares) for shares in (False, True))
    iteration, slower = _run(layout, timeline=False, on_machine=False), shared.replay_s / alone.replay_s
    computing = [
        there.waits.compute_s / here.waits.compute_s for here, there in zip(alone.waits, shared.waits, strict=True)
    ]
    total = iteration.replay_s * slower
    return replace(
        iteration,
        closed_form_s=iteration.closed_form_s * shared.closed_form_s / alone.closed_form_s,
        replay_s=total,
        waits=tuple(
            _stretched(each, each.waits.compute_s * factor, total)
            for each, factor in zip(iteration.waits, computing, strict=True)
        ),
    )


def _run(layout: Layout, *, timeline: bool, on_machine: bool) -> Iteration:
    groups = sync_groups(layout)
    # Cuts between the same stages carry tensors in turns.
    rounds = [
        seats[: len(plan.stages) + 1] for seats, plan in zip(layout.pipelines, layout.plan.pipelines, strict=True)
    ]
    around = layout.plan.pipeline_schedule is PipelineSchedule.INTERLEAVED
    flows = cut_flows([[seat.place.node for seat in seats] for seats in rounds], around=around)
    passes = _passes(layout, groups)
    times = [
        _pipeline_times(layout, seats, shared, p, passes)
        for p, (seats, shared) in enumerate(zip(layout.pipelines, flows, strict=True))
    ]
    replays = _replays(layout, times, spans=timeline or on_machine)
    ends, synced, sync_spans = _synchronise(layout, groups, replays)
    spans: list[TimelineSpan] = []
    updated = {key: ends[key] + _update_s(layout, seats) for key, seats in layout.devices.items()}
    total, gather_spans = _gather(layout, groups, times, updated, synced)
    waits = tuple(
        _stage_waits(
            layout, seats, replays[key[0]], sum(passes[seat.key].exposed_s for seat in seats), synced[key], total
        )
        for key, seats in layout.devices.items()
    )
    if timeline:
        spans = [*_compute_spans(replays), *sync_spans, *gather_spans]
        spans += [_span(seats[0], "update", None, ends[key], updated[key]) for key, seats in layout.devices.items()]
        spans.sort(key=lambda span: (span.pipeline, span.stage, span.start_s, span.end_s, span.what))
    iteration = Iteration(
        closed_form_s=_closed_form_s(layout, times, groups),
        replay_s=total,
        waits=waits,
        groups=groups,
        traffic=_all_traffic(layout, groups),
        timeline=tuple(spans),
    )
    if on_machine:
        computing = [
            ((p, span.stage), span.start_s, span.end_s)
            for p, done in enumerate(replays)
            for span in done.spans
            if span.what in _COMPUTING
        ]
        computing += [(key, ends[key], updated[key]) for key in ends]
        iteration = _on_shared_cores(iteration, layout, computing)
    return iteration


def _by_formulas(layout: Layout, formulas: Formulas) -> Iteration:
    """Return an iteration by an engine's own formulas. Raises RequestError for pipelines that they do not cover."""
    pipelines = uniform_pipelines(
        [
            ([StagePlace(seat.place.accelerator, seat.place.zone, seat.tp) for seat in seats], cut, size, count)
            for seats, (cut, size, count) in zip(layout.pipelines, _shapes(layout), strict=True)
        ]
    )
    problem = pipelines if isinstance(pipelines, str) else formulas.problem(pipelines, layout.scenario)
    if isinstance(pipelines, str) or problem is not None:
        raise RequestError(f"engine {layout.scenario.engine.name} can't express the plan: {problem}")
    parts = formulas.iteration(pipelines, layout.scenario)
    waits = []
    for seat in layout.seats:
        stage = parts.stages[seat.index]
        compute = stage.compute_s * pipelines.microbatches + stage.update_s
        transfer = stage.transfer_s * pipelines.microbatches
        waits.append(
            StageWaits(
                pipeline=seat.pipeline,
                stage=seat.index,
                waits=Waits(
                    compute_s=compute,
                    transfer_s=transfer,
                    bubble_s=max(0.0, parts.seconds - compute - transfer - stage.sync_s),
                    sync_s=stage.sync_s,
                ),
            )
        )
    return Iteration(
        closed_form_s=parts.seconds,
        replay_s=parts.seconds,
        waits=tuple(waits),
        groups=(),
        traffic=dict(parts.traffic),
        timeline=(),
    )


def _shapes(layout: Layout) -> list[tuple[tuple[int, ...], int, int]]:
    """Return each pipeline's cut, microbatch size and number of microbatches."""
    return [
        (
            (0, *(stage.end_layer for stage in pipeline.stages)),
            pipeline.microbatch_size,
            pipeline.microbatches,
        )
        for pipeline in layout.plan.pipelines
    ]


def _on_shared_cores(
    iteration: Iteration, layout: Layout, computing: Sequence[tuple[tuple[int, int], float, float]]
) -> Iteration:
    """Return an iteration whose local ranks share the cores of a machine.

    `computing`: stage, start and end of every computation, in seconds.
    """
    cores = layout.scenario.profiles.free_cores(len(layout.plan.nodes))
    ranks = {
        key: seat.tp if of(seat.hardware.provider).on_this_machine else 0 for key, (seat, *_) in layout.devices.items()
    }
    busy = [(start, end, ranks[key]) for key, start, end in computing if ranks[key]]
    clock = SharedClock.of(busy, cores=cores)
    total = float(clock.at(iteration.replay_s))
    numbers = {key: number for number, key in enumerate(ranks)}
    places, start, end = np.array([(numbers[key], start, end) for key, start, end in computing]).T
    computed = np.bincount(places.astype(np.int64), clock.at(end) - clock.at(start)).tolist()
    begun, over = (clock.at([getattr(span, name) for span in iteration.timeline]) for name in ("start_s", "end_s"))
    return replace(
        iteration,
        closed_form_s=max(iteration.closed_form_s, sum((end - start) * count for start, end, count in busy) / cores),
        replay_s=total,
        waits=tuple(_stretched(each, computed[numbers[each.pipeline, each.stage]], total) for each in iteration.waits),
        timeline=tuple(
            replace(span, start_s=first, end_s=last)
            for span, first, last in zip(iteration.timeline, begun.tolist(), over.tolist(), strict=True)
        ),
    )


def _stretched(stage: StageWaits, compute_s: float, total_s: float) -> StageWaits:
    """Return a stage's waits with a new compute time; the other parts keep their proportions."""
    before = stage.waits
    rest = before.transfer_s + before.bubble_s + before.sync_s
    factor = (total_s - compute_s) / rest if rest > 0.0 else 0.0
    waits = Waits(
        compute_s=compute_s,
        transfer_s=before.transfer_s * factor,
        bubble_s=before.bubble_s * factor,
        sync_s=before.sync_s * factor,
    )
    return replace(stage, waits=waits)


def _pipeline_times(
    layout: Layout,
    seats: tuple[Seat, ...],
    flows: tuple[int, ...],
    pipeline: int,
    passes: Mapping[tuple[int, int], Passes],
) -> PipelineTimes:
    engine, activation, gradient = layout.scenario.engine, [], []
    for (src, dst), shared in zip(itertools.pairwise(seats), itertools.cycle(flows), strict=False):
        pairs = boundary_pairs(src.tp, dst.tp)
        nbytes = _cut_bytes(src)
        there = layout.links.between_stages(src.place, dst.place, pairs=pairs, flows=shared)
        back = layout.links.between_stages(dst.place, src.place, pairs=pairs, flows=shared)
        activation.append(float(there.transfer_s(nbytes)) + engine.message_s)
        gradient.append(float(back.transfer_s(nbytes)) + engine.message_s)
    each, plan = [passes[seat.key] for seat in seats], layout.plan.pipelines[pipeline]
    return PipelineTimes(
        forward_s=tuple(both.forward_s for both in each),
        backward_s=tuple(both.backward_s for both in each),
        activation_s=tuple(activation),
        gradient_s=tuple(gradient),
        microbatches=plan.microbatches,
        weights_s=_weights_s(layout, seats),
        chunks=len(seats) // len(plan.stages),
        per_round=plan.per_round if len(seats) > len(plan.stages) else None,
    )


def _weights_s(layout: Layout, seats: Sequence[Seat]) -> tuple[float, ...]:
    """Return the seconds of a backward pass that each stage may defer; none if the schedule defers nothing."""
    if layout.plan.pipeline_schedule is not PipelineSchedule.ZERO_BUBBLE:
        return ()
    return tuple(float(seat.table.weights_s(seat.stage.first_layer, seat.stage.end_layer)) for seat in seats)


def _passes(layout: Layout, groups: tuple[SyncGroup, ...]) -> dict[tuple[int, int], Passes]:
    """Return the passes by pipeline and virtual stage; with ZeRO-2 and 3 they overlap with exchanges."""
    exchange_s = {seat.key: (0.0, 0.0) for seat in layout.seats}
    for group in groups:
        for seat in group.members:
            forward, backward = exchange_s[seat.key]
            exchange_s[seat.key] = forward + group.forward_s, backward + group.backward_s
    return {
        seat.key: _overlapped_passes(seat, *exchange_s[seat.key], layout.scenario.engine.shard_exposed)
        for seat in layout.seats
    }


def _overlapped_passes(seat: Seat, forward_s: float, backward_s: float, exposed: float) -> Passes:
    """Return the passes of a stage; `exposed` is the visible share of the shorter one of compute and exchange."""
    span = seat.stage.first_layer, seat.stage.end_layer
    handing = float(seat.table.handing_s(*span))
    compute = float(seat.table.forward_s(*span)) + handing, float(seat.table.backward_s(*span)) + handing
    forward, backward = (
        max(computed, moved) + exposed * min(computed, moved)
        for computed, moved in zip(compute, (forward_s, backward_s), strict=True)
    )
    return Passes(forward_s=forward, backward_s=backward, exposed_s=forward + backward - sum(compute))


def _cut_bytes(src: Seat) -> float:
    """Bytes of one microbatch over the cut after `src`, equal forward and backward."""
    return float(src.table.boundary_bytes[src.stage.end_layer])


def _replays(layout: Layout, times: list[PipelineTimes], *, spans: bool) -> list[PipelineReplay]:
    known: dict[PipelineTimes, PipelineReplay] = {}
    transfers = layout.scenario.engine.transfers_in(layout.plan.pipeline_schedule)
    for each in times:
        if each not in known:
            known[each] = _replay(each, transfers, spans=spans)
    return [known[each] for each in times]


def _replay(times: PipelineTimes, transfers: Transfers, *, spans: bool) -> PipelineReplay:
    """Replay a pipeline: operation by operation if these are recorded, else only the ends of its stages."""
    if spans:
        return replay(times, transfers, spans=True)
    ends = schedule_ends(times, transfers)
    return PipelineReplay(
        end_s=ends.end_s,
        last_backward_start_s=ends.last_backward_start_s,
        compute_s=times.compute_s,
        transfer_s=ends.transfer_s,
        spans=(),
    )


def _synchronise(
    layout: Layout, groups: tuple[SyncGroup, ...], replays: list[PipelineReplay]
) -> tuple[dict[tuple[int, int], float], dict[tuple[int, int], float], list[TimelineSpan]]:
    """Run the sums in one global order; return each stage's end, the delay by its sums, and the spans.

    A sum begins when its last member is ready, and a stage's sums follow one another. With overlap, a member is ready
    with the first bucket of gradients, and a sum ends at the earliest one bucket after its last gradient.
    """
    clock = {(pipeline, stage): replays[pipeline].end_s[stage] for pipeline, stage in layout.devices}
    overlap = layout.scenario.engine.overlaps_sync(layout.plan.zero_stage)
    through = dict.fromkeys(clock, 0.0) if overlap else clock.copy()
    summed = dict.fromkeys(clock, 0.0)
    spans = []
    for group in groups:
        # A stage may have only a tied weight, which is summed separately.
        if len(group.members) < 2 or not group.sum_s:
            continue
        keys = [seat.device for seat in group.members]
        start = max(through[key] for key in keys)
        end = start + group.sum_s
        if overlap:
            bucket = group.bucket(layout.scenario.engine.bucket_bytes)
            times = [_gradients_s(layout, replays, seat, group, bucket) for seat in group.members]
            start = max(start, max(first for first, _ in times))
            end = max(start + group.sum_s, max(last for _, last in times) + bucket * group.sum_s)
        for key, seat in zip(keys, group.members, strict=True):
            through[key] = end
            summed[key] += group.sum_s
            spans.append(_span(seat, "sync", None, start, end))
    ends = {key: max(through[key], clock[key]) for key in clock}
    return ends, {key: min(summed[key], ends[key] - clock[key]) for key in clock}, spans


def _gather(
    layout: Layout,
    groups: tuple[SyncGroup, ...],
    times: list[PipelineTimes],
    updated: dict[tuple[int, int], float],
    synced: dict[tuple[int, int], float],
) -> tuple[float, list[TimelineSpan]]:
    """Gather the shares that ZeRO-1 and 2 updated, group by group; return when all stages are done, and the spans.

    With overlap the groups run during the next forward pass, first layers first, and count by the delay that they
    cause. Adds to the sync time of each stage.
    """
    start = max(updated.values())
    if layout.scenario.engine.overlap_gather:
        held = gather_delay_s(
            [_gather_of(layout, group, times) for group in reversed(groups) if group.gather_s], updated
        )
        for key, seconds in held.items():
            synced[key] += seconds
        spans = [
            _span(seat, "gather", None, start, start + held[key])
            for key, (seat, *_) in layout.devices.items()
            if held[key]
        ]
        return start + max(held.values()), spans
    through = updated.copy()
    spans = []
    for group in groups:
        if not group.gather_s:
            continue
        keys = [seat.device for seat in group.members]
        begun = max(through[key] for key in keys)
        for key, seat in zip(keys, group.members, strict=True):
            through[key] = begun + group.gather_s
            synced[key] += group.gather_s
            spans.append(_span(seat, "gather", None, begun, through[key]))
    return max(through.values()), spans


def _gather_of(layout: Layout, group: SyncGroup, times: list[PipelineTimes]) -> Gather:
    bucket, needed = group.bucket(layout.scenario.engine.bucket_bytes), []
    for seat in group.members:
        reached, stage = times[seat.pipeline].reached_s(seat.virtual_stage), seat.stage
        # A tied weight is used by the first layer, or only by the last one.
        first = stage.end_layer - 1 if group.tied and stage.first_layer else max(group.first_layer, stage.first_layer)
        end = first + 1 if group.tied else min(group.end_layer, stage.end_layer)
        begun = reached + float(seat.table.forward_s(stage.first_layer, first))
        needed.append((begun, begun + (1.0 - bucket) * float(seat.table.forward_s(first, end))))
    return Gather(
        members=[seat.device for seat in group.members],
        seconds=group.gather_s,
        bucket=bucket,
        needed_s=needed,
    )


def _gradients_s(
    layout: Layout, replays: list[PipelineReplay], seat: Seat, group: SyncGroup, bucket: float
) -> tuple[float, float]:
    """Return when a stage has the first bucket of a group's gradients, a share of them, and when it has them all."""
    table, stage = seat.table, seat.stage
    halved = seat.index > 0 and layout.plan.pipeline_schedule is PipelineSchedule.ZERO_BUBBLE
    pass_s = table.weights_s if halved else table.backward_s
    last_pass = replays[seat.pipeline].last_backward_start_s[seat.virtual_stage]
    done = last_pass + float(pass_s(stage.first_layer, stage.end_layer))
    if group.tied:
        return done, done
    first, end = max(group.first_layer, stage.first_layer), min(group.end_layer, stage.end_layer)
    last = done - float(pass_s(stage.first_layer, first))
    return last - (1.0 - bucket) * float(pass_s(first, end)), last


def _update_s(layout: Layout, seats: Sequence[Seat]) -> float:
    """Return the seconds of the optimizer step of a stage; the seats are its layer ranges."""
    shards = len(layout.pipelines)
    each = [float(seat.table.update_s(seat.stage.first_layer, seat.stage.end_layer, shards=shards)) for seat in seats]
    return layout.scenario.engine.idle_s + sum(each)


def _stage_waits(
    layout: Layout, seats: Sequence[Seat], done: PipelineReplay, exposed_s: float, synced_s: float, total_s: float
) -> StageWaits:
    """Return the parts of a stage's time; `exposed_s`, the visible exchanges during passes, counts as sync."""
    seat = seats[0]
    exposed = exposed_s * layout.plan.pipelines[seat.pipeline].microbatches
    synced_s += exposed
    compute = done.compute_s[seat.index] - exposed + _update_s(layout, seats)
    transfer = done.transfer_s[seat.index]
    bubble = total_s - compute - transfer - synced_s
    return StageWaits(
        pipeline=seat.pipeline,
        stage=seat.index,
        waits=Waits(compute_s=compute, transfer_s=transfer, bubble_s=bubble, sync_s=synced_s),
    )


def _closed_form_s(layout: Layout, times: list[PipelineTimes], groups: tuple[SyncGroup, ...]) -> float:
    engine = layout.scenario.engine
    longest = 0.0
    for each in set(times):
        compute = np.array(each.forward_s) + np.array(each.backward_s)
        cuts = np.array(each.activation_s) + np.array(each.gradient_s)
        if each.chunks > 1:
            longest = max(longest, float(interleaved_s(compute.reshape(each.chunks, -1), cuts, each.microbatches)))
            continue
        seconds = float(pipeline_s(compute, cuts, each.microbatches, engine=engine))
        if each.halved:
            seconds = max(
                seconds - filled_s(np.array(each.weights_s), each.microbatches), each.microbatches * compute.max()
            )
        longest = max(longest, seconds)
    update = max(_update_s(layout, seats) for seats in layout.devices.values())
    return longest + makespan_s(groups) + update


def _all_traffic(layout: Layout, groups: tuple[SyncGroup, ...]) -> Traffic:
    crossing = traffic(groups, layout)
    for pipeline, seats in zip(layout.plan.pipelines, layout.pipelines, strict=True):
        for src, dst in itertools.pairwise(seats):
            if src.place.zone == dst.place.zone:
                continue
            for key in ((src.place.zone, dst.place.zone), (dst.place.zone, src.place.zone)):
                crossing[key] = crossing.get(key, 0.0) + _cut_bytes(src) * pipeline.microbatches
    return {key: crossing[key] for key in sorted(crossing)}


def _compute_spans(replays: list[PipelineReplay]) -> list[TimelineSpan]:
    return [_of_replay(p, span) for p, done in enumerate(replays) for span in done.spans]


def _of_replay(pipeline: int, span: Span) -> TimelineSpan:
    return TimelineSpan(
        pipeline=pipeline,
        stage=span.stage,
        what=span.what,
        microbatch=span.microbatch,
        start_s=span.start_s,
        end_s=span.end_s,
        chunk=span.chunk,
    )


def _span(seat: Seat, what: str, microbatch: int | None, start_s: float, end_s: float) -> TimelineSpan:
    return TimelineSpan(
        pipeline=seat.pipeline, stage=seat.index, what=what, microbatch=microbatch, start_s=start_s, end_s=end_s
    )
