"""Galvatron (Miao et al., VLDB'23): tensor, data and sharded data parallelism inside stages of powers of two.

Stages are cut to balance memory or time; a stage that would not fit recomputes its activations. The all-reduce overlaps
the backward pass, which slows both down. It uses the largest power of two of GPUs, of one kind, and does not model
money. Galvatron chooses for every layer; our plans have one tensor parallelism per stage and one ZeRO stage, so here
all layers of a plan share these two.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.strategies.cluster import Cluster, balanced_cuts
from sailor_cloud.planner.strategies.grid import by_stage, even_microbatches, proposal
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

# The factor by which overlapping computation and communication slow each other down, as its authors measured.
OVERLAP_SLOWDOWN = 1.3


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield the best cut of every factorisation, on every kind of GPU alone."""
    for part in cluster.of_one_accelerator():
        devices = 1 << (part.devices.bit_length() - 1)
        for tp, zero_stage in product(part.tp_degrees(), (0, 1)):
            for power in range(devices.bit_length()):
                stages = 1 << power
                replicas = devices // (stages * tp)
                if replicas and stages <= part.layers and not (zero_stage and replicas == 1):
                    for size in part.microbatch_sizes():
                        yield from _of_grid(part, tp, stages, replicas, size, zero_stage)


def _of_grid(cluster: Cluster, tp: int, stages: int, replicas: int, size: int, zero_stage: int) -> Iterator[Proposal]:
    accelerator = cluster.accelerators[0]
    microbatches = even_microbatches(cluster, replicas, size)
    kinds = (Recompute.NONE, Recompute.FULL)
    tables = [cluster.table(accelerator, tp, size, kind, zero_stage) for kind in kinds]
    slots = cluster.slots(tp)
    if tables[0] is None or not microbatches or len(slots) < stages * replicas:
        return
    rows = by_stage(slots, stages, replicas)
    for weights in (np.diff(tables[0].memory.activation_prefix_bytes), cluster.layer_s(tables[0])):
        bounds = balanced_cuts(weights, stages)
        chosen, spent, sums = [], [], []
        for s, (first, end) in enumerate(pairwise(bounds)):
            held = min(stages - s, microbatches)
            fitting = [
                kind
                for kind, table in zip(kinds, tables, strict=True)
                if table and table.memory_bytes(first, end, in_flight=held, replicas=replicas) <= table.limit_bytes
            ]
            if not fitting:
                break
            table = cluster.table(accelerator, tp, size, fitting[0], zero_stage)
            assert table is not None
            chosen.append(fitting[0])
            spent.append((float(table.forward_s(first, end)), float(table.backward_s(first, end))))
            sums.append(cluster.all_reduce_s(float(table.gradient_bytes(first, end)), rows[s]))
        if len(chosen) < stages:
            continue
        compute = [forward + backward for forward, backward in spent]
        hops = sum(
            cluster.transfer_s(a[0], b[0], tables[0], layer)
            for (a, b), layer in zip(pairwise(rows), bounds[1:], strict=False)
        )
        shown = max(
            _overlapped(backward, reduced) - backward for (_, backward), reduced in zip(spent, sums, strict=True)
        )
        estimate = (microbatches - 1) * max(compute) + sum(compute) + hops + shown
        yield proposal(cluster, estimate, rows, bounds, size, recompute=chosen, zero_stage=zero_stage)


def _overlapped(compute_s: float, communication_s: float) -> float:
    """Return the seconds of overlapping computation and communication."""
    shorter, longer = sorted((compute_s, communication_s))
    return OVERLAP_SLOWDOWN * shorter + (longer - shorter)


GALVATRON = Strategy(
    name="galvatron",
    paper="Miao et al., VLDB'23, arXiv 2211.13878",
    summary="one kind of GPU in powers of two, ZeRO and recomputation",
    propose=propose,
    memory=True,
)
