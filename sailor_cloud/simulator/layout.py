"""A plan with its data: each stage's place, its tables, and the links between stages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sailor_cloud.catalog.providers import of
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.offer import Hardware
from sailor_cloud.model.plan import Node, PipelineSchedule, Plan, Stage
from sailor_cloud.network import Link, Place
from sailor_cloud.simulator.engine import Engine
from sailor_cloud.simulator.scenario import Scenario, place_of
from sailor_cloud.simulator.stage_table import StageTable, stage_table
from sailor_cloud.workload import tp_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """One stage of one pipeline on its node; for a stage with several layer ranges, one of them.

    `virtual_stage`: the seat's position on a microbatch's path through the pipeline.
    """

    pipeline: int
    index: int
    virtual_stage: int
    stage: Stage
    hardware: Hardware
    place: Place
    table: StageTable

    @property
    def tp(self) -> int:
        return self.stage.tp

    @property
    def device(self) -> tuple[int, int]:
        """The pipeline and the stage, which all its ranges share."""
        return self.pipeline, self.index

    @property
    def key(self) -> tuple[int, int]:
        return self.pipeline, self.virtual_stage

    @property
    def compute_s(self) -> float:
        return float(self.table.stage_s(self.stage.first_layer, self.stage.end_layer))


@dataclass(slots=True)
class Links:
    """Asks the network once for every kind of connection."""

    scenario: Scenario
    _known: dict[tuple[str, str, str, str, str, str, bool, int, int], Link] = field(default_factory=dict)

    def between(self, src: Place, dst: Place, *, pairs: int, flows: int = 1) -> Link:
        same_node = src.node is not None and src.node == dst.node
        # One instance type may have different accelerators: GCP's n1 shapes do.
        ends = (src.zone, src.instance_type, src.accelerator, dst.zone, dst.instance_type, dst.accelerator)
        key = (*ends, same_node, pairs, flows)
        if key not in self._known:
            self._known[key] = self.scenario.link(src, dst, pairs=pairs, flows=flows)
        return self._known[key]

    def between_stages(self, src: Place, dst: Place, *, pairs: int, flows: int = 1) -> Link:
        """Return the effective link for tensors between stages."""
        link = self.between(src, dst, pairs=pairs, flows=flows)
        same_node = src.node is not None and src.node == dst.node
        return self.scenario.stage_link(link, same_node=same_node)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The seats of every pipeline in the order of virtual stages, and the links between their places.

    `devices`: the seats that share devices, by pipeline and stage.
    """

    plan: Plan
    scenario: Scenario
    pipelines: tuple[tuple[Seat, ...], ...]
    devices: dict[tuple[int, int], tuple[Seat, ...]]
    links: Links

    @property
    def priced(self) -> bool:
        """Whether all nodes have a price."""
        return all(node.offer in self.scenario.offers for node in self.plan.nodes)

    @property
    def on_machine(self) -> bool:
        """Whether stages run on the scenario's machine, whose cores they share."""
        local = any(of(seat.hardware.provider).on_this_machine for seat in self.seats)
        return local and self.scenario.machine is not None

    @property
    def seats(self) -> tuple[Seat, ...]:
        return tuple(seat for seats in self.pipelines for seat in seats)


def lay_out(plan: Plan, scenario: Scenario) -> Layout:
    """Return a plan's layout.

    Raises RequestError with every fault: layers not covered once, devices used twice, unknown nodes, offers and zones,
    an invalid tp, or another precision or batch than the job's.
    """
    _check(plan, scenario)
    nodes = {node.id: node for node in plan.nodes}
    pipelines = tuple(
        tuple(
            _seat(plan, scenario, nodes, p, virtual_stage, s, _of_range(pipeline.stages[s], held))
            for virtual_stage, (s, held) in enumerate(pipeline.virtual_stages)
        )
        for p, pipeline in enumerate(plan.pipelines)
    )
    devices = {
        (p, s): tuple(pipelines[p][s :: len(pipeline.stages)])
        for p, pipeline in enumerate(plan.pipelines)
        for s in range(len(pipeline.stages))
    }
    return Layout(plan=plan, scenario=scenario, pipelines=pipelines, devices=devices, links=Links(scenario))


def _of_range(stage: Stage, held: range) -> Stage:
    if not stage.later_ranges:
        return stage
    return replace(stage, first_layer=held.start, end_layer=held.stop, later_ranges=())


def _seat(
    plan: Plan,
    scenario: Scenario,
    nodes: dict[str, Node],
    pipeline: int,
    virtual_stage: int,
    index: int,
    stage: Stage,
) -> Seat:
    microbatch_size = plan.pipelines[pipeline].microbatch_size
    hardware = scenario.hardware(nodes[stage.node].offer)
    spread = len({each.node for each in plan.pipelines[pipeline].stages}) > 1
    key = (hardware.accelerator, stage.tp, microbatch_size, stage.recompute, plan.zero_stage, spread)
    if key not in scenario.tables:
        scenario.tables[key] = stage_table(
            scenario,
            hardware.accelerator,
            tp=stage.tp,
            microbatch_size=microbatch_size,
            recompute=stage.recompute,
            zero_stage=plan.zero_stage,
            spread=spread,
        )
    return Seat(
        pipeline=pipeline,
        index=index,
        virtual_stage=virtual_stage,
        stage=stage,
        hardware=hardware,
        place=place_of(hardware, stage.node),
        table=scenario.tables[key],
    )


