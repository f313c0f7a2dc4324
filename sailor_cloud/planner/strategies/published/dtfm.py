"""DTFM (Yuan et al., NeurIPS'22): an evolutionary search groups devices by communication alone.

Devices are divided into groups, one per stage. A grouping costs the slowest all-reduce inside a group plus twice the
slowest path through all groups. That path is an open tour over the groups, with a bottleneck matching between
neighbours. Groupings evolve: two parents, a child, and swaps that lower its cost. It models no computation, memory,
tensor parallelism or money, and takes stages and microbatch as given. So we run it for every number of stages that
divides the devices and every power of two. The results are ranked by what even stages compute, send and reduce.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise, permutations

from sailor_cloud.planner.strategies.cluster import Cluster, Machine, Slot, even_cuts
from sailor_cloud.planner.strategies.grid import even_microbatches, proposal
from sailor_cloud.planner.strategies.strategy import Proposal, Strategy

POPULATION = 20
GENERATIONS = 40
SWAPS = 10
SEED = 0
# Up to this many groups, all orders are tried for the shortest tour; beyond, the nearest neighbour.
MOST_TOURED = 5

# The devices of each group, which is a stage.
Grouping = tuple[tuple[Slot, ...], ...]


def propose(cluster: Cluster) -> Iterator[Proposal]:
    """Yield the best groupings for every number of stages that divides the devices, for every microbatch size."""
    slots = cluster.slots(1)
    for stages in range(1, min(cluster.layers, len(slots)) + 1):
        if len(slots) % stages == 0 and len(slots) // stages <= cluster.batch:
            search = _Search(cluster, len(slots) // stages)
            for grouping in search.evolved(slots, stages):
                for size in cluster.microbatch_sizes():
                    pipelines_s = _pipelines_s(cluster, grouping, size)
                    if pipelines_s is not None:
                        estimate = pipelines_s + search.reduced_s(grouping)
                        yield proposal(cluster, estimate, grouping, even_cuts(cluster.layers, stages), size)


class _Search:
    """The evolution for one number of stages."""

    def __init__(self, cluster: Cluster, replicas: int) -> None:
        self.cluster, self.replicas = cluster, replicas
        self.random = random.Random(SEED)
        tables = [table for name in cluster.accelerators if (table := cluster.table(name, 1, 1)) is not None]
        self.table = tables[0] if tables else None
        self.known: dict[tuple[tuple[tuple[str, str], ...], ...], float] = {}
        self.hops: dict[tuple[tuple[tuple[str, str], tuple[str, str]], ...], float] = {}

    def evolved(self, slots: Sequence[Slot], stages: int) -> list[Grouping]:
        """Return the three cheapest groupings of the evolution, cheapest first."""
        if self.table is None:
            return []
        population = [self._grouping(slots, stages)]
        for _ in range(POPULATION - 1 if stages > 1 else 0):
            mixed = list(slots)
            self.random.shuffle(mixed)
            population.append(self._grouping(mixed, stages))
        for _ in range(GENERATIONS if stages > 1 else 0):
            parents = self.random.sample(population, 2)
            child = self._improved(self._child(parents[0], parents[1], stages), stages)
            population.append(child)
            population.remove(max(population, key=self.cost_s))
        best = sorted(population, key=self.cost_s)
        return [self._toured(grouping) for grouping in best[:3]]

    def cost_s(self, grouping: Grouping) -> float:
        """Return the seconds of communication of one iteration, by the kinds of devices in each group."""
        key = tuple(tuple(sorted(_kind(slot.machine) for slot in group)) for group in grouping)
        if key not in self.known:
            ordered = self._toured(grouping)
            hops = sum(self._hop_s(a, b) for a, b in pairwise(ordered))
            self.known[key] = self.reduced_s(grouping) + 2.0 * hops
        return self.known[key]

    def reduced_s(self, grouping: Grouping) -> float:
        """Return the seconds of the slowest all-reduce inside a group."""
        assert self.table is not None
        share = float(self.table.gradient_bytes(0, self.cluster.layers)) / len(grouping)
        return max(self.cluster.all_reduce_s(share, group) for group in grouping)

    def _grouping(self, slots: Sequence[Slot], stages: int) -> Grouping:
        return tuple(
            tuple(sorted(slots[s * self.replicas : (s + 1) * self.replicas], key=_order)) for s in range(stages)
        )

    def _child(self, one: Grouping, other: Grouping, stages: int) -> Grouping:
        """Return some groups of one parent, and the other devices in the order of the other parent."""
        kept = [group for group in one if self.random.random() < 0.5]
        taken = {_order(slot) for group in kept for slot in group}
        rest = [slot for group in other for slot in group if _order(slot) not in taken]
        return self._grouping([*(slot for group in kept for slot in group), *rest], stages)

    def _improved(self, grouping: Grouping, stages: int) -> Grouping:
        for _ in range(SWAPS):
            flat = [slot for group in grouping for slot in group]
            a, b = self.random.sample(range(len(flat)), 2)
            if _kind(flat[a].machine) == _kind(flat[b].machine):
                continue
            flat[a], flat[b] = flat[b], flat[a]
            swapped = self._grouping(flat, stages)
            if self.cost_s(swapped) < self.cost_s(grouping):
                grouping = swapped
        return grouping

    def _toured(self, grouping: Grouping) -> Grouping:
        """Return the groups in the order of the shortest open tour."""
        if len(grouping) <= MOST_TOURED:
            known: dict[tuple[int, int], float] = {}

            def hop_s(a: int, b: int) -> float:
                if (a, b) not in known:
                    known[a, b] = self._hop_s(grouping[a], grouping[b])
                return known[a, b]

            orders = permutations(range(len(grouping)))
            best = min(orders, key=lambda order: sum(hop_s(a, b) for a, b in pairwise(order)))
            return tuple(grouping[number] for number in best)
        left = list(grouping)
        order = [left.pop(0)]
        while left:
            nearest = min(left, key=lambda group: self._hop_s(order[-1], group))
            left.remove(nearest)
            order.append(nearest)
        return tuple(order)

    def _hop_s(self, group: Sequence[Slot], following: Sequence[Slot]) -> float:
        """Return the slowest link of the best matching between two groups in the same order."""
        kinds = tuple(sorted({(_kind(a.machine), _kind(b.machine)) for a, b in zip(group, following, strict=True)}))
        if kinds not in self.hops:
            assert self.table is not None
            pairs = {(_kind(a.machine), _kind(b.machine)): (a, b) for a, b in zip(group, following, strict=True)}
            self.hops[kinds] = max(self.cluster.transfer_s(a, b, self.table) for a, b in pairs.values())
        return self.hops[kinds]


def _pipelines_s(cluster: Cluster, grouping: Grouping, size: int) -> float | None:
    """Return what even stages compute and send in an iteration, None without a microbatch or a profile of it."""
    microbatches, bounds = even_microbatches(cluster, len(grouping[0]), size), even_cuts(cluster.layers, len(grouping))
    busy, fill = [], 0.0
    for stage, (group, (first, end)) in enumerate(zip(grouping, pairwise(bounds), strict=True)):
        tables = [cluster.table(name, 1, size) for name in {slot.machine.accelerator for slot in group}]
        known = [table for table in tables if table is not None]
        if not microbatches or len(known) < len(tables):
            return None
        following = grouping[stage + 1] if end < cluster.layers else ()
        hops = [cluster.transfer_s(a, b, known[0], end) for a, b in zip(group, following, strict=False)]
        busy.append(max(float(table.compute_s(first, end)) for table in known) + max(hops, default=0.0))
        fill += busy[-1]
    return (microbatches - 1) * max(busy) + fill


def _kind(machine: Machine) -> tuple[str, str]:
    return machine.zone, machine.accelerator


def _order(slot: Slot) -> tuple[str, str, str, int]:
    return *_kind(slot.machine), slot.machine.name, slot.first


DTFM = Strategy(
    name="dtfm",
    paper="Yuan et al., NeurIPS'22, arXiv 2206.01288",
    summary="zones: devices grouped by communication alone, no tensor parallelism",
    propose=propose,
    mixed=True,
    zones=True,
)
