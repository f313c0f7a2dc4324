"""Which rank holds which part of the model: places, copies and atoms."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import INTERLEAVED, ONE_F_ONE_B, ModelSpec, PipelineSpec, RunSpec, StageSpec
from sailor_runtime.training.model.architecture import range_parameters
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.pipeline.schedule import microbatches_per_round


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a rank is in the plan."""

    rank: int
    pipeline: int
    stage: int
    tp_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Atom:
    """The finest interval [start, end) of a parameter that every copy keeps on one rank.

    Copies are the pipelines' replicas and, with a tied head, the head's use of the embedding weight. Gradients of an
    atom are summed over `holders`, but only `contributors` add theirs. The ranks of one stage have equal gradients of a
    replicated parameter, unless each computes its gradient only for its own heads. Each island has its own atoms.
    """

    parameter: str
    cut_dim: int
    start: int
    end: int
    holders: tuple[int, ...]
    contributors: frozenset[int]


def places(spec: RunSpec) -> dict[int, Place]:
    """Return every rank's place. Raises RefusedError unless ranks are 0..n-1, each in one stage."""
    found: dict[int, Place] = {}
    for p, pipeline in enumerate(spec.pipelines):
        for s, stage in enumerate(pipeline.stages):
            for index, rank in enumerate(stage.ranks):
                if rank in found:
                    raise RefusedError(f"rank {rank} is in two stages of the spec")
                found[rank] = Place(rank=rank, pipeline=p, stage=s, tp_index=index)
    if sorted(found) != list(range(len(found))):
        raise RefusedError(f"ranks must be 0..{len(found) - 1}, the spec has {sorted(found)}")
    return found


def check(spec: RunSpec) -> None:
    """Raise RefusedError if the plan in the spec does not train the whole model on the whole batch."""
    places(spec)
    samples = sum(pipeline.microbatch_size * pipeline.microbatches for pipeline in spec.pipelines)
    if samples != spec.training.global_batch_size:
        raise RefusedError(f"pipelines train {samples} samples, the batch has {spec.training.global_batch_size}")
    for p, pipeline in enumerate(spec.pipelines):
        _check_ranges(spec.pipeline_schedule, p, pipeline)
        _check_pipeline(spec.model, p, pipeline)
    if spec.zero_stage >= 2:
        _check_alike(spec)
    if spec.training.sequence_length > spec.model.max_positions:
        raise RefusedError(
            f"sequence length {spec.training.sequence_length} exceeds the model's {spec.model.max_positions} positions"
        )


def _check_alike(spec: RunSpec) -> None:
    """Raise RefusedError unless pipelines synchronize after each pass of a layer, as ZeRO-2 and 3 require."""
    if spec.training.sync_every is not None:
        raise RefusedError(
            f"zero_stage {spec.zero_stage} sums gradients in every step; it can't be combined with sync_every"
        )
    if spec.pipeline_schedule != ONE_F_ONE_B:
        raise RefusedError(
            f"zero_stage {spec.zero_stage} scatters gradients after the backward passes of 1f1b; it can't be combined "
            f"with {spec.pipeline_schedule}"
        )
    shapes = [
        (each.microbatch_size, each.microbatches, [(s.first_layer, s.end_layer, len(s.ranks)) for s in each.stages])
        for each in spec.pipelines
    ]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            raise RefusedError(
                f"zero_stage {spec.zero_stage} needs pipelines of one shape; pipeline {number} has another microbatch "
                "size or count, other layers or another tp than pipeline 0"
            )


def _check_ranges(schedule: str, index: int, pipeline: PipelineSpec) -> None:
    """Raise RefusedError unless all stages have one range of layers, or as many as an interleaved schedule needs."""
    counts, stages = sorted({len(stage.ranges) for stage in pipeline.stages}), len(pipeline.stages)
    several = schedule == INTERLEAVED and stages > 1
    if len(counts) > 1 or (counts[0] > 1) != several:
        wanted = "as many, two or more," if several else "one"
        raise RefusedError(
            f"stages of pipeline {index} hold {' and '.join(map(str, counts))} ranges of layers; {wanted} each is what "
            f"{schedule} has"
        )
    if several and microbatches_per_round(pipeline.microbatches, stages) is None:
        raise RefusedError(
            f"pipeline {index} has {pipeline.microbatches} microbatches, no multiple of {stages} to {2 * stages - 1}, "
            f"as {schedule} needs for {stages} stages"
        )


