"""The process groups of one generation."""

from __future__ import annotations

import datetime

import torch.distributed as dist

from sailor_runtime.spec import RunSpec
from sailor_runtime.training.pipeline.layout import Atom

# Long enough for rank 0 to train the reference while the others wait; hangs are the agent's to find.
_TIMEOUT = datetime.timedelta(minutes=30)
_JOIN_TIMEOUT = datetime.timedelta(minutes=3)


class World:
    """All ranks of a generation and the groups among them that the plan needs."""

    def __init__(self, spec: RunSpec, rank: int, atoms: tuple[Atom, ...], *, backend: str) -> None:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{spec.master_address}:{spec.master_port}",
            rank=rank,
            world_size=spec.world_size,
            timeout=_JOIN_TIMEOUT,
        )
        self.rank = rank
        self.size = spec.world_size
        stages = {stage.ranks for pipeline in spec.pipelines for stage in pipeline.stages}
        members = sorted({ranks for ranks in {*stages, *(atom.holders for atom in atoms)} if len(ranks) > 1})
        # A collective: every rank creates every group, in the same order. A new group would not inherit the timeout.
        self._groups = {ranks: dist.new_group(list(ranks), timeout=_TIMEOUT) for ranks in members}
        self.everyone = dist.new_group(timeout=_TIMEOUT)
        # Activations and gradients of a cut travel at once. gloo keeps them apart by tags, NCCL needs two groups.
        self.directions: tuple[dist.ProcessGroup | None, dist.ProcessGroup | None] = (None, None)
        if backend == "nccl":
            self.directions = (dist.new_group(timeout=_TIMEOUT), dist.new_group(timeout=_TIMEOUT))

    def group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        """Return the group of some ranks, None for a single one."""
        return None if len(ranks) == 1 else self._groups[ranks]

    def close(self) -> None:
        dist.destroy_process_group()
