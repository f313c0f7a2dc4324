"""Checks that all ranks that hold a layer of a user's module built it with the same weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import RunSpec
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.model.user_module import UserModule

# Sums of each tensor of a part, as in `UserModule.first_sums`; the first is of magnitudes.
Sums = Sequence[tuple[float, float]]
# Processors of different kinds round first weights differently.
_ROUNDED = 1e-4


def check(spec: RunSpec, layers: Sequence[int], group: dist.ProcessGroup) -> None:
    """Raise RefusedError if ranks start from different weights; `layers` are those of this rank. A collective."""
    architecture = architecture_of(spec.model)
    if not isinstance(architecture, UserModule):
        return
    everyone: list[Any] = [None] * spec.world_size
    dist.all_gather_object(everyone, architecture.first_sums(layers), group=group)
    compare(spec, everyone)


def compare(spec: RunSpec, everyone: Sequence[Mapping[str, Sums]]) -> None:
    """Raise RefusedError if two ranks have different sums of one part; the message names part and nodes."""
    first: dict[str, tuple[int, Sums]] = {}
    for rank, sums in enumerate(everyone):
        for part, found in sums.items():
            other, wanted = first.setdefault(part, (rank, found))
            if not _alike(found, wanted):
                raise RefusedError(
                    f"{part} of {spec.model.module} starts with different weights on rank {other} "
                    f"({spec.node_of(other).id}) and rank {rank} ({spec.node_of(rank).id}); build() must make the same "
                    "layers in every process. torch, numpy and random are seeded before it; it must seed its own "
                    "generators, such as numpy.random.default_rng(), itself"
                )


def _alike(one: Sums, two: Sums) -> bool:
    """Return whether sums differ by rounding only."""
    return len(one) == len(two) and all(
        abs(mine - theirs) <= _ROUNDED * max(here[0], there[0])
        for here, there in zip(one, two, strict=True)
        for mine, theirs in zip(here, there, strict=True)
    )