def _check_pipeline(model: ModelSpec, index: int, pipeline: PipelineSpec) -> None:
    expected = 0
    for _, layers in pipeline.virtual_stages:
        if layers.start != expected or not layers:
            raise RefusedError(
                f"a stage of pipeline {index} holds layers [{layers.start}, {layers.stop}), "
                f"expected them to start at {expected}"
            )
        expected = layers.stop
    for stage in pipeline.stages:
        if len(stage.ranks) != len(stage.devices) or not stage.ranks:
            raise RefusedError(
                f"a stage of pipeline {index} has {len(stage.ranks)} ranks, {len(stage.devices)} devices"
            )
        for parameter in stage_parameters(model, stage).values():
            if parameter.cut_dim is not None and parameter.pieces < len(stage.ranks):
                raise RefusedError(
                    f"{parameter.name} has {parameter.pieces} indivisible pieces, "
                    f"a stage of pipeline {index} cuts it over {len(stage.ranks)} devices"
                )
    if expected != model.layers:
        raise RefusedError(f"pipeline {index} covers layers up to {expected}, the model has {model.layers}")


def stage_parameters(model: ModelSpec, stage: StageSpec) -> dict[str, ParameterSpec]:
    return range_parameters(model, stage.layers)


def islands(spec: RunSpec) -> tuple[tuple[int, ...], ...]:
    """Return the pipelines that sum their gradients at every step: all, or with `sync_every` those that share zones."""
    everyone = range(len(spec.pipelines))
    if spec.training.sync_every is None:
        return (tuple(everyone),)
    zone_of = {node.id: node.zone for node in spec.nodes}
    found: list[tuple[set[str], list[int]]] = []
    for pipeline in everyone:
        zones = {zone_of[stage.node] for stage in spec.pipelines[pipeline].stages}
        near = [island for island in found if island[0] & zones]
        found = [island for island in found if not island[0] & zones]
        found.append((zones.union(*(each for each, _ in near)), sorted([pipeline, *(p for _, ps in near for p in ps)])))
    return tuple(sorted(tuple(pipelines) for _, pipelines in found))


def samples_of(spec: RunSpec, pipeline: int) -> range:
    """Return the positions of a pipeline's samples in the global batch."""
    sizes = [each.microbatch_size * each.microbatches for each in spec.pipelines]
    first = sum(sizes[:pipeline])
    return range(first, first + sizes[pipeline])


def atoms(spec: RunSpec) -> tuple[Atom, ...]:
    """Return the atoms of every trained parameter, those of each island sorted by name and start."""
    return tuple(atom for island in islands(spec) for atom in atoms_of(spec, island))


def atoms_of(spec: RunSpec, pipelines: Iterable[int]) -> tuple[Atom, ...]:
    """Return the atoms of every trained parameter for some pipelines, sorted by name and start."""
    copies: dict[str, list[tuple[int, ...]]] = defaultdict(list)
    parameters: dict[str, ParameterSpec] = {}
    for pipeline in pipelines:
        for stage in spec.pipelines[pipeline].stages:
            for name, parameter in stage_parameters(spec.model, stage).items():
                if parameter.trainable:
                    parameters[name] = parameter
                    copies[name].append(stage.ranks)
    return tuple(atom for name in sorted(parameters) for atom in _atoms_of(parameters[name], copies[name]))


def _atoms_of(parameter: ParameterSpec, copies: list[tuple[int, ...]]) -> list[Atom]:
    if parameter.cut_dim is None:
        return [
            Atom(
                parameter=parameter.name,
                cut_dim=0,
                start=0,
                end=parameter.shape[0],
                holders=tuple(sorted({rank for ranks in copies for rank in ranks})),
                contributors=frozenset(
                    rank for ranks in copies for rank in (ranks if parameter.partial else ranks[:1])
                ),
            )
        ]
    cuts = sorted(
        {
            cut
            for ranks in copies
            for index in range(len(ranks))
            for interval in parameter.intervals(len(ranks), index)
            for cut in interval
        }
    )
    result: list[Atom] = []
    for start, end in pairwise(cuts):
        holders = tuple(sorted(_holder(parameter, ranks, start) for ranks in copies))
        if result and result[-1].holders == holders:
            result[-1] = dataclasses.replace(result[-1], end=end)
            continue
        result.append(
            Atom(
                parameter=parameter.name,
                cut_dim=parameter.cut_dim,
                start=start,
                end=end,
                holders=holders,
                contributors=frozenset(holders),
            )
        )
    return result


def _holder(parameter: ParameterSpec, ranks: tuple[int, ...], start: int) -> int:
    return next(
        rank
        for index, rank in enumerate(ranks)
        if any(first <= start < end for first, end in parameter.intervals(len(ranks), index))
    )
