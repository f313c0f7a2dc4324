"""Atlas (Palak et al., arXiv 2411.14458): pipelines cross the wide area only between data centres.

For every number of pipelines and stages, stages fill one data centre after the other, largest first, so that each
all-reduce stays inside one; zones of a region count as one. Tensor parallelism spans a whole node. It models one kind
of GPU, even layers, and no money.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, pairwise

from sailor_cloud.planner.strategies.cluster import Cluster, Slot, even_cuts
from sailor_cloud.planner.strategies.grid import Rows, even_microbatches, proposal
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield all placements of each accelerator over its zones, for every microbatch size."""
    for accelerator in cluster.accelerators:
        own = cluster.part(machine for machine in cluster.machines if machine.accelerator == accelerator)
        tp = max(own.tp_degrees(), default=0)
        if tp:
            yield from _of_one_kind(own, accelerator, tp)


def _of_one_kind(cluster: Cluster, accelerator: str, tp: int) -> Iterator[Proposal]:
    centres = sorted(_centres(cluster, tp), key=lambda slots: (-len(slots), slots[0].machine.zone))
    most = sum(map(len, centres))
    for stages in range(1, min(cluster.layers, most) + 1):
        for replicas in range(1, most // stages + 1):
            placed = _placed(centres, stages, replicas)
            if placed is None:
                continue
            for size in cluster.microbatch_sizes():
                estimate = _estimate_s(cluster, accelerator, placed, size)
                if estimate is not None:
                    yield proposal(cluster, estimate, placed, even_cuts(cluster.layers, stages), size)


def _centres(cluster: Cluster, tp: int) -> list[list[Slot]]:
    """Return the devices of each region; its zones form one data centre."""

    def region(slot: Slot) -> str:
        return cluster.scenario.catalog.region_of(slot.machine.zone)

    return [list(members) for _, members in groupby(sorted(cluster.slots(tp), key=region), key=region)]


def _placed(centres: list[list[Slot]], stages: int, replicas: int) -> Rows | None:
    """Return the slots of each stage: each data centre takes as many whole stages as fit."""
    rows: list[tuple[Slot, ...]] = []
    for slots in centres:
        for first in range(0, len(slots) - replicas + 1, replicas):
            if len(rows) == stages:
                return tuple(rows)
            rows.append(tuple(slots[first : first + replicas]))
    return tuple(rows) if len(rows) == stages else None


def _estimate_s(cluster: Cluster, accelerator: str, placed: Rows, size: int) -> float | None:
    """Return the seconds of an iteration. Pipelines take turns on a wide-area link, so each has its full rate."""
    table = cluster.table(accelerator, placed[0][0].tp, size)
    microbatches = even_microbatches(cluster, len(placed[0]), size)
    if table is None or not microbatches:
        return None
    bounds = even_cuts(cluster.layers, len(placed))
    compute = [float(table.compute_s(first, end)) for first, end in pairwise(bounds)]
    hops = [
        cluster.transfer_s(a[0], b[0], table, layer)
        for (a, b), layer in zip(pairwise(placed), bounds[1:], strict=False)
    ]
    nbytes = [float(table.gradient_bytes(first, end)) for first, end in pairwise(bounds)]
    sums = max(cluster.all_reduce_s(size_, row) for size_, row in zip(nbytes, placed, strict=True))
    return cluster.pipeline_s(compute, hops, microbatches) + sums


ATLAS = Strategy(
    name="atlas",
    paper="Palak et al., 2024, arXiv 2411.14458",
    summary="one kind of GPU over zones; only pipeline stages cross them",
    propose=propose,
    zones=True,
)
