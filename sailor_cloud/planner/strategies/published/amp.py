"""AMP (Li et al., NeurIPS'22): one grid of tensor, data and pipeline parallelism over all GPUs, of any kinds.

Tensor parallelism divides a node, replicas and stages divide the rest, the microbatch divides a replica's share. GPUs
of several kinds count as GPUs of their average speed, and a backward pass as two forward passes. The cut makes the
slowest stage as fast as possible. It does not model memory and uses all GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from sailor_cloud.planner.strategies.cluster import Cluster, Floats, balanced_cuts
from sailor_cloud.planner.strategies.grid import Rows, by_stage, proposal
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

# A forward and a backward pass: the backward pass counts as two forward passes.
PASSES = 3.0


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield every grid on all devices, in the order of nodes."""
    for tp in cluster.tp_degrees():
        slots = cluster.slots(tp)
        for replicas in range(1, len(slots) + 1):
            stages, rest = divmod(len(slots), replicas)
            if rest or cluster.batch % replicas or stages > cluster.layers:
                continue
            rows = by_stage(slots, stages, replicas)
            for size in cluster.microbatch_sizes():
                if (cluster.batch // replicas) % size:
                    continue
                times = average_layer_s(cluster, tp, size)
                if times is not None:
                    bounds = balanced_cuts(times, stages)
                    yield proposal(cluster, estimate_s(cluster, rows, bounds, times, size), rows, bounds, size)


def average_layer_s(cluster: Cluster, tp: int, size: int) -> Floats | None:
    """Return the seconds of each layer on a GPU of average speed, None if a kind has no profile at this degree."""
    devices = {
        accelerator: sum(machine.devices for machine in cluster.machines if machine.accelerator == accelerator)
        for accelerator in cluster.accelerators
    }
    total = np.zeros(cluster.layers)
    for accelerator, count in devices.items():
        table = cluster.table(accelerator, tp, size)
        if table is None:
            return None
        total += count * PASSES * np.diff(table.forward_prefix_s)
    return total / sum(devices.values())


def estimate_s(cluster: Cluster, rows: Rows, bounds: list[int], layer_s: Floats, size: int) -> float:
    """Return (M - 1) * slowest stage + all stages + transfers + the longest all-reduce."""
    replicas, tp = len(rows[0]), rows[0][0].tp
    microbatches = cluster.batch // (replicas * size)
    table = cluster.table(rows[0][0].machine.accelerator, tp, size)
    assert table is not None
    compute = [float(layer_s[first:end].sum()) for first, end in pairwise(bounds)]
    hops = sum(
        max(cluster.transfer_s(a, b, table, layer) for a, b in zip(*pair, strict=True))
        for pair, layer in zip(pairwise(rows), bounds[1:], strict=False)
    )
    sums = max(
        cluster.all_reduce_s(float(table.gradient_bytes(first, end)), row)
        for (first, end), row in zip(pairwise(bounds), rows, strict=True)
    )
    return (microbatches - 1) * max(compute) + sum(compute) + hops + sums


AMP = Strategy(
    name="amp",
    paper="Li et al., NeurIPS'22, arXiv 2210.07297",
    summary="one grid over all GPUs, mixed kinds by their average",
    propose=propose,
    mixed=True,
)
