"""Varuna (Athlur et al., EuroSys'22): pipelines without tensor parallelism, stages of equally many blocks.

For every number of stages that divides the blocks, it takes the largest microbatch that fits and as many replicas as
there are GPUs for; it always recomputes activations. The fastest by its simulator of the schedule wins. It models one
kind of GPU and no money.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.strategies.cluster import Cluster
from sailor_cloud.planner.strategies.grid import by_pipeline, even_microbatches, proposal
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield one plan for every number of stages, on each kind of GPU alone."""
    for part in cluster.of_one_accelerator():
        blocks = part.layers - 2
        for stages in range(1, blocks + 1):
            if blocks % stages == 0 and part.devices >= stages:
                yield from _of_stages(part, stages)


def _of_stages(cluster: Cluster, stages: int) -> Iterator[Proposal]:
    accelerator, replicas = cluster.accelerators[0], cluster.devices // stages
    bounds = cut_points(cluster.layers, stages)
    for size in reversed(cluster.microbatch_sizes()):
        table = cluster.table(accelerator, 1, size, Recompute.FULL)
        microbatches = even_microbatches(cluster, replicas, size)
        if table is None or not microbatches:
            continue
        held = [min(stages - s, microbatches) for s in range(stages)]
        needed = [table.memory_bytes(a, b, in_flight=n) for (a, b), n in zip(pairwise(bounds), held, strict=True)]
        if max(needed) > table.limit_bytes:
            continue
        rows = by_pipeline(cluster.slots(1), stages, replicas)
        compute = [float(table.compute_s(first, end)) for first, end in pairwise(bounds)]
        hops = [
            cluster.transfer_s(a[0], b[0], table, layer)
            for (a, b), layer in zip(pairwise(rows), bounds[1:], strict=False)
        ]
        largest = max(range(stages), key=lambda s: float(table.gradient_bytes(bounds[s], bounds[s + 1])))
        sums = cluster.all_reduce_s(float(table.gradient_bytes(bounds[largest], bounds[largest + 1])), rows[largest])
        estimate = (microbatches - 1) * max(compute) + sum(compute) + sum(hops) + sums
        kinds = [Recompute.FULL] * stages
        yield proposal(cluster, estimate, rows, bounds, size, recompute=kinds)
        return


def cut_points(layers: int, stages: int) -> list[int]:
    """Return the bounds of stages with equally many blocks; the first also holds the embedding, the last the head."""
    each = (layers - 2) // stages
    return [0, *(1 + each * s for s in range(1, stages)), layers]


VARUNA = Strategy(
    name="varuna",
    paper="Athlur et al., EuroSys'22",
    summary="one kind of GPU, no tensor parallelism, always recomputes",
    propose=propose,
    memory=True,
)