def _check(plan: Plan, scenario: Scenario) -> None:
    problems: list[Problem] = []
    try:
        plan.check(layers=scenario.decoder.layers, global_batch_size=scenario.job.training.global_batch_size)
    except RequestError as error:
        problems.extend(error.problems)
    problems += _node_problems(plan, scenario)
    stages = scenario.engine.zero_stages
    most = scenario.job.training.max_zero_stage
    if most is not None and plan.zero_stage > most:
        message = f"is {plan.zero_stage}, the job allows {most} at most"
        problems.append(Problem(path="plan.zero_stage", message=message, hint="see training.max_zero_stage"))
    if plan.zero_stage not in stages:
        hint = f"{', '.join(map(str, stages[:-1]))} or {stages[-1]}"
        problems.append(Problem(path="plan.zero_stage", message=f"is {plan.zero_stage}", hint=hint))
    if plan.zero_stage >= 2 and not scenario.engine.uniform:
        problems += _unlike_problems(plan, scenario)
    problems += _schedule_problems(plan, scenario)
    if plan.precision is not scenario.job.training.precision:
        message = f"is {plan.precision}, the job trains in {scenario.job.training.precision}"
        problems.append(Problem(path="plan.precision", message=message))
    for p, pipeline in enumerate(plan.pipelines):
        for s, stage in enumerate(pipeline.stages):
            fault = tp_problem(scenario.decoder, stage.tp) if stage.devices else None
            if fault is not None:
                problems.append(Problem(path=f"plan.pipelines[{p}].stages[{s}].devices", message=fault))
    if problems:
        raise RequestError(problems)


def _unlike_problems(plan: Plan, scenario: Scenario) -> list[Problem]:
    """Return why ranks could not synchronize after each pass of a layer, as ZeRO-2 and 3 require."""
    problems, zero = [], f"ZeRO-{plan.zero_stage}"
    if scenario.job.training.sync_every is not None:
        message = f"{zero} sums gradients in every step, the job's zones meet every {scenario.job.training.sync_every}"
        problems.append(Problem(path="plan.zero_stage", message=message, hint="0 or 1"))
    shapes = [
        (
            f"microbatches {each.microbatches} x {each.microbatch_size}",
            "layers " + ", ".join(f"{stage.first_layer}-{stage.end_layer} at tp {stage.tp}" for stage in each.stages),
        )
        for each in plan.pipelines
    ]
    for p, shape in enumerate(shapes):
        for has, first in zip(shape, shapes[0], strict=True):
            if has != first:
                message = f"has {has}, the first pipeline {first}; {zero} needs pipelines of one shape"
                problems.append(Problem(path=f"plan.pipelines[{p}]", message=message, hint="use ZeRO-0 or 1"))
    return problems


def _schedule_problems(plan: Plan, scenario: Scenario) -> list[Problem]:
    where, schedule, known = "plan.pipeline_schedule", plan.pipeline_schedule, scenario.engine.schedules
    if schedule not in known:
        return [Problem(path=where, message=f"is {schedule}, {scenario.engine.name} has {', '.join(known)}")]
    if schedule is not PipelineSchedule.ONE_F_ONE_B and plan.zero_stage >= 2:
        message = f"is {schedule}; ZeRO-{plan.zero_stage} scatters gradients after the backward passes of 1f1b"
        return [Problem(path=where, message=message, hint="1f1b, or ZeRO-0 or 1")]
    if schedule is PipelineSchedule.ZERO_BUBBLE and scenario.job.training.compile:
        message = "is zero-bubble, which halves backward passes; compiled layers can't be"
        return [Problem(path=where, message=message, hint="1f1b, or training.compile: false")]
    return _round_problems(plan, scenario.engine) if schedule is PipelineSchedule.INTERLEAVED else []


def _round_problems(plan: Plan, engine: Engine) -> list[Problem]:
    """Return the pipelines whose microbatches the engine can't interleave, though rounds of others could."""
    problems = []
    for p, pipeline in enumerate(plan.pipelines):
        stages, count = len(pipeline.stages), pipeline.microbatches
        if pipeline.per_round is not None and not engine.runs_in_rounds(count, stages):
            message = f"has {count} microbatches; {engine.name} interleaves multiples of its {stages} stages"
            problems.append(Problem(path=f"plan.pipelines[{p}]", message=message))
    return problems


def _node_problems(plan: Plan, scenario: Scenario) -> list[Problem]:
    problems = []
    zones = set(scenario.catalog.zones())
    seen: set[str] = set()
    for n, node in enumerate(plan.nodes):
        where = f"plan.nodes[{n}]"
        if node.id in seen:
            problems.append(Problem(path=f"{where}.id", message=f"{node.id!r} is used a second time"))
        seen.add(node.id)
        hardware = scenario.unpriced.get(node.offer) or scenario.offers.get(node.offer)
        if hardware is None:
            problems.append(Problem(path=f"{where}.offer", message=f"names unknown offer {node.offer!r}"))
            continue
        if hardware.zone not in zones:
            problems.append(Problem(path=f"{where}.offer", message=f"is in unknown zone {hardware.zone!r}"))
        if node.devices != hardware.accelerator_count:
            has = f"{hardware.instance_type} has {hardware.accelerator_count}"
            message = f"is {node.devices}, {has}; instances are whole"
            problems.append(Problem(path=f"{where}.devices", message=message))
    return problems
