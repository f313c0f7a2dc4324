"""Checks that all ranks read the same data: inputs come from one end of a pipeline and targets from the other."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.data.samples import Identity, Samples
from sailor_runtime.training.pipeline.layout import Place
from sailor_runtime.training.pipeline.process_groups import World


def agreed_identity(spec: RunSpec, place: Place, samples: Samples, world: World) -> Identity:
    """Return the identity of this run's data; a collective.

    Raises RefusedError if nodes have different data under the same name.
    """
    reads = place.stage in (0, len(spec.pipelines[place.pipeline].stages) - 1)
    everyone: list[Any] = [None] * world.size
    dist.all_gather_object(everyone, samples.identity() if reads else None, group=world.everyone)
    return common_identity(spec, everyone)


def common_identity(spec: RunSpec, everyone: list[Identity | None]) -> Identity:
    """Return the common identity from all ranks that read data. Raises RefusedError if they differ."""
    first = everyone[0]
    assert first is not None, "rank 0 stands at the beginning of a pipeline"
    for rank, found in enumerate(everyone):
        if found not in (None, first):
            one, other = (_described(spec, number, everyone[number]) for number in (0, rank))
            raise RefusedError(f"{spec.data.source} is not the same on all nodes: {one}, {other}")
    return first


def _described(spec: RunSpec, rank: int, found: Identity | None) -> str:
    assert found is not None
    return f"{found.samples} samples with hash {found.sha256[:8]} on {spec.node_of(rank).id}"
