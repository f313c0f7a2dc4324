"""Plans from degrees: the placement of a layout such as tp=4 pp=2 dp=4 on stated nodes, without a search."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.offer import Hardware
from sailor_cloud.model.plan import Node, Pipeline, PipelineSchedule, Plan, Recompute, Stage
from sailor_cloud.simulator.engines import Engine, stage_bounds
from sailor_cloud.simulator.scenario import Scenario
from sailor_cloud.workload import tp_problem

LAYOUT, NODES = "layout", "nodes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """A layout of equal pipelines.

    `dp` defaults to as many pipelines as the nodes' devices allow, `zero_stage` to the engine's. `chunks`: layer ranges
    per stage, by default 2 under an interleaved schedule.
    """

    tp: int = 1
    pp: int = 1
    dp: int | None = None
    microbatch_size: int = 1
    zero_stage: int | None = None
    recompute: Recompute = Recompute.NONE
    schedule: PipelineSchedule = PipelineSchedule.ONE_F_ONE_B
    chunks: int | None = None

    @property
    def chunks_per_stage(self) -> int:
        """The number of layer ranges per stage."""
        return self.chunks or (2 if self.schedule is PipelineSchedule.INTERLEAVED else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGroup:
    """A number of nodes of one kind, priced or not."""

    count: int
    hardware: Hardware


def plan_of_degrees(degrees: Degrees, groups: Sequence[NodeGroup], scenario: Scenario) -> Plan:
    """Return the plan of a layout on nodes, in the order of the groups, under the scenario's engine.

    The scenario need not contain the groups' hardware. The engine decides how layers are split and ranks are numbered:
    ours fills nodes pipeline by pipeline, others stage by stage. The devices of a stage are on one node. Raises
    RequestError with every reason why the layout does not fit the model, the batch, the nodes or the engine.
    """
    counts = [*_faults_of_counts(degrees), *_faults_of_groups(groups)]
    if problems := counts or list(_problems(degrees, groups, scenario)):
        raise RequestError(problems)
    engine, training = scenario.engine, scenario.job.training
    dp = _dp(degrees, groups)
    nodes = _nodes(groups)
    slots = [
        (node.id, tuple(range(first, first + degrees.tp)))
        for node in nodes
        for first in range(0, node.devices, degrees.tp)
    ]
    bounds = stage_bounds(engine.split, scenario.decoder, degrees.pp * degrees.chunks_per_stage)
    pipelines = []
    for p in range(dp):
        stages = []
        for s in range(degrees.pp):
            (first, end), *later = list(pairwise(bounds))[s :: degrees.pp]
            node, devices = slots[s * dp + p if engine.stages_outermost else p * degrees.pp + s]
            stages.append(
                Stage(
                    first_layer=first,
                    end_layer=end,
                    node=node,
                    devices=devices,
                    recompute=degrees.recompute,
                    later_ranges=tuple(later),
                )
            )
        pipelines.append(
            Pipeline(
                id=p,
                microbatch_size=degrees.microbatch_size,
                microbatches=training.global_batch_size // (dp * degrees.microbatch_size),
                stages=tuple(stages),
            )
        )
    return Plan(
        zero_stage=_zero_stage(degrees, engine),
        precision=training.precision,
        nodes=nodes,
        pipelines=tuple(pipelines),
        pipeline_schedule=degrees.schedule,
    )


def problems_without_nodes(degrees: Degrees, scenario: Scenario) -> list[Problem]:
    """Return the reasons why a layout does not fit, independent of the nodes."""
    return list(_faults_of_counts(degrees)) or [
        *_faults_of_model(degrees, scenario),
        *(_faults_of_batch(degrees, degrees.dp, scenario) if degrees.dp else ()),
        *_faults_of_engine(degrees, scenario.engine),
    ]


def _nodes(groups: Sequence[NodeGroup]) -> tuple[Node, ...]:
    each = [group.hardware for group in groups for _ in range(group.count)]
    return tuple(
        Node(id=f"n{n}", offer=hardware.id, devices=hardware.accelerator_count) for n, hardware in enumerate(each)
    )


def _zero_stage(degrees: Degrees, engine: Engine) -> int:
    return engine.default_zero_stage if degrees.zero_stage is None else degrees.zero_stage


def _devices(groups: Sequence[NodeGroup]) -> int:
    return sum(group.count * group.hardware.accelerator_count for group in groups)


def _dp(degrees: Degrees, groups: Sequence[NodeGroup]) -> int:
    """Return the number of pipelines: the stated one, else the most that the devices allow."""
    return degrees.dp or max(1, _devices(groups) // (degrees.tp * degrees.pp))


def _faults_of_counts(degrees: Degrees) -> Iterator[Problem]:
    for name, value in (
        ("tp", degrees.tp),
        ("pp", degrees.pp),
        ("dp", degrees.dp),
        ("microbatch", degrees.microbatch_size),
        ("chunks", degrees.chunks),
    ):
        if value is not None and value < 1:
            yield Problem(path=LAYOUT, message=f"{name} must be 1 or more, got {value}")
    if degrees.schedule is not PipelineSchedule.INTERLEAVED and degrees.chunks_per_stage > 1:
        message = f"schedule {degrees.schedule} has chunks 1, got chunks {degrees.chunks_per_stage}"
        yield Problem(path=LAYOUT, message=message, hint="or schedule interleaved")
    elif degrees.schedule is PipelineSchedule.INTERLEAVED and min(degrees.chunks_per_stage, degrees.pp) < 2:
        found = f"pp {degrees.pp} and chunks {degrees.chunks_per_stage}"
        message = f"schedule interleaved needs pp >= 2 and chunks >= 2, got {found}"
        yield Problem(path=LAYOUT, message=message)


def _faults_of_groups(groups: Sequence[NodeGroup]) -> Iterator[Problem]:
    if not groups:
        yield Problem(path=NODES, message="name at least one group of nodes")
    for group in groups:
        if group.count < 1:
            yield Problem(
                path=NODES, message=f"{group.count} x {group.hardware.instance_type} is not a number of nodes"
            )


def _problems(degrees: Degrees, groups: Sequence[NodeGroup], scenario: Scenario) -> Iterator[Problem]:
    yield from _faults_of_model(degrees, scenario)
    yield from _faults_of_nodes(degrees, groups, scenario)
    yield from _faults_of_batch(degrees, _dp(degrees, groups), scenario)
    yield from _faults_of_engine(degrees, scenario.engine)


def _faults_of_model(degrees: Degrees, scenario: Scenario) -> Iterator[Problem]:
    decoder = scenario.decoder
    if fault := tp_problem(decoder, degrees.tp):
        yield Problem(path=LAYOUT, message=fault)
    if degrees.pp * degrees.chunks_per_stage > decoder.blocks:
        chunks = f" x chunks {degrees.chunks_per_stage}" if degrees.chunks_per_stage > 1 else ""
        message = f"pp {degrees.pp}{chunks} is more than the {decoder.blocks} blocks of {decoder.name}"
        yield Problem(path=LAYOUT, message=message, hint="every stage holds one block at least")


def _faults_of_nodes(degrees: Degrees, groups: Sequence[NodeGroup], scenario: Scenario) -> Iterator[Problem]:
    for hardware in {group.hardware.id: group.hardware for group in groups}.values():
        if hardware.accelerator_count % degrees.tp:
            message = (
                f"tp {degrees.tp} does not divide the {hardware.accelerator_count} devices of {hardware.instance_type}"
            )
            yield Problem(path=LAYOUT, message=message, hint="the devices of a stage are on one node")
    devices, dp = _devices(groups), _dp(degrees, groups)
    if degrees.tp * degrees.pp * dp != devices:
        product = f"tp {degrees.tp} x pp {degrees.pp} x dp {dp} = {degrees.tp * degrees.pp * dp} devices"
        hint = f"dp {each} fits" if (each := _fitting(devices, degrees.tp * degrees.pp)) else ""
        yield Problem(path=LAYOUT, message=f"{product}, the nodes have {devices}", hint=hint)
    precision = scenario.job.training.precision
    for name in dict.fromkeys(group.hardware.accelerator for group in groups):
        if scenario.catalog.accelerator(name).peak_tflops(precision) is None:
            yield Problem(path=NODES, message=f"{name} can't compute in {precision}, in which the job trains")


def _fitting(whole: int, part: int) -> int:
    return 0 if whole % part else whole // part


def _faults_of_batch(degrees: Degrees, dp: int, scenario: Scenario) -> Iterator[Problem]:
    batch = scenario.job.training.global_batch_size
    if batch % (dp * degrees.microbatch_size):
        message = f"dp {dp} x microbatch {degrees.microbatch_size} does not divide the global batch of {batch}"
        yield Problem(path=LAYOUT, message=message, hint="uneven pipelines are stated in a plan document")


def _faults_of_engine(degrees: Degrees, engine: Engine) -> Iterator[Problem]:
    zero, stages = _zero_stage(degrees, engine), engine.zero_stages if degrees.pp == 1 else engine.pipelined_zero_stages
    if zero not in stages:
        pipelined = " with more than one stage" if degrees.pp > 1 else ""
        message = f"{engine.name} has no zero {zero}{pipelined}"
        yield Problem(path=LAYOUT, message=message, hint=f"it has {', '.join(map(str, stages))}")
    if degrees.schedule not in engine.schedules:
        message = f"schedule {degrees.schedule} is not simulated under {engine.name}"
        yield Problem(path=LAYOUT, message=message, hint=f"it has {', '.join(engine.schedules)}")
    if degrees.recompute not in engine.recompute:
        names = ", ".join(kind.name.lower() for kind in engine.recompute)
        message = f"{engine.name} has no recompute {degrees.recompute.name.lower()}"
        yield Problem(path=LAYOUT, message=message, hint=f"it has {names}")
