"""Evaluates one plan: time, memory, money and the links of its traffic."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sailor_cloud.errors import MissingPriceError
from sailor_cloud.model.document import Correction, Cost, LinkUse, Prediction, ProfileRef, StageMemory, Totals
from sailor_cloud.model.plan import PipelineSchedule, Plan
from sailor_cloud.model.shown import Shown
from sailor_cloud.network import Place
from sailor_cloud.simulator.bill import bill, hours
from sailor_cloud.simulator.layout import Layout, Seat, lay_out
from sailor_cloud.simulator.lifetime import ttl_s
from sailor_cloud.simulator.memory import MemoryTable
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.simulator.timing.closed_form import in_flight
from sailor_cloud.simulator.timing.iteration import Iteration, StageWaits, TimelineSpan, run_iteration
from sailor_cloud.simulator.timing.replay import interleaved_held
from sailor_cloud.simulator.timing.sync import Traffic
from sailor_cloud.simulator.timing.uncertainty import Uncertainty, corrections, totals, uncertainty
from sailor_cloud.units import SECONDS_PER_HOUR, duration_text, usd_text


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Evaluation(Shown):
    """The simulated results of a plan. `fits` is False if any device would need more memory than it has.

    `bill` is None if a node has no price, `totals` also without a number of steps. `stage_waits` and `timeline` come
    from the replay; the timeline is empty unless requested.
    """

    prediction: Prediction
    bill: Cost | None
    totals: Totals | None
    uncertainty: Uncertainty
    corrections: tuple[Correction, ...]
    links: tuple[LinkUse, ...]
    profiles: tuple[ProfileRef, ...]
    fits: bool
    stage_waits: tuple[StageWaits, ...]
    timeline: tuple[TimelineSpan, ...]

    def shown_facts(self) -> list[tuple[str, str]]:
        facts = [("simulation", f"{duration_text(self.prediction.iteration_s_replay)}/iteration")]
        facts.append(("memory", "fits in memory" if self.fits else "does not fit in memory"))
        return facts if self.bill is None else [*facts, ("cost", f"{usd_text(self.bill.usd_per_hour)} USD/h")]

    @property
    def cost(self) -> Cost:
        """The bill. Raises MissingPriceError if a node has no price."""
        if self.bill is None:
            raise MissingPriceError("a node of the plan has no price, so it has no bill")
        return self.bill


def evaluate(plan: Plan, scenario: Scenario, *, timeline: bool = False) -> Evaluation:
    """Return the simulation of a plan.

    Raises RequestError for an invalid plan, MissingPriceError for an unknown price of a service or of traffic, and
    ProfileMissingError for an accelerator of unknown speed. A plan that needs too much memory is a valid result.
    """
    layout = lay_out(plan, scenario)
    iteration = run_iteration(layout, timeline=timeline)
    memory, unsure = _memory(layout), uncertainty(layout, iteration)
    prediction = replace(_prediction(layout, iteration, memory, unsure), iteration_s_1f1b=_in_1f1b(layout))
    costs = None
    if layout.priced:
        costs = bill(layout, iteration.traffic, iteration.replay_s, error_p90=prediction.error_p90)
    return Evaluation(
        prediction=prediction,
        bill=costs,
        totals=_totals(layout, prediction, costs, unsure),
        uncertainty=unsure,
        corrections=corrections(layout),
        links=_links(layout, iteration.traffic),
        profiles=tuple(sorted({seat.table.profile for seat in layout.seats}, key=lambda ref: ref.id)),
        fits=_fit(memory),
        stage_waits=iteration.waits,
        timeline=iteration.timeline,
    )


def time_and_traffic(plan: Plan, scenario: Scenario) -> tuple[float, Traffic] | None:
    """Return the seconds of an iteration and its bytes from zone to zone; None for a plan that needs too much memory.

    Raises as `evaluate` does, which takes longer.
    """
    layout = lay_out(plan, scenario)
    if not _fit(_memory(layout)):
        return None
    iteration = run_iteration(layout)
    return iteration.replay_s, iteration.traffic


def _in_1f1b(layout: Layout) -> float | None:
    plan = layout.plan
    if plan.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B:
        return None
    usual = plan.interleaved(1)
    assert usual is not None, "every plan can have 1F1B"
    same_stages = len(layout.devices) == len(layout.seats)
    return run_iteration(replace(layout, plan=usual) if same_stages else lay_out(usual, layout.scenario)).replay_s


def _fit(memory: tuple[StageMemory, ...]) -> bool:
    return all(stage.total_bytes <= stage.limit_bytes for stage in memory)


def _totals(layout: Layout, prediction: Prediction, costs: Cost | None, unsure: Uncertainty) -> Totals | None:
    if costs is None or costs.total_usd is None or prediction.duration_s is None:
        return None
    fixed, scenario, duration_s = hours(layout, 0.0), layout.scenario, prediction.duration_s
    limits, names = scenario.job.constraints, sorted({node.offer for node in layout.plan.nodes})
    return totals(
        limits,
        costs,
        fixed_s=fixed.duration * SECONDS_PER_HOUR,
        waiting_s=fixed.waiting * SECONDS_PER_HOUR,
        duration_s=duration_s,
        ttl_s=ttl_s(
            limits, costs, duration_s=duration_s, offers=map(scenario.offers.__getitem__, names), as_of=scenario.as_of
        ),
        distribution=unsure.distribution,
    )


def _prediction(
    layout: Layout, iteration: Iteration, memory: tuple[StageMemory, ...], unsure: Uncertainty
) -> Prediction:
    steps = layout.scenario.job.training.steps
    seconds = iteration.replay_s
    return Prediction(
        iteration_s=iteration.closed_form_s,
        iteration_s_replay=seconds,
        error_p50=unsure.distribution.p50,
        error_p90=unsure.distribution.p90,
        throughput_iterations_per_s=1.0 / seconds,
        samples_per_s=layout.plan.global_batch_size / seconds,
        duration_s=None if steps is None else hours(layout, seconds).duration * SECONDS_PER_HOUR,
        waits=iteration.busiest,
        memory=memory,
        error_shares=unsure.shares,
    )


def _memory(layout: Layout) -> tuple[StageMemory, ...]:
    """Return the memory of every stage; equal stages are computed once."""
    known: dict[tuple[object, ...], StageMemory] = {}
    found = []
    for (pipeline, stage), seats in layout.devices.items():
        held = _held(layout, seats)
        key = (id(seats[0].table), tuple(map(_span, seats)), held)
        if key not in known:
            known[key] = stage_memory(layout, seats)
        found.append(replace(known[key], pipeline=pipeline, stage=stage))
    return tuple(found)


def stage_memory(layout: Layout, seats: Sequence[Seat]) -> StageMemory:
    """Return the peak memory of one device of a stage, by part; `seats` are its layer ranges."""
    seat, held, replicas = seats[0], _held(layout, seats), len(layout.pipelines)
    memory = seat.table.memory
    if len(seats) == 1:
        parts = memory.peak_parts(*_span(seat), in_flight=held[0], replicas=replicas)
    else:
        assert isinstance(memory, MemoryTable), "no engine with formulas of its own has other schedules than 1F1B"
        first, end = np.array([_span(each) for each in seats]).T
        again = seat.stage.recompute.blocks(seat.table.layers)
        frees = layout.scenario.engine.memory.frees_outputs
        outputs = np.array([not frees and each.stage.end_layer - 1 not in again for each in seats])
        parts = memory.peak_parts_of_ranges(first, end, in_flight=np.array(held), outputs=outputs, replicas=replicas)
    parts = {name: int(nbytes) for name, nbytes in parts.items()}
    return StageMemory(
        pipeline=seat.pipeline,
        stage=seat.index,
        parts=parts,
        total_bytes=sum(parts.values()),
        limit_bytes=seat.table.limit_bytes,
        measured=seat.table.memory.measured,
    )


def _held(layout: Layout, seats: Sequence[Seat]) -> tuple[int, ...]:
    """Return the most microbatches whose activations a stage holds, for each of its layer ranges.

    An engine's own formulas assume a long run.
    """
    seat = seats[0]
    pipeline = layout.plan.pipelines[seat.pipeline]
    stages = len(pipeline.stages)
    if layout.scenario.engine.formulas is not None:
        return (stages - seat.index,)
    if len(seats) > 1:
        kept = [float(each.table.memory.activation_bytes(*_span(each))) for each in seats]
        assert pipeline.per_round is not None, "a plan is checked before it is laid out"
        moments = interleaved_held(stages, seat.index, pipeline.microbatches, len(seats), pipeline.per_round)
        return max(moments, key=lambda held: (sum(map(operator.mul, held, kept)), held))
    if stages == 1 or layout.plan.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B:
        return (int(in_flight(stages, seat.index, pipeline.microbatches)),)
    # Activations stay until the gradients of the weights exist. In addition, the output gradients for these are kept:
    # for a GPT block 11 parts compared with 16 of activations (2026-11); here as many as activations.
    put_off = min(seat.index, pipeline.microbatches)
    return (int(in_flight(stages, 0, pipeline.microbatches)) + put_off,)


def _span(seat: Seat) -> tuple[int, int]:
    return seat.stage.first_layer, seat.stage.end_layer


def _links(layout: Layout, traffic: Traffic) -> tuple[LinkUse, ...]:
    uses = []
    for (src_zone, dst_zone), nbytes in traffic.items():
        src, dst = _place_in(layout, src_zone), _place_in(layout, dst_zone)
        link = layout.links.between(src, dst, pairs=1)
        prices = layout.scenario.network.egress(src_zone, dst_zone) if layout.priced else None
        uses.append(
            LinkUse(
                src_zone=src_zone,
                dst_zone=dst_zone,
                bytes_per_iteration=nbytes,
                bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
                rtt_ms=link.rtt_s * 1e3,
                usd_per_gb=None if prices is None else sum(price.usd_per_gb for price in prices),
                measured=link.measured,
                source=link.source,
                as_of=link.as_of,
            )
        )
    return tuple(uses)


def _place_in(layout: Layout, zone: str) -> Place:
    return next(seat.place for seat in layout.seats if seat.place.zone == zone)
