"""Metis (Um et al., ATC'24): kinds of GPUs in every order of stages, groups of devices in powers of two.

Kinds either follow one another as stages, each with its own tensor parallelism, or form different replicas. Replicas
take shares of the batch by their speed (its data balancer). Stages get layers by their speed; if a stage would not fit,
up to three times a layer moves to a neighbour (its layer balancer). It always uses as many GPUs as its groups allow,
and models no zones and no money. Metis may give stages different numbers of replicas; our plans can't state that, so
here all stages of a plan have equally many.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, pairwise, permutations, product

import numpy as np

from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.strategies.cluster import Cluster, Cut, Slot, balanced_cuts, even_cuts, shares
from sailor_cloud.planner.strategies.grid import Rows, even_microbatches, proposal
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy
from sailor_cloud.simulator import StageTable

# Orders of kinds of GPUs that are tried, and attempts of the layer balancer.
MOST_ORDERS = 24
MOST_MOVES = 3


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield all device groups, for every microbatch size."""
    kinds = {
        name: cluster.part(machine for machine in cluster.machines if machine.accelerator == name)
        for name in cluster.accelerators
    }
    for degrees in product(*(part.tp_degrees() for part in kinds.values())):
        by_kind = {name: part.slots(tp) for (name, part), tp in zip(kinds.items(), degrees, strict=True)}
        for size in cluster.microbatch_sizes():
            yield from _stages_by_kind(cluster, by_kind, size)
            if len(by_kind) > 1:
                yield from _replicas_by_kind(cluster, by_kind, size)


def _stages_by_kind(cluster: Cluster, by_kind: dict[str, tuple[Slot, ...]], size: int) -> Iterator[Proposal]:
    """Yield plans whose stages each have one kind of GPU."""
    for power in range(max(map(len, by_kind.values())).bit_length()):
        replicas = 1 << power
        microbatches = even_microbatches(cluster, replicas, size)
        if not microbatches:
            return
        for order in islice(permutations(by_kind), MOST_ORDERS):
            rows: Rows = tuple(
                slots[first : first + replicas]
                for name in order
                for slots in (by_kind[name],)
                for first in range(0, len(slots) - replicas + 1, replicas)
            )
            tables = [cluster.table(row[0].machine.accelerator, row[0].tp, size) for row in rows]
            known = [table for table in tables if table is not None]
            if not 0 < len(rows) <= cluster.layers or len(known) < len(rows):
                continue
            bounds = layers_of(cluster, known, microbatches)
            estimate = estimate_s(cluster, rows, known, bounds, microbatches)
            yield proposal(cluster, estimate, rows, bounds, size)


def layers_of(cluster: Cluster, tables: Sequence[StageTable], microbatches: int) -> list[int]:
    """Return the bounds of stages by their speed, after the layer balancer's moves if memory is short."""
    bounds = balanced_cuts(np.array([cluster.layer_s(table) for table in tables]), len(tables))
    for _ in range(MOST_MOVES):
        short = [
            float(table.memory_bytes(a, b, in_flight=min(len(tables) - s, microbatches)) / table.limit_bytes)
            for s, (table, (a, b)) in enumerate(zip(tables, pairwise(bounds), strict=True))
        ]
        fullest = max(range(len(tables)), key=lambda s: short[s])
        if short[fullest] <= 1.0 or bounds[fullest + 1] - bounds[fullest] < 2:
            break
        neighbours = [s for s in (fullest - 1, fullest + 1) if 0 <= s < len(tables)]
        if not neighbours:
            break
        emptier = min(neighbours, key=lambda s: short[s])
        if emptier < fullest:
            bounds[fullest] += 1
        else:
            bounds[fullest + 1] -= 1
    return bounds


def estimate_s(
    cluster: Cluster, rows: Rows, tables: Sequence[StageTable], bounds: Sequence[int], microbatches: int
) -> float:
    """Return (M - 1) * slowest stage + all stages + transfers + the longest all-reduce + the longest update."""
    spans = list(pairwise(bounds))
    compute = [float(table.compute_s(a, b)) for table, (a, b) in zip(tables, spans, strict=True)]
    hops = sum(
        cluster.transfer_s(src[0], dst[0], table, b)
        for (src, dst), table, (_, b) in zip(pairwise(rows), tables, spans, strict=False)
    )
    sums = max(
        cluster.all_reduce_s(float(table.gradient_bytes(a, b)), row)
        for table, (a, b), row in zip(tables, spans, rows, strict=True)
    )
    update = max(float(table.update_s(a, b)) for table, (a, b) in zip(tables, spans, strict=True))
    return (microbatches - 1) * max(compute) + sum(compute) + hops + sums + update


def _replicas_by_kind(cluster: Cluster, by_kind: dict[str, tuple[Slot, ...]], size: int) -> Iterator[Proposal]:
    """Yield plans whose pipelines each have one kind of GPU, with shares of the batch by their speed."""
    for stages in range(1, min(cluster.layers, min(map(len, by_kind.values()))) + 1):
        bounds = even_cuts(cluster.layers, stages)
        pipelines, slowest, fills = [], [], []
        for name, slots in by_kind.items():
            table = cluster.table(name, slots[0].tp, size)
            if table is None:
                return
            own = balanced_cuts(cluster.layer_s(table), stages)
            compute = [float(table.compute_s(a, b)) for a, b in pairwise(own)]
            for first in range(0, len(slots) - stages + 1, stages):
                row = slots[first : first + stages]
                pipelines.append((own, row))
                slowest.append(max(compute))
                fills.append(sum(compute))
        if cluster.batch < size * len(pipelines):
            continue
        speed = sum(1.0 / s for s in slowest)
        each = cluster.batch / size / speed
        table = cluster.table(cluster.accelerators[0], by_kind[cluster.accelerators[0]][0].tp, size)
        assert table is not None
        sums = max(
            cluster.all_reduce_s(float(table.gradient_bytes(a, b)), [row[s] for _, row in pipelines])
            for s, (a, b) in enumerate(pairwise(bounds))
        )
        estimate = each + max(fill - slow for fill, slow in zip(fills, slowest, strict=True)) + sums
        build = partial(_by_speed, cluster, pipelines, [1.0 / s for s in slowest], size)
        yield Proposal(estimate_s=estimate, build=build)


def _by_speed(
    cluster: Cluster, pipelines: list[tuple[list[int], tuple[Slot, ...]]], weights: list[float], size: int
) -> Plan:
    counts = shares(cluster.batch, [size] * len(pipelines), weights)
    return cluster.plan(
        [
            (size, [Cut(first=a, end=b, slot=slot) for (a, b), slot in zip(pairwise(bounds), row, strict=True)])
            for bounds, row in pipelines
        ],
        counts=counts,
    )


METIS = Strategy(
    name="metis",
    paper="Um et al., ATC'24",
    summary="mixed GPUs: kinds in every order of stages, or as replicas with shares of the batch",
    propose=propose,
    mixed=True,
    memory=True,
)
