"""FlashFlex (Yan et al., arXiv 2409.01143, also HexiScale): a graph of devices is parted into pipelines of any shape.

Nodes are parted into pipelines of equal computing power. Fast links join pipelines, where gradients are reduced; slow
ones lie inside. The stages of a pipeline are its nodes' devices, in the order of the fastest links. Layers go to stages
by their speed. A few swaps of nodes between pipelines refine the parts. It knows no money and chooses no microbatch: we
run it for each and take the best.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np

from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.strategies.cluster import Cluster, Cut, Machine, Slot, balanced_cuts, shares
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

# Swaps of nodes between pipelines that are tried for every number of pipelines.
MOST_SWAPS = 40

Part = tuple[Machine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A pipeline with its slots and bounds; seconds of its slowest stage and of one microbatch through all."""

    slots: tuple[Slot, ...]
    bounds: tuple[int, ...]
    slowest_s: float
    fill_s: float


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield the parting into every number of pipelines, for each tensor parallelism and microbatch size."""
    speeds = {name: _speed(cluster, name) for name in cluster.accelerators}
    for pipelines in range(1, len(cluster.machines) + 1):
        parts = refined(cluster, parted(cluster, pipelines, speeds), speeds)
        for tp in cluster.tp_degrees():
            for size in cluster.microbatch_sizes():
                shapes = [_shape(cluster, part, tp, size) for part in parts]
                # A pipeline that does not fit is dropped.
                yield from _of_shapes(cluster, [shape for shape in shapes if shape is not None], size)


def parted(cluster: Cluster, pipelines: int, speeds: dict[str, float]) -> list[Part]:
    """Return parts of equal computing power; nodes of one zone and kind, whose links are fast, go to different ones."""
    parts: list[list[Machine]] = [[] for _ in range(pipelines)]
    power = [0.0] * pipelines
    order = sorted(cluster.machines, key=lambda m: (-speeds[m.accelerator] * m.devices, m.zone, m.name))
    for machine in order:
        # The part with the fewest such nodes, of these the weakest one.
        place = min(range(pipelines), key=lambda p: (power[p], _alike(parts[p], machine), p))
        parts[place].append(machine)
        power[place] += speeds[machine.accelerator] * machine.devices
    return [tuple(part) for part in parts]


def refined(cluster: Cluster, parts: Sequence[Part], speeds: dict[str, float]) -> list[Part]:
    """Return the parts after the swaps that bring slow links inside them and keep their power even."""
    current = list(parts)
    tried = 0
    for a in range(len(current)):
        for b in range(a + 1, len(current)):
            for one in current[a]:
                for other in current[b]:
                    if (one.zone, one.accelerator) == (other.zone, other.accelerator):
                        continue
                    tried += 1
                    if tried > MOST_SWAPS:
                        return current
                    swapped_a = tuple(other if m is one else m for m in current[a])
                    swapped_b = tuple(one if m is other else m for m in current[b])
                    if _badness(cluster, (swapped_a, swapped_b), speeds) < _badness(
                        cluster, (current[a], current[b]), speeds
                    ):
                        current[a], current[b] = swapped_a, swapped_b
                        break
                else:
                    continue
                break
    return current


def _badness(cluster: Cluster, parts: Sequence[Part], speeds: dict[str, float]) -> tuple[float, float]:
    """Return how uneven the power of two parts is, and the seconds of a gigabyte over the links between them."""
    power = [sum(speeds[m.accelerator] * m.devices for m in part) for part in parts]
    between = min((cluster.link(a, b).bandwidth_bytes_per_s for a in parts[0] for b in parts[1]), default=float("inf"))
    return round(abs(power[0] - power[1]) / max(power), 2), 1e9 / between


def _shape(cluster: Cluster, part: Part, tp: int, size: int) -> Shape | None:
    slots = tuple(_ordered(cluster, cluster.part(part).slots(tp)))[: cluster.layers]
    tables = [cluster.table(slot.machine.accelerator, tp, size) for slot in slots]
    known = [table for table in tables if table is not None]
    if not slots or len(known) < len(slots):
        return None
    times = np.array([cluster.layer_s(table) for table in known])
    bounds = balanced_cuts(times, len(slots))
    for s, (table, (a, b)) in enumerate(zip(known, pairwise(bounds), strict=True)):
        if table.memory_bytes(a, b, in_flight=len(slots) - s) > table.limit_bytes:
            return None
    hops = [cluster.transfer_s(a, b, table) for (a, b), table in zip(pairwise(slots), known, strict=False)]
    compute = [float(table.compute_s(a, b)) for table, (a, b) in zip(known, pairwise(bounds), strict=True)]
    slowest = max([*compute, *hops])
    return Shape(slots=slots, bounds=tuple(bounds), slowest_s=slowest, fill_s=sum(compute) + sum(hops))


def _ordered(cluster: Cluster, slots: Sequence[Slot]) -> list[Slot]:
    """Return the slots in the order that goes on over the fastest link each time."""
    left = list(slots)
    order = [left.pop(0)] if left else []
    while left:
        here = order[-1].machine
        following = max(left, key=lambda slot: cluster.link(here, slot.machine, slot.tp).bandwidth_bytes_per_s)
        left.remove(following)
        order.append(following)
    return order


def _of_shapes(cluster: Cluster, shapes: list[Shape], size: int) -> Iterator[Proposal]:
    if not shapes or cluster.batch < size * len(shapes):
        return
    weights = [1.0 / shape.slowest_s for shape in shapes]
    each = cluster.batch / size / sum(weights)
    fill = max(shape.fill_s - shape.slowest_s for shape in shapes)
    table = cluster.table(shapes[0].slots[0].machine.accelerator, shapes[0].slots[0].tp, size)
    assert table is not None
    ring = [shape.slots[0] for shape in shapes]
    held = max(float(table.gradient_bytes(a, b)) for shape in shapes for a, b in pairwise(shape.bounds))
    estimate = each + fill + cluster.all_reduce_s(held, ring)
    yield Proposal(estimate_s=estimate, build=partial(_plan, cluster, shapes, weights, size))


def _plan(cluster: Cluster, shapes: Sequence[Shape], weights: Sequence[float], size: int) -> Plan:
    counts = shares(cluster.batch, [size] * len(shapes), weights)
    return cluster.plan(
        [
            (size, [Cut(first=a, end=b, slot=slot) for (a, b), slot in zip(pairwise(s.bounds), s.slots, strict=True)])
            for s in shapes
        ],
        counts=counts,
    )


def _speed(cluster: Cluster, accelerator: str) -> float:
    """Return the samples per second of one device of an accelerator that holds all layers."""
    table = cluster.table(accelerator, 1, 1)
    return 0.0 if table is None else 1.0 / float(table.compute_s(0, cluster.layers))


def _alike(part: Sequence[Machine], machine: Machine) -> int:
    return sum((other.zone, other.accelerator) == (machine.zone, machine.accelerator) for other in part)


FLASHFLEX = Strategy(
    name="flashflex",
    paper="Yan et al., 2024, arXiv 2409.01143",
    summary="mixed GPUs and zones: a graph of devices parted into pipelines of any shape",
    propose=propose,
    mixed=True,
    zones=True,
    memory=True,
)
