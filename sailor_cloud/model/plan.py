"""A plan: which nodes to buy and how to cut the model and the batch over them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.shown import Rows, Shown
from sailor_cloud.units import counted

# The names of folders, processes and cloud resources contain those of nodes.
NodeId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,79}$")]
PipelineId = Annotated[int, Field(ge=0, lt=1_000_000)]


class Recompute(Enum):
    """What the backward pass of a stage recomputes: nothing, some of its blocks' activations, or all of them.

    With our engine, "some" means those of every second block. Documents contain the values.
    """

    NONE = False
    SELECTIVE = "selective"
    FULL = True

    # That of Enum runs in Python, and searches look up tables by kind all the time.
    __hash__ = object.__hash__

    def blocks(self, layers: int) -> range:
        """Return the layers that our engine recomputes, of a model with `layers` layers."""
        step = {Recompute.SELECTIVE: 2, Recompute.FULL: 1}.get(self)
        return range(0) if step is None else range(1, layers - 1, step)


class PipelineSchedule(StrEnum):
    """The order of passes in pipelines of several stages.

    `zero-bubble` (ZB-H1) splits backward passes: the gradient of a stage's input is sent at once, and the gradients of
    its weights are computed when the stage would wait. `interleaved` gives each stage several ranges of layers in turn,
    which shortens the pipeline bubble and adds traffic.
    """

    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"
    INTERLEAVED = "interleaved"


def microbatches_per_round(microbatches: int, stages: int) -> int | None:
    """Return how many microbatches an interleaved schedule sends through each range of layers at a time.

    It is the least divisor of their number that is at least `stages`, which keeps all stages busy, and below twice
    that, since stages hold the activations of more of them. None if there is no such divisor. Source: torch's
    ScheduleInterleaved1F1B, which takes others.
    """
    return next((count for count in range(stages, 2 * stages) if microbatches % count == 0), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One instance of an offer, with devices 0..devices-1; a device without a stage is idle and paid for."""

    id: NodeId
    offer: str
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The layers [first_layer, end_layer) on some devices of one node.

    `later_ranges`: under an interleaved schedule, first and end of the layers for which a microbatch returns after it
    has passed all stages.
    """

    first_layer: int
    end_layer: int
    node: str
    devices: tuple[int, ...]
    recompute: Recompute = Recompute.NONE
    later_ranges: Annotated[tuple[tuple[int, int], ...], Field(exclude_if=lambda ranges: not ranges)] = ()

    @property
    def tp(self) -> int:
        return len(self.devices)

    @property
    def ranges(self) -> tuple[range, ...]:
        return (range(self.first_layer, self.end_layer), *(range(first, end) for first, end in self.later_ranges))

    @property
    def layers(self) -> tuple[int, ...]:
        return tuple(layer for each in self.ranges for layer in each)

    @property
    def layers_text(self) -> str:
        return ", ".join(f"{each.start}-{each.stop - 1}" for each in self.ranges)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One data-parallel replica of the model."""

    id: PipelineId
    microbatch_size: int
    microbatches: int
    stages: tuple[Stage, ...]

    @property
    def samples(self) -> int:
        """Samples of one iteration that this pipeline trains on."""
        return self.microbatch_size * self.microbatches

    @property
    def per_round(self) -> int | None:
        return microbatches_per_round(self.microbatches, len(self.stages))

    @property
    def virtual_stages(self) -> tuple[tuple[int, range], ...]:
        """The stages in the order in which a microbatch passes them, each with its layers at that point."""
        held = [stage.ranges for stage in self.stages]
        chunks = max(map(len, held), default=0)
        return tuple(
            (s, ranges[chunk]) for chunk in range(chunks) for s, ranges in enumerate(held) if chunk < len(ranges)
        )


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Plan(Shown):
    """What is bought and how it is used. Ranks are ordered by pipeline, then stage, then device."""

    zero_stage: int
    precision: Precision
    nodes: tuple[Node, ...]
    pipelines: tuple[Pipeline, ...]
    pipeline_schedule: Annotated[
        PipelineSchedule, Field(exclude_if=lambda schedule: schedule is PipelineSchedule.ONE_F_ONE_B)
    ] = PipelineSchedule.ONE_F_ONE_B

    def shown_facts(self) -> list[tuple[str, str]]:
        stages = counted(sum(len(pipeline.stages) for pipeline in self.pipelines), "stage")
        return [
            ("nodes", counted(len(self.nodes), "node")),
            ("pipelines", counted(len(self.pipelines), "pipeline")),
            ("stages", stages),
            ("ranks", counted(self.world_size, "rank")),
            ("precision", self.precision.value),
            ("ZeRO", f"ZeRO-{self.zero_stage}"),
            ("schedule", self.pipeline_schedule.value),
        ]

    def shown_rows(self) -> list[tuple[str, Rows[Any]]]:
        return [("nodes", Rows(self.nodes)), ("pipelines", Rows(self.pipelines))]

    @property
    def world_size(self) -> int:
        return sum(stage.tp for pipeline in self.pipelines for stage in pipeline.stages)

    @property
    def global_batch_size(self) -> int:
        return sum(pipeline.samples for pipeline in self.pipelines)

    def node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.id == node_id)

    def interleaved(self, chunks: int) -> Plan | None:
        """Return the plan with `chunks` ranges of layers in each stage, interleaved, or with one in 1F1B.

        Each stage keeps its number of layers, and a pipeline of one stage its range. None if a stage has too few
        layers, microbatches can't run in rounds, or no pipeline has several stages.
        """
        pipelines = []
        for pipeline in self.pipelines:
            stages = pipeline.stages
            each = chunks if len(stages) > 1 else 1
            if each > 1 and (pipeline.per_round is None or any(len(stage.layers) < each for stage in stages)):
                return None
            ranges: list[list[tuple[int, int]]] = [[] for _ in stages]
            end = 0
            for chunk in range(each):
                for s, stage in enumerate(stages):
                    # The first range also has the embedding, which is cheap; the last one has the head.
                    place = each - 1 - chunk if s == 0 else chunk
                    first, layers = end, len(stage.layers)
                    end += layers * (place + 1) // each - layers * place // each
                    ranges[s].append((first, end))
            held = tuple(
                replace(stage, first_layer=own[0][0], end_layer=own[0][1], later_ranges=tuple(own[1:]))
                for stage, own in zip(stages, ranges, strict=True)
            )
            pipelines.append(replace(pipeline, stages=held))
        if chunks > 1 and all(len(pipeline.stages) == 1 for pipeline in pipelines):
            return None
        schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B
        return replace(self, pipelines=tuple(pipelines), pipeline_schedule=schedule)

    def check(self, *, layers: int, global_batch_size: int) -> None:
        """Raise RequestError unless every pipeline covers every layer once, on existing devices that are used once."""
        problems = [*self._cover_problems(layers), *self._chunk_problems(), *self.device_problems()]
        if self.global_batch_size != global_batch_size:
            problems.append(
                Problem(
                    path="plan.pipelines",
                    message=f"pipelines train {self.global_batch_size} samples, the job's global batch is "
                    f"{global_batch_size}",
                )
            )
        if problems:
            raise RequestError(problems)

    def _cover_problems(self, layers: int) -> list[Problem]:
        problems = []
        names = Counter(pipeline.id for pipeline in self.pipelines)
        if twice := [str(name) for name, count in names.items() if count > 1]:
            problems.append(Problem(path="plan.pipelines", message=f"have the id {', '.join(twice)} more than once"))
        for p, pipeline in enumerate(self.pipelines):
            where = f"plan.pipelines[{p}]"
            if pipeline.microbatch_size < 1 or pipeline.microbatches < 1:
                size = f"{pipeline.microbatch_size} x {pipeline.microbatches}"
                problems.append(Problem(path=where, message=f"microbatch size and count must be positive, got {size}"))
            expected = 0
            for s, held in pipeline.virtual_stages:
                if held.start != expected or not held:
                    problems.append(
                        Problem(
                            path=f"{where}.stages[{s}]",
                            message=f"holds layers [{held.start}, {held.stop}), "
                            f"expected to start at {expected} and hold at least one",
                        )
                    )
                expected = held.stop
            if expected != layers:
                problems.append(Problem(path=where, message=f"covers layers up to {expected}, the model has {layers}"))
        return problems

    def _chunk_problems(self) -> list[Problem]:
        """Return the stages whose number of layer ranges does not match the schedule."""
        problems, schedule = [], self.pipeline_schedule
        if schedule is PipelineSchedule.INTERLEAVED and all(len(pipeline.stages) < 2 for pipeline in self.pipelines):
            message = f"is {schedule}, and no pipeline has several stages"
            problems.append(Problem(path="plan.pipeline_schedule", message=message, hint="1f1b"))
        for p, pipeline in enumerate(self.pipelines):
            stages, where = len(pipeline.stages), f"plan.pipelines[{p}]"
            several = schedule is PipelineSchedule.INTERLEAVED and stages > 1
            counts = sorted({1 + len(stage.later_ranges) for stage in pipeline.stages})
            if counts and (len(counts) > 1 or (counts[0] > 1) != several):
                message = f"has stages with {' and '.join(map(str, counts))} ranges of layers"
                hint = f"{schedule} has " + ("as many in every stage, two or more" if several else "one in every stage")
                problems.append(Problem(path=where, message=message, hint=hint))
            if several and pipeline.per_round is None:
                message = f"has {pipeline.microbatches} microbatches, no multiple of {stages} to {2 * stages - 1}"
                hint = f"{schedule} needs one for {stages} stages"
                problems.append(Problem(path=where, message=message, hint=hint))
        return problems

    def device_problems(self) -> list[Problem]:
        problems = []
        nodes = {node.id: node for node in self.nodes}
        used: set[tuple[str, int]] = set()
        for p, pipeline in enumerate(self.pipelines):
            for s, stage in enumerate(pipeline.stages):
                where = f"plan.pipelines[{p}].stages[{s}]"
                node = nodes.get(stage.node)
                if node is None:
                    problems.append(Problem(path=where, message=f"names unknown node {stage.node!r}"))
                    continue
                if not stage.devices:
                    problems.append(Problem(path=where, message="has no devices"))
                for device in stage.devices:
                    if not 0 <= device < node.devices:
                        message = f"uses device {device} of node {node.id!r}, which has {node.devices}"
                        problems.append(Problem(path=where, message=message))
                    elif (stage.node, device) in used:
                        message = f"uses device {device} of node {node.id!r} a second time"
                        problems.append(Problem(path=where, message=message))
                    used.add((stage.node, device))
        return problems
