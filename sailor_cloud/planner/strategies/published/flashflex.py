"""FlashFlex (Yan et al., arXiv 2409.01143, also HexiScale): partitions a graph of devices into pipelines of any shape.

The pipelines have equal computing power. Fast links run between pipelines, for the all-reduce; slow ones run inside.
The stages of a pipeline are groups of its devices, in the order of the fastest links. Stages get layers by their speed.
A few swaps between pipelines refine the partition. It does not model money and chooses no microbatch: we run it for
each and take the best.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np

from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.strategies.cluster import Cluster, Cut, Slot, balanced_cuts, shares
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

# Swaps of nodes between pipelines that are tried for every number of pipelines.
MOST_SWAPS = 40
# Up to this many pipelines, every number is tried.
MOST_EVERY = 16

# The devices of a pipeline, in groups of its tensor parallelism.
Part = tuple[Slot, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A pipeline with its slots and bounds; seconds of its slowest stage and of one microbatch through all."""

    slots: tuple[Slot, ...]
    bounds: tuple[int, ...]
    slowest_s: float
    fill_s: float


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield partitions into many numbers of pipelines, for each tensor parallelism and microbatch size."""
    speeds = {name: _speed(cluster, name) for name in cluster.accelerators}
    for tp in cluster.tp_degrees():
        slots = cluster.slots(tp)
        for pipelines in numbers_of_pipelines(len(slots), len(cluster.machines)):
            parts = refined(cluster, parted(slots, pipelines, speeds), speeds)
            ordered = [tuple(_ordered(cluster, part)) for part in parts]
            for size in cluster.microbatch_sizes():
                alike: dict[object, Shape | None] = {}
                shapes = [_shape_of(cluster, part, size, alike) for part in ordered]
                # A pipeline that does not fit is dropped.
                yield from _of_shapes(cluster, [shape for shape in shapes if shape is not None], size)


def numbers_of_pipelines(slots: int, machines: int) -> list[int]:
    """Return the numbers up to that of machines and MOST_EVERY, and those that divide the slots or machines."""
    every = range(1, min(slots, max(machines, 1), MOST_EVERY) + 1)
    return sorted({*every, *(k for k in range(1, slots + 1) if slots % k == 0 or machines % k == 0)})


def parted(slots: Sequence[Slot], pipelines: int, speeds: dict[str, float]) -> list[Part]:
    """Return parts of equal computing power; devices of one node, or of one zone and kind, go to different parts."""
    parts: list[list[Slot]] = [[] for _ in range(pipelines)]
    power, near = [0.0] * pipelines, [Counter[object]() for _ in range(pipelines)]
    order = sorted(slots, key=lambda slot: (-speeds[slot.machine.accelerator], slot.machine.zone))
    for slot in order:
        machine, kind = slot.machine.name, (slot.machine.zone, slot.machine.accelerator)
        place = min(range(pipelines), key=lambda p: (round(power[p], 9), near[p][machine], near[p][kind], p))
        parts[place].append(slot)
        near[place].update((machine, kind))
        power[place] += speeds[slot.machine.accelerator] * slot.tp
    return [tuple(part) for part in parts]


def refined(cluster: Cluster, parts: Sequence[Part], speeds: dict[str, float]) -> list[Part]:
    """Return the parts after swaps that move slow links inside them and keep their power even."""
    current = list(parts)
    tried = 0
    for a in range(len(current)):
        for b in range(a + 1, len(current)):
            for one in current[a]:
                for other in current[b]:
                    if (one.machine.zone, one.machine.accelerator) == (other.machine.zone, other.machine.accelerator):
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
    power = [sum(speeds[slot.machine.accelerator] * slot.tp for slot in part) for part in parts]
    # One device of each kind and zone represents all.
    first, last = ({(s.machine.zone, s.machine.accelerator): s.machine for s in part}.values() for part in parts)
    links = (cluster.link(a, b) for a in first for b in last)
    between = min((link.bandwidth_bytes_per_s for link in links), default=float("inf"))
    return round(abs(power[0] - power[1]) / max(power), 2), 1e9 / between


def _shape_of(cluster: Cluster, slots: Part, size: int, alike: dict[object, Shape | None]) -> Shape | None:
    """Return the pipeline of some slots, None if it does not fit; `alike` caches those of slots of the same kinds."""
    kinds = tuple((slot.machine.zone, slot.machine.accelerator) for slot in slots)
    key = (kinds, tuple(a.machine is b.machine for a, b in pairwise(slots)))
    if key not in alike:
        alike[key] = _shape(cluster, slots, size)
    shape = alike[key]
    return None if shape is None else replace(shape, slots=slots)


def _shape(cluster: Cluster, slots: Part, size: int) -> Shape | None:
    tp = slots[0].tp if slots else 0
    tables = [cluster.table(slot.machine.accelerator, tp, size) for slot in slots]
    known = [table for table in tables if table is not None]
    if not slots or len(known) < len(slots):
        return None
    times = np.array([cluster.layer_s(table) for table in known])
    bounds = balanced_cuts(times, len(slots))
    for s, (table, (a, b)) in enumerate(zip(known, pairwise(bounds), strict=True)):
        if table.memory_bytes(a, b, in_flight=len(slots) - s) > table.limit_bytes:
            return None
    hops = [
        cluster.transfer_s(a, b, table, layer)
        for (a, b), table, layer in zip(pairwise(slots), known, bounds[1:-1], strict=False)
    ]
    compute = [float(table.compute_s(a, b)) for table, (a, b) in zip(known, pairwise(bounds), strict=True)]
    slowest = max([*compute, *hops])
    return Shape(slots=slots, bounds=tuple(bounds), slowest_s=slowest, fill_s=sum(compute) + sum(hops))


def _ordered(cluster: Cluster, slots: Part) -> list[Slot]:
    """Return the slots in an order that follows the fastest link each time, at most as many as there are layers."""
    left = list(slots)
    order = [left.pop(0)] if left else []
    while left and len(order) < cluster.layers:
        here = order[-1]
        following = max(left, key=lambda slot: cluster.link(here.machine, slot.machine, slot.tp).bandwidth_bytes_per_s)
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


FLASHFLEX = Strategy(
    name="flashflex",
    paper="Yan et al., 2024, arXiv 2409.01143",
    summary="mixed GPUs and zones: a graph of devices parted into pipelines of any shape",
    propose=propose,
    mixed=True,
    zones=True,
    memory=True,
)
