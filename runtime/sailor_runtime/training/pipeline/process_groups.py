"""The process groups of one generation."""

from __future__ import annotations

import datetime

import torch
import torch.distributed as dist

from sailor_runtime.spec import INTERLEAVED, RunSpec
from sailor_runtime.training.interfaces import agree_on_network, fabrics
from sailor_runtime.training.pipeline.exchange import BackgroundQueue, Exchange
from sailor_runtime.training.pipeline.layout import Atom, atoms_of, islands
from sailor_runtime.training.pipeline.store import open_store
from sailor_runtime.training.pipeline.transfers import Lanes

# Long enough for rank 0 to train the reference while the others wait; the agent detects hangs.
_TIMEOUT = datetime.timedelta(minutes=30)
_JOIN_TIMEOUT = datetime.timedelta(minutes=3)
_CPU = torch.device("cpu")


class World:
    """All ranks of a generation and the groups among them that the plan needs."""

    def __init__(self, spec: RunSpec, rank: int, atoms: tuple[Atom, ...], *, backend: str) -> None:
        store = open_store(
            spec.master_address, spec.master_port, rank=rank, size=spec.world_size, timeout=_JOIN_TIMEOUT
        )
        if backend == "nccl":
            agree_on_network(store, rank, spec.world_size, fabrics())
        dist.init_process_group(
            backend,
            store=store,
            rank=rank,
            world_size=spec.world_size,
            timeout=_JOIN_TIMEOUT,
        )
        # NCCL makes a communicator when it is first used. A rank that comes early waits in the store for the others.
        store.set_timeout(_TIMEOUT)
        self.rank = rank
        self.size = spec.world_size
        # A collective: every rank creates every group, in the same order. A new group would not inherit the timeout.
        # Sums have separate groups, since they run at the same time as exchanges inside a stage.
        self._stages = _groups({stage.ranks for pipeline in spec.pipelines for stage in pipeline.stages})
        holders = {atom.holders for atom in atoms}
        if len(islands(spec)) > 1:
            holders |= {atom.holders for atom in atoms_of(spec, range(len(spec.pipelines)))}
        zones = {each: spec.node_of(each).zone for each in range(spec.world_size)}
        self._exchanges = {
            ranks: Exchange(ranks, rank, [zones[each] for each in ranks], group, native=backend == "nccl")
            for ranks, group in _groups(holders).items()
            if rank in ranks
        }
        self.background = BackgroundQueue(
            torch.device("cuda", torch.cuda.current_device()) if backend == "nccl" else _CPU
        )
        self.everyone = dist.new_group(timeout=_TIMEOUT)
        # Activations and gradients of a cut are sent at the same time. gloo separates them by tags. NCCL needs two
        # groups, and two for each cut if the same ranks share several cuts.
        self.lanes: tuple[Lanes, ...] = ((None, None),)
        if backend == "nccl":
            interleaved = spec.pipeline_schedule == INTERLEAVED
            cuts = max(len(each.virtual_stages) - 1 for each in spec.pipelines) if interleaved else 1
            self.lanes = tuple(
                (dist.new_group(timeout=_TIMEOUT), dist.new_group(timeout=_TIMEOUT)) for _ in range(max(1, cuts))
            )

    def group(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        """Return the group of a stage's ranks, None for a single one."""
        return self._stages.get(ranks)

    def exchange(self, holders: tuple[int, ...]) -> Exchange | None:
        """Return the exchange for the sums of an atom's holders, this rank among them; None for a single one."""
        return self._exchanges.get(holders)

    def close(self) -> None:
        self.background.begin(lambda: None).wait()
        dist.destroy_process_group()


def _groups(members: set[tuple[int, ...]]) -> dict[tuple[int, ...], dist.ProcessGroup]:
    return {ranks: dist.new_group(list(ranks), timeout=_TIMEOUT) for ranks in sorted(members) if len(ranks) > 1}
