"""Turns pipelines on real nodes into a draft with exact shares of the batch and figures by the closed form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.evaluate.all_reduces import SyncTable
from sailor_cloud.planner.evaluate.bill import Bill
from sailor_cloud.planner.evaluate.placement import LayoutBill, LayoutBills, Place
from sailor_cloud.planner.evaluate.shares import share_batch, share_evenly
from sailor_cloud.planner.space.draft import Draft, DraftPipeline, Rank, nodes_of
from sailor_cloud.planner.space.goals import TIE, Figure, Target
from sailor_cloud.planner.space.layouts import Layout, Slot
from sailor_cloud.planner.space.space import SIZES, Floats, Seat, Space
from sailor_cloud.simulator import busy_s, fill_s
from sailor_cloud.simulator.engine import uniform_pipelines
from sailor_cloud.simulator.engines import Formulas, StagePlace, stage_bounds


class Shape(NamedTuple):
    """A pipeline whose number of microbatches is still open."""

    slots: tuple[Slot, ...]
    cut: tuple[int, ...]
    microbatch_size: int


def shapes_of(draft: Draft) -> tuple[Shape, ...]:
    """Return the pipelines of a draft without derived values."""
    return tuple(
        Shape(slots=part.slots, cut=part.cut, microbatch_size=part.microbatch_size) for part in draft.pipelines
    )


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """The speed of a pipeline for any number of microbatches.

    `step_core_s`: the steps of all its devices. `flows`: how many share the network card at each cut.
    """

    bottleneck_s: float
    fill_s: float
    update_s: float
    usd_per_sample: float
    recompute: tuple[Recompute, ...]
    compute_s: tuple[float, ...]
    step_core_s: float
    seats: tuple[Seat, ...]
    flows: tuple[int, ...]
    cuts_s: tuple[float, ...]

    def schedule_s(self, microbatches: int) -> float:
        """Return the seconds of a schedule without all-reduces and optimizer step."""
        return (microbatches - 1) * self.bottleneck_s + self.fill_s

    def least_s(self, microbatches: int) -> float:
        """Return a lower bound on an iteration: a stage's compute plus a microbatch's path to it and back."""
        longest = way = 0.0
        for compute, cut in zip(self.compute_s, (*self.cuts_s, 0.0), strict=True):
            longest = max(longest, way + microbatches * compute)
            way += compute + cut
        return longest

    @property
    def passes_core_s(self) -> float:
        """The seconds that all devices together compute for one microbatch."""
        return sum(seat.tp * seconds for seat, seconds in zip(self.seats, self.compute_s, strict=True))


@dataclass(frozen=True, slots=True)
class _Stage:
    compute_s: float
    update_s: float
    recompute: Recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """The parts of a draft's iteration: `schedule_s` + `sums_s` + `update_s`.

    `steady_s`: the longest time that a stage or a cut is busy; the rest of the schedule is filling and emptying.
    `busy_device_s`: device-seconds of compute by pool.
    """

    schedule_s: float
    steady_s: float
    sums_s: float
    update_s: float
    egress_usd: float
    busy_device_s: Mapping[int, float]


@dataclass(slots=True)
class Assessor:
    """Judges sets of pipelines; equal pipelines and all-reduces are timed once, for all targets."""

    space: Space
    target: Target
    sync: SyncTable = field(init=False)
    _layout_bills: LayoutBills = field(init=False)
    _paces: dict[tuple[object, ...], Pace | None] = field(init=False)
    _stages: dict[tuple[object, ...], _Stage | None] = field(init=False)
    _cuts: dict[tuple[object, ...], tuple[float, float]] = field(init=False)
    # By microbatch size, for pipelines and for their stages and cuts.
    _by_size: dict[tuple[object, ...], tuple[Floats, Floats]] = field(init=False)
    _by_size_of: dict[tuple[object, ...], Floats] = field(init=False)

    def __post_init__(self) -> None:
        evaluated = self.space.evaluated
        self.sync = evaluated.setdefault("sums", SyncTable(self.space))
        self._layout_bills = evaluated.setdefault("layout_bills", LayoutBills(self.space))
        self._paces = evaluated.setdefault("paces", {})
        self._stages = evaluated.setdefault("paces of stages", {})
        self._cuts = evaluated.setdefault("paces of cuts", {})
        self._by_size = evaluated.setdefault("paces by size", {})
        self._by_size_of = evaluated.setdefault("stages and cuts by size", {})

    def draft(
        self,
        shapes: Sequence[Shape],
        *,
        microbatches: Sequence[int] | None = None,
        below_s: float = math.inf,
    ) -> Draft | None:
        """Return the draft of pipelines; None if one does not fit, the batch can't be divided or a quota is exceeded.

        `microbatches`: the number for each shape, if these add up to the batch. `below_s`: return None if an iteration
        takes at least this long. With even batches, return None if pipelines differ in cut or microbatch size; from
        ZeRO-2 on and for engines with one tp, also if they differ in shape or numbers of microbatches.
        """
        self.space.known.deadline.check()
        even = self.space.even_batches
        if even and len({(shape.cut, shape.microbatch_size) for shape in shapes}) > 1:
            return None
        engine = self.space.scenario.engine
        alike = even and (engine.one_tp or self.space.zero_stage >= 2)
        if alike and len({tuple(slot.tp for slot in shape.slots) for shape in shapes}) > 1:
            return None
        if not self._runs(shapes[0]):
            return None
        order = sorted(range(len(shapes)), key=shapes.__getitem__)
        if self.space.scenario.engine.formulas is not None:
            # Pipelines are ordered as in the rings.
            order = list(range(len(shapes)))
        ordered = [shapes[p] for p in order]
        layout = tuple(shape.slots for shape in ordered)
        layout_bill = self._layout_bills.of(layout)
        if layout_bill.bill is None:
            return None
        known = self._paced(ordered, layout_bill.places)
        if known is None:
            return None
        sizes = [shape.microbatch_size for shape in ordered]
        bottlenecks = [(pace.bottleneck_s, pace.fill_s) for pace in known]
        formulas = self.space.scenario.engine.formulas
        share = share_evenly if even else share_batch
        counts: Sequence[int] | None
        if microbatches is None:
            counts = share(self.space.batch, sizes, bottlenecks)
        else:
            counts = [microbatches[p] for p in order]
        if counts is None or (even and max(counts) - min(counts) > (0 if alike else 1)):
            return None
        if engine.extra_stages is not None and min(counts) + engine.extra_stages < len(shapes[0].slots):
            return None
        if formulas is not None:
            exact = self._by_formulas(formulas, ordered, known, counts)
            return None if exact is None else self._drafted(ordered, known, counts, layout_bill.bill, *exact)
        different = set(zip(counts, known, strict=True)) if math.isfinite(below_s) else ()
        if any(pace.least_s(count) >= below_s for count, pace in different):
            return None
        schedule = max(pace.schedule_s(count) for count, pace in zip(counts, known, strict=True))
        sync, sync_usd = self.sync.of_plan(layout, tuple(shape.cut for shape in ordered))
        egress = sync_usd + sum(
            pace.usd_per_sample * shape.microbatch_size * count
            for shape, count, pace in zip(ordered, counts, known, strict=True)
        )
        alone = schedule + sync + max(pace.update_s for pace in known)
        iteration = max(alone, self.shared_s(layout, known, counts))
        return self._drafted(ordered, known, counts, layout_bill.bill, iteration, egress)

    def _runs(self, shape: Shape) -> bool:
        """Return whether the engine runs a pipeline's degrees and cut."""
        engine, decoder, stages = self.space.scenario.engine, self.space.scenario.decoder, len(shape.slots)
        if engine.one_tp and len({slot.tp for slot in shape.slots}) > 1:
            return False
        return not engine.one_cut or (
            stages <= decoder.blocks and tuple(shape.cut) == tuple(stage_bounds(engine.split, decoder, stages))
        )

    def _by_formulas(
        self, formulas: Formulas, shapes: Sequence[Shape], paces: Sequence[Pace], counts: Sequence[int]
    ) -> tuple[float, float] | None:
        """Return the seconds of an iteration and the USD of its traffic by an engine's formulas.

        None if the formulas do not cover the pipelines.
        """
        space = self.space
        offers = [pool.offer for pool in space.pools]
        pipelines = uniform_pipelines(
            [
                (
                    [StagePlace(offers[pool].accelerator, offers[pool].zone, tp) for pool, tp, _ in pace.seats],
                    shape.cut,
                    shape.microbatch_size,
                    count,
                )
                for shape, pace, count in zip(shapes, paces, counts, strict=True)
            ]
        )
        if isinstance(pipelines, str) or formulas.problem(pipelines, space.scenario) is not None:
            return None
        found = formulas.iteration(pipelines, space.scenario)
        pools = {offer.zone: number for number, offer in enumerate(offers)}
        usd = sum(nbytes * space.usd_per_byte(pools[src], pools[dst]) for (src, dst), nbytes in found.traffic.items())
        return found.seconds, usd

    def _drafted(
        self,
        ordered: Sequence[Shape],
        known: Sequence[Pace],
        counts: Sequence[int],
        bill: Bill,
        iteration_s: float,
        egress_usd: float,
    ) -> Draft:
        figures = bill.figures(iteration_s, egress_usd)
        draft = Draft(
            pipelines=tuple(
                DraftPipeline(
                    slots=shape.slots,
                    cut=shape.cut,
                    microbatch_size=shape.microbatch_size,
                    microbatches=count,
                    recompute=pace.recompute,
                )
                for shape, count, pace in zip(ordered, counts, known, strict=True)
            ),
            goal=self.target.goal,
            figures={figure: float(value) for figure, value in figures.items()},
        )
        if self.space.known.record is not None:
            self.space.known.record(self.space, draft)
        return draft

    def most_nodes(self, pool: int) -> int:
        """Return how many nodes of a pool there are, or fewer if limits on nodes or USD per hour allow only those."""
        most = float(self.space.pools[pool].max_nodes)
        for limit in self.target.limits:
            if limit.figure is Figure.USD_PER_HOUR:
                most = min(most, limit.at_most / self.space.rates[pool].expected * (1.0 + TIE))
        max_nodes = self.space.scenario.job.constraints.max_nodes
        return int(most if max_nodes is None else min(most, max_nodes))

    def node_sizes(self, *, share: float = 1.0, most_devices: float = math.inf) -> dict[int, int]:
        """Return the pool of the largest nodes of each row that have a share of the most devices in all within limits.

        Of equally large nodes it is the cheapest, or if the goal is time the one with the fastest network card: one
        slow card delays the all-reduces of all pipelines. `most_devices`: of a node.
        """
        pools, rates, found = self.space.pools, self.space.rates, dict[int, int]()
        allowed = [number for number, pool in enumerate(pools) if pool.devices <= most_devices]
        total = {number: pools[number].devices * self.most_nodes(number) for number in allowed}
        most: dict[int, int] = {}
        for number in allowed:
            most[pools[number].row] = max(total[number], most.get(pools[number].row, 0))

        def rank(number: int) -> tuple[float, ...]:
            pool = pools[number]
            card = self.space.card_bytes_per_s(number) if self.target.goal.is_time else 0.0
            return total[number] < share * most[pool.row], -pool.devices, -card, rates[number].expected

        for number in allowed:
            if rank(number) < rank(found.setdefault(pools[number].row, number)):
                found[pools[number].row] = number
        return found

    def shared_s(self, layout: Layout, paces: Sequence[Pace], microbatches: Sequence[int]) -> float:
        """Return the seconds of an iteration's work on the cores that all ranks share; 0 with a core per rank."""
        if not self.space.on_this_machine:
            return 0.0
        work = sum(
            count * pace.passes_core_s + pace.step_core_s for pace, count in zip(paces, microbatches, strict=True)
        )
        return work / self.space.cores(nodes_of(layout).total())

    def place(self, layout: Layout) -> Place | None:
        """Return the place of the first pipeline of a layout; None if the layout exceeds a quota."""
        places = self._layout_bills.of(layout).places
        return self._layout_bills.places[places[0]] if places else None

    def places(self, layout: Layout) -> tuple[int, ...]:
        """Return the number of each pipeline's place; empty if the layout exceeds a quota."""
        return self._layout_bills.of(layout).places

    def pace(self, place: int, shape: Shape, replicas: int) -> Pace | None:
        """Return the pace of one of `replicas` pipelines in a place; None if it does not fit."""
        return self._pace(shape, self._layout_bills.places[place], replicas)

    def by_size(self, place: int, cut: tuple[int, ...], replicas: int) -> tuple[Floats, Floats]:
        """Return the fill and bottleneck seconds of one of `replicas` pipelines, by microbatch size.

        The sizes are those of SIZES, up to the largest one that fits.
        """
        seats, flows = self._layout_bills.places[place]
        alike = replicas if self.space.zero_stage else min(replicas, 2)
        key = (seats, flows, cut, alike)
        if key not in self._by_size:
            count = len(seats)
            spans = zip(seats, pairwise(cut), strict=True)
            stages = [self._stage_by_size(seat, span, count - s, alike) for s, (seat, span) in enumerate(spans)]
            sizes = min(map(len, stages))
            cuts = [
                self._cut_by_size(src, dst, cut[s + 1], shared)[:sizes]
                for s, ((src, dst), shared) in enumerate(zip(pairwise(seats), flows, strict=True))
            ]
            # Only this memory layout adds up stages in the same order as for one size.
            compute = np.ascontiguousarray(np.array([each[:sizes] for each in stages]).T)
            between = np.ascontiguousarray(np.array(cuts).reshape(count - 1, sizes).T)
            busy = busy_s(compute, between, engine=self.space.scenario.engine).max(axis=-1)
            self._by_size[key] = fill_s(compute, between), busy
        return self._by_size[key]

    def _stage_by_size(self, seat: Seat, span: tuple[int, int], held: int, replicas: int) -> Floats:
        key = (seat.pool, seat.tp, span, held, replicas)
        if key not in self._by_size_of:
            self._by_size_of[key] = self.space.seconds_by_size(seat, span, held, replicas)
        return self._by_size_of[key]

    def _cut_by_size(self, src: Seat, dst: Seat, layer: int, flows: int) -> Floats:
        key = (src.pool, src.tp, dst.pool, dst.tp, src.node == dst.node, layer, flows)
        if key not in self._by_size_of:
            seconds = [self.space.boundary(src, dst, size, flows=flows)[layer] for size in SIZES]
            self._by_size_of[key] = np.array(seconds)
        return self._by_size_of[key]

    def times(self, draft: Draft) -> Times | None:
        """Return the parts of a draft's iteration; None if `paces` returns None."""
        schedule = steady = update = egress = 0.0
        busy: dict[int, float] = {}
        paces = self.paces(draft)
        if paces is None:
            return None
        for pipeline, pace in zip(draft.pipelines, paces, strict=True):
            count = pipeline.microbatches
            schedule = max(schedule, pace.schedule_s(count))
            steady = max(steady, count * pace.bottleneck_s)
            update = max(update, pace.update_s)
            egress += pace.usd_per_sample * pipeline.microbatch_size * count
            for slot, seconds in zip(pipeline.slots, pace.compute_s, strict=True):
                busy[slot.pool] = busy.get(slot.pool, 0.0) + count * slot.tp * seconds
        layout, cuts = zip(*((pipeline.slots, pipeline.cut) for pipeline in draft.pipelines), strict=True)
        sums, sums_usd = self.sync.of_plan(layout, cuts)
        return Times(
            schedule_s=schedule,
            steady_s=steady,
            sums_s=sums,
            update_s=update,
            egress_usd=egress + sums_usd,
            busy_device_s=busy,
        )

    def paces(self, draft: Draft) -> list[Pace] | None:
        """Return the pace of every pipeline of a draft.

        None if a pipeline fits only because it has fewer microbatches than its stages could hold at once.
        """
        shapes = [
            Shape(slots=pipeline.slots, cut=pipeline.cut, microbatch_size=pipeline.microbatch_size)
            for pipeline in draft.pipelines
        ]
        return self._paced(shapes, self.layout_bill(draft).places)

    def layout_bill(self, draft: Draft) -> LayoutBill:
        """Return the bill and the places of a draft's layout."""
        return self._layout_bills.of(tuple(pipeline.slots for pipeline in draft.pipelines))

    def keeps(self, draft: Draft) -> bool:
        """Return whether a draft keeps all limits of the job."""
        return self.excess(draft) == 1.0

    def excess(self, draft: Draft, figures: Mapping[Figure, float] | None = None) -> float:
        """Return the largest factor by which a draft exceeds a limit; 1 if it keeps all.

        `figures` replace those of the closed form.
        """
        figures = draft.figures if figures is None else figures
        most = self.space.scenario.job.constraints.max_nodes
        if most is not None and draft.figures[Figure.NODES] > most:
            return float("inf")
        worst = max((figures[limit.figure] / limit.at_most for limit in self.target.limits), default=1.0)
        return worst if worst > 1.0 + TIE else 1.0

    def rank(self, draft: Draft) -> Rank:
        """Return the sort key of a draft: first the factor by which it exceeds limits, then its goal."""
        return self.excess(draft), draft.order()

    def _paced(self, shapes: Sequence[Shape], places: Sequence[int]) -> list[Pace] | None:
        """Return the pace of every pipeline, computed once for equal ones; None if one does not fit."""
        found: dict[tuple[object, ...], Pace] = {}
        paces = []
        for shape, place in zip(shapes, places, strict=True):
            key = (place, shape.cut, shape.microbatch_size)
            pace = found.get(key)
            if pace is None:
                pace = self._pace(shape, self._layout_bills.places[place], len(shapes))
                if pace is None:
                    return None
                found[key] = pace
            paces.append(pace)
        return paces

    def _pace(self, shape: Shape, place: Place, replicas: int) -> Pace | None:
        seats, flows = place
        alike = replicas if self.space.zero_stage else min(replicas, 2)
        key = (seats, flows, shape.cut, shape.microbatch_size, alike)
        if key not in self._paces:
            self._paces[key] = self._build(seats, flows, shape, replicas)
        return self._paces[key]

    def _build(self, seats: tuple[Seat, ...], flows: tuple[int, ...], shape: Shape, replicas: int) -> Pace | None:
        """Time a pipeline whose stages hold as many microbatches as they ever do at once."""
        size, count = shape.microbatch_size, len(seats)
        stages = []
        for s, (seat, span) in enumerate(zip(seats, pairwise(shape.cut), strict=True)):
            stage = self._stage(seat, span, size, count - s, replicas)
            if stage is None:
                return None
            stages.append(stage)
        cuts = [
            self._cut(src, dst, shape.cut[s + 1], size, shared)
            for s, ((src, dst), shared) in enumerate(zip(pairwise(seats), flows, strict=True))
        ]
        compute, between = np.array([each.compute_s for each in stages]), np.array([seconds for seconds, _ in cuts])
        return Pace(
            bottleneck_s=float(busy_s(compute, between, engine=self.space.scenario.engine).max()),
            fill_s=float(fill_s(compute, between)),
            update_s=max(each.update_s for each in stages),
            usd_per_sample=sum(usd for _, usd in cuts),
            recompute=tuple(each.recompute for each in stages),
            compute_s=tuple(each.compute_s for each in stages),
            step_core_s=sum(seat.tp * each.update_s for seat, each in zip(seats, stages, strict=True)),
            seats=seats,
            flows=flows,
            cuts_s=tuple(seconds for seconds, _ in cuts),
        )

    def _stage(self, seat: Seat, span: tuple[int, int], size: int, held: int, replicas: int) -> _Stage | None:
        """Return the figures of a stage that holds `held` microbatches at once; None if it does not fit."""
        space = self.space
        sharers = replicas if space.zero_stage else min(replicas, 2)
        key = (seat.pool, seat.tp, span, size, held, sharers)
        if key not in self._stages:
            found = space.stages(seat, size, sharers).of(span, held)
            self._stages[key] = None
            if found is not None:
                kind, seconds = found
                # Microbatches of any size end with the same step.
                step_s = space.table(seat.pool, seat.tp, 1).update_s(*span, shards=replicas)
                self._stages[key] = _Stage(seconds, float(step_s), kind)
        return self._stages[key]

    def _cut(self, src: Seat, dst: Seat, layer: int, size: int, flows: int) -> tuple[float, float]:
        """Return the seconds of one microbatch's tensors over a cut, and the USD for one sample's."""
        key = (src.pool, src.tp, dst.pool, dst.tp, src.node == dst.node, layer, size, flows)
        if key not in self._cuts:
            seconds = float(self.space.boundary(src, dst, size, flows=flows)[layer])
            self._cuts[key] = seconds, float(self.space.cut_usd_per_sample(src, dst)[layer])
        return self._cuts[key]
