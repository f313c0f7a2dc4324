"""Oobleck (Jang et al., SOSP'23): pipelines from templates, so that templates fit any number of remaining nodes.

A template is the best pipeline on a number of nodes, by the time of its filling, steady and draining phases. Sums of
templates must use every node and hold one pipeline more than failures to survive; the highest throughput wins.
Pipelines take shares of the batch by their speed. It models one kind of GPU and no money.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.strategies.cluster import Cluster, Cut, Slot, balanced_cuts, shares
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

# Failures of nodes that training survives without a checkpoint; it takes one pipeline more.
FAULTS = 1
# Its planner assumes this many microbatches per stage.
MICROBATCHES_PER_STAGE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A pipeline on some nodes. `iteration_s`: with four microbatches per stage; `slowest_s`: of one microbatch on the
    slowest stage; `fill_s`: of one through all stages."""

    nodes: int
    tp: int
    bounds: tuple[int, ...]
    iteration_s: float
    slowest_s: float
    fill_s: float


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield every sum of at most two kinds of templates, for each microbatch size, on each kind of GPU alone."""
    for part in cluster.of_one_accelerator():
        for size in part.microbatch_sizes():
            found = templates(part, size)
            for counts in sums(sorted(found), len(part.machines), FAULTS + 1):
                yield from _instance(part, found, counts, size)


def templates(cluster: Cluster, size: int) -> dict[int, Template]:
    """Return the best pipeline by number of nodes, starting with the fewest nodes that hold the model."""
    most = len(cluster.machines) // (FAULTS + 1)
    found = {nodes: best for nodes in range(1, most + 1) if (best := _template(cluster, nodes, size)) is not None}
    if not found:
        return {}
    # Sums of these already reach every number of nodes that further templates would.
    least = min(found)
    return {nodes: template for nodes, template in found.items() if nodes < 2 * least or nodes <= least + 7}


def sums(sizes: Sequence[int], nodes: int, least: int) -> Iterator[dict[int, int]]:
    """Yield how many templates of each size use all nodes: at most two sizes, and at least `least` pipelines."""
    for i, small in enumerate(sizes):
        if nodes % small == 0 and nodes // small >= least:
            yield {small: nodes // small}
        for large in sizes[i + 1 :]:
            for many in range(1, nodes // large + 1):
                rest = nodes - many * large
                if rest > 0 and rest % small == 0 and many + rest // small >= least:
                    yield {small: rest // small, large: many}


def _template(cluster: Cluster, nodes: int, size: int) -> Template | None:
    accelerator, best = cluster.accelerators[0], None
    devices = nodes * cluster.machines[0].devices
    for tp in cluster.tp_degrees():
        stages = devices // tp
        table = cluster.table(accelerator, tp, size)
        if table is None or devices % tp or stages > cluster.layers:
            continue
        bounds = balanced_cuts(cluster.layer_s(table), stages)
        held = range(stages, 0, -1)
        needed = [table.memory_bytes(a, b, in_flight=n) for (a, b), n in zip(pairwise(bounds), held, strict=True)]
        if max(needed) > table.limit_bytes:
            continue
        compute = [float(table.compute_s(first, end)) for first, end in pairwise(bounds)]
        slowest = max(range(stages), key=lambda s: compute[s])
        steady = (MICROBATCHES_PER_STAGE * stages - stages + slowest) * compute[slowest]
        seconds = sum(compute) + steady + sum(compute[slowest:])
        if best is None or seconds < best.iteration_s:
            best = Template(
                nodes=nodes,
                tp=tp,
                bounds=tuple(bounds),
                iteration_s=seconds,
                slowest_s=compute[slowest],
                fill_s=sum(compute),
            )
    return best


def _instance(cluster: Cluster, found: dict[int, Template], counts: dict[int, int], size: int) -> Iterator[Proposal]:
    chosen = [found[nodes] for nodes, count in sorted(counts.items()) for _ in range(count)]
    weights = [1.0 / template.slowest_s for template in chosen]
    speed = sum(weights)
    given = [cluster.batch / size * weight / speed for weight in weights]
    if min(given) < 1.0:
        return
    pipelines = [t.fill_s + (n - 1.0) * t.slowest_s for t, n in zip(chosen, given, strict=True)]
    table = cluster.table(cluster.accelerators[0], chosen[0].tp, size)
    assert table is not None
    largest = max(float(table.gradient_bytes(a, b)) for template in chosen for a, b in pairwise(template.bounds))
    ring = [Slot(machine=machine, first=0, tp=chosen[0].tp) for machine in cluster.machines[: len(chosen)]]
    estimate = max(pipelines) + cluster.all_reduce_s(largest, ring)
    yield Proposal(estimate_s=estimate, build=partial(_plan, cluster, chosen, weights, size))


def _plan(cluster: Cluster, chosen: list[Template], weights: list[float], size: int) -> Plan:
    left, pipelines = list(cluster.machines), []
    for template in chosen:
        own, left = left[: template.nodes], left[template.nodes :]
        slots = cluster.part(own).slots(template.tp)
        stages = zip(pairwise(template.bounds), slots, strict=False)
        pipelines.append((size, [Cut(first=a, end=b, slot=slot) for (a, b), slot in stages]))
    counts = shares(cluster.batch, [size] * len(chosen), weights)
    return cluster.plan(pipelines, counts=counts)


OOBLECK = Strategy(
    name="oobleck",
    paper="Jang et al., SOSP'23, arXiv 2309.08125",
    summary="one kind of GPU, pipelines from templates of whole nodes",
    propose=propose,
    memory=True,
)
