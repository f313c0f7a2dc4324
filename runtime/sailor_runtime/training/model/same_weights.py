"""Checks that all ranks that hold a layer of a user's module built it with the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.model.user_module import UserModule


def check(spec: RunSpec, layers: Sequence[int], group: dist.ProcessGroup) -> None:
    """Raise RefusedError if ranks start from different weights; `layers` are those of this rank. A collective."""
    architecture = architecture_of(spec.model)
    if not isinstance(architecture, UserModule):
        return
    everyone: list[Any] = [None] * spec.world_size
    dist.all_gather_object(everyone, architecture.first_hashes(layers), group=group)
    compare(spec, everyone)


def compare(spec: RunSpec, everyone: Sequence[Mapping[str, str]]) -> None:
    """Raise RefusedError if two ranks have different hashes of one part; the message names part and nodes."""
    first: dict[str, tuple[int, str]] = {}
    for rank, hashes in enumerate(everyone):
        for part, found in hashes.items():
            other, wanted = first.setdefault(part, (rank, found))
            if found != wanted:
                raise RefusedError(
                    f"{part} of {spec.model.module} starts with different weights on rank {other} "
                    f"({spec.node_of(other).id}) and rank {rank} ({spec.node_of(rank).id}); build() must make the same "
                    "layers in every process. torch, numpy and random are seeded before it; it must seed its own "
                    "generators, such as numpy.random.default_rng(), itself"
                )
