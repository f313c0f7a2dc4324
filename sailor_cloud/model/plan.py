"""A plan: which nodes to buy and how to cut the model and the batch over them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.offer import Precision

# Folders, processes and cloud resources are called after nodes.
NodeId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,79}$")]
PipelineId = Annotated[int, Field(ge=0, lt=1_000_000)]


class Recompute(Enum):
    """What the backward pass of a stage computes again: nothing, some of its blocks' activations, or all of them.

    With our own engine, some are those of every second block. Documents hold the values.
    """

    NONE = False
    SELECTIVE = "selective"
    FULL = True

    def blocks(self, layers: int) -> range:
        """Return the layers that our own engine computes again, of a model with so many."""
        step = {Recompute.SELECTIVE: 2, Recompute.FULL: 1}.get(self)
        return range(0) if step is None else range(1, layers - 1, step)


class PipelineSchedule(StrEnum):
    """The order of passes in pipelines of several stages.

    `zero-bubble` (ZB-H1) halves backward passes: the gradient of a stage's input goes on at once, and those of its
    weights are computed where the stage would wait.
    """

    ONE_F_ONE_B = "1f1b"
    ZERO_BUBBLE = "zero-bubble"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One instance of an offer, with devices 0..devices-1; a device in no stage is idle and paid for."""

    id: NodeId
    offer: str
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """The layers [first_layer, end_layer) on some devices of one node."""

    first_layer: int
    end_layer: int
    node: str
    devices: tuple[int, ...]
    recompute: Recompute = Recompute.NONE

    @property
    def tp(self) -> int:
        return len(self.devices)

    @property
    def layers(self) -> range:
        return range(self.first_layer, self.end_layer)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is bought and how it is used. Ranks count through pipelines, then stages, then devices."""

    zero_stage: int
    precision: Precision
    nodes: tuple[Node, ...]
    pipelines: tuple[Pipeline, ...]
    pipeline_schedule: Annotated[
        PipelineSchedule, Field(exclude_if=lambda schedule: schedule is PipelineSchedule.ONE_F_ONE_B)
    ] = PipelineSchedule.ONE_F_ONE_B

    @property
    def world_size(self) -> int:
        return sum(stage.tp for pipeline in self.pipelines for stage in pipeline.stages)

    @property
    def global_batch_size(self) -> int:
        return sum(pipeline.samples for pipeline in self.pipelines)

    def node(self, node_id: str) -> Node:
        return next(node for node in self.nodes if node.id == node_id)

    def check(self, *, layers: int, global_batch_size: int) -> None:
        """Raise RequestError unless every layer of every pipeline is covered once, on devices that exist once."""
        problems = [*self._cover_problems(layers), *self._device_problems()]
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
            for s, stage in enumerate(pipeline.stages):
                if stage.first_layer != expected or stage.end_layer <= stage.first_layer:
                    problems.append(
                        Problem(
                            path=f"{where}.stages[{s}]",
                            message=f"holds layers [{stage.first_layer}, {stage.end_layer}), "
                            f"expected to start at {expected} and hold at least one",
                        )
                    )
                expected = stage.end_layer
            if expected != layers:
                problems.append(Problem(path=where, message=f"covers layers up to {expected}, the model has {layers}"))
        return problems

    def _device_problems(self) -> list[Problem]:
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
