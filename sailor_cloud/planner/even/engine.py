"""Finds the best plan of a space of even batches, with a bound: best first over microbatch sizes and replicas."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.effort import never
from sailor_cloud.planner.even.costs import Problem, StageCosts
from sailor_cloud.planner.even.grid import Grid
from sailor_cloud.planner.even.judging import Candidate, Judging
from sailor_cloud.planner.even.labels import Labels, Search, chain_of
from sailor_cloud.planner.even.node import Node
from sailor_cloud.planner.even.outcome import Outcome
from sailor_cloud.planner.even.relax import Relaxed, least_sync_s, least_way_s, longest_busy_s, relax
from sailor_cloud.planner.even.suffix import suffix
from sailor_cloud.planner.replica_counts import replica_counts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A plan within this of the bound counts as the best: just under OPTIMAL_GAP, so that rounding makes no difference.
GAP = 9.99e-4
# Limits on the bottleneck that are looked at side by side.
_LANES = 3
# Pipelines of one length, microbatch size and number of replicas that are put in place.
_JUDGED = 4
# Beginnings kept per stage while a good plan is looked for, and at most.
NARROW = 100
WIDE = 6000


def solve(
    parts: Sequence[Problem],
    *,
    keep: int = 16,
    gap: float = GAP,
    most_nodes: int = 100_000,
    known: float = math.inf,
    patience: int = 100_000,
    most_cells: float = math.inf,
    wide: int = WIDE,
    expired: Callable[[], bool] = never,
) -> Outcome:
    """Return the best plans and a bound; proven to `gap` where the judges of the parts agree with their costs.

    parts: spaces of one batch and goal that together hold every plan; a plan may be in several. They are searched one
    by one. known: the value of a plan that is known already; only better ones are looked for. patience: nodes with
    plans but none better after which the search of a part ends, once plans turned out worse than their costs. wide:
    beginnings of pipelines kept per stage at most; where they are few, the bound is the lower for it. most_cells: of
    the tables that are made of each part since the last better plan. expired: asked whether a time limit is over.
    """
    judging = Judging(parts, keep, gap, known)
    return Engine(parts, judging, wide=wide, most_cells=most_cells, expired=expired).run(most_nodes, patience)


@dataclass(slots=True)
class Engine:
    parts: Sequence[Problem]
    judging: Judging
    nodes: int = 0
    pipelines: int = 0
    wide: int = WIDE
    most_cells: float = math.inf
    cells: int = 0
    expired: Callable[[], bool] = never

    @property
    def best(self) -> float:
        return self.judging.best

    @property
    def winning(self) -> float:
        return self.judging.winning

    def run(self, most_nodes: int, patience: int) -> Outcome:
        bounds = [self._run_part(part, most_nodes, patience) for part in range(len(self.parts))]
        # Without a plan, empty heaps prove that there is none, but for what was put aside as undecided.
        bound = min([*bounds, self.winning, self.judging.loose])
        return Outcome(found=tuple(self.judging.found), bound=bound, nodes=self.nodes, pipelines=self.pipelines)

    def _run_part(self, part: int, most_nodes: int, patience: int) -> float:
        """Search a part, best first; return a bound on what was not searched."""
        nodes, stale = self._nodes(part), 0
        self.cells = 0
        heap = [(node.value, *key) for key, node in nodes.items()]
        heapq.heapify(heap)
        begun: set[tuple[int, int]] = set()
        left, value = math.inf, math.inf
        while heap:
            value, *key = heapq.heappop(heap)
            size, replicas = key
            hopeless = self.judging.loose < self.winning and stale >= patience
            hopeless |= self.cells > self.most_cells or self.expired()
            if value >= self.winning or self.nodes == most_nodes or hopeless:
                break
            if not nodes[size, replicas].refined:
                refined = self.refined(nodes[size, replicas])
                if refined is not None:
                    nodes[size, replicas] = refined
                    heapq.heappush(heap, (max(value, refined.value), size, replicas))
                value = math.inf
                continue
            before, placed, again = self.best, self.judging.placed, (size, replicas) in begun
            passed = self.search(nodes[size, replicas], self.wide if again else NARROW)
            if passed < self.winning and not again and self.wide > NARROW:
                heapq.heappush(heap, (passed, size, replicas))
            else:
                left = min(left, passed)
            begun.add((size, replicas))
            stale = 0 if self.best < before else stale + (self.judging.placed > placed)
            self.cells = 0 if self.best < before else self.cells
            value = math.inf
        self.judging.settle()
        return min(left, value)

    def _nodes(self, part: int) -> dict[tuple[int, int], Node]:
        """Return what is to be searched of a part, by microbatch size and number of replicas."""
        nodes, problem = {}, self.parts[part]
        for size in problem.sizes():
            costs = problem.costs(size, None)
            if costs is None or (problem.timed and least_way_s(costs) >= self.winning):
                continue
            relaxed = relax(costs)
            for replicas, microbatches in replica_counts(problem.batch // size):
                node = self.node(part, (size, replicas, microbatches), costs, relaxed)
                if node is not None:
                    nodes[size, replicas] = node
        return nodes

    def node(self, part: int, counts: tuple[int, int, int], costs: StageCosts, relaxed: Relaxed) -> Node | None:
        """Return a node with bounds for every vector of devices that may win, or None if there is none."""
        problem, (size, replicas, microbatches) = self.parts[part], counts
        most = np.minimum(problem.most(replicas), costs.use.max(axis=0) * costs.layers)
        if not most[costs.counted].any():
            return None
        vectors = most[None] if problem.rising else Grid(tuple(int(count) for count in most)).vectors()
        nothing, worth = np.zeros(len(vectors)), problem.worth(size, replicas, vectors)
        node = Node(part, size, replicas, microbatches, vectors, relaxed, nothing, nothing, worth)
        node = replace(node, least_s=relaxed.coarse().least_s(vectors, microbatches))
        possible = node.least_s < self._cuts_s(node)
        return node.chosen(possible) if possible.any() else None

    def refined(self, node: Node) -> Node | None:
        """Return the node with better bounds, and with sums; None if no vector is left."""
        problem, possible = self.parts[node.part], node.least_s < self._cuts_s(node)
        for turn in range(2):
            if not possible.any():
                return None
            node = node.chosen(possible)
            if turn == 0:
                node = replace(node, least_s=node.relaxed.least_s(node.vectors, node.microbatches))
            else:
                costs = problem.costs(node.size, None)
                assert costs is not None
                sync = least_sync_s(costs, problem.sync_s(node.size, node.replicas), node.vectors)
                node = replace(node, sync_s=sync, least_s=node.least_s + sync, refined=True)
            possible = node.least_s < self._cuts_s(node)
        return node.chosen(possible) if possible.any() else None

    def _alive(self, node: Node, cuts: Floats) -> NDArray[np.bool_]:
        """Return which vectors may win; where time alone counts, only those that no larger one stands for.

        A larger vector stands for a smaller one if it keeps the limits for as long as the smaller one can win.
        """
        alive = node.least_s < cuts
        if not self.parts[node.part].timed or not alive.any():
            return alive
        grid = Grid(tuple(int(count) for count in node.vectors.max(axis=0)))
        longest = np.full(grid.count, -1.0)
        numbers = grid.numbers(node.vectors)
        longest[numbers] = np.where(alive, cuts, -1.0)
        shaped = longest.reshape(grid.shape)
        covered = np.zeros(grid.shape, dtype=bool)
        for axis in range(len(grid.most)):
            smaller = (*(slice(None),) * axis, slice(0, -1))
            larger = (*(slice(None),) * axis, slice(1, None))
            covered[smaller] |= shaped[larger] >= shaped[smaller]
        return alive & ~covered.ravel()[numbers]

    def _cuts_s(self, node: Node) -> Floats:
        """Return the seconds from which on a pipeline of each vector can't win any more."""
        worth = node.worth
        longest = worth.longest_s * (1.0 + 1e-12)
        if math.isinf(self.best):
            return longest
        room = self.winning - worth.offset
        with np.errstate(divide="ignore", invalid="ignore"):
            winning = np.where(worth.slope > 0, room / worth.slope, np.where(room > 0, np.inf, -1.0))
        return np.minimum(longest, winning)

    def search(self, node: Node, most: int) -> float:
        """Look for plans of a node; return a bound on those that were passed over, as _descend does."""
        refined = node if node.refined else self.refined(node)
        if refined is None:
            return math.inf
        node = refined
        cuts = self._cuts_s(node)
        alive = self._alive(node, cuts)
        if not alive.any():
            return math.inf
        self.nodes += 1
        problem = self.parts[node.part]
        costs = problem.costs(node.size, node.replicas)
        assert costs is not None
        grid = Grid(tuple(int(count) for count in node.vectors[alive].max(axis=0)))
        sync = problem.sync_s(node.size, node.replicas)
        counted = costs.counted
        devices = int(np.asarray(grid.most)[counted].sum())
        stages = min(costs.max_stages, devices // int(costs.use[:, counted].sum(axis=1).min()), costs.layers)
        lanes, least = self._lanes(node, alive, cuts)
        # Where the busiest stage takes more than the lane below allows, so much is left for the way.
        floor = np.concatenate([[least], lanes[:-1]])
        room = cuts[alive] - node.sync_s[alive] - node.relaxed.update_s
        rest = float(room.max()) * (1.0 + 1e-9) - (node.microbatches - 1) * floor
        search = Search(
            costs=costs,
            sync_s=sync,
            grid=grid,
            suffix=suffix(costs, sync, grid, lanes, stages, at_most=problem.timed, most_s=rest),
            microbatches=node.microbatches,
            every=problem.settles,
        )
        self.cells += search.suffix.way_s.size
        roots = grid.numbers(node.vectors[alive])
        return self._descend(node, search, alive, roots, most)

    def _lanes(self, node: Node, alive: NDArray[np.bool_], cuts: Floats) -> tuple[Floats, float]:
        """Return limits on the busiest stage up to the highest that can still win, and the least it takes."""
        if node.microbatches == 1:
            return np.array([np.inf]), 0.0
        relaxed = node.relaxed
        fixed = node.sync_s[alive] + relaxed.update_s
        least = relaxed.rest_s(node.vectors[alive]) + (node.microbatches - 1) * relaxed.below_s + fixed[:, None]
        able = np.flatnonzero((least <= cuts[alive][:, None] * (1.0 + 1e-9)).any(axis=0))
        low, high = float(relaxed.below_s[able[0]]), float(relaxed.limits_s[able[-1]])
        if able[-1] + 1 == len(relaxed.limits_s):
            # Neighbours may keep a stage busy for longer than the limits, which are made with the least of them.
            costs = self.parts[node.part].costs(node.size, node.replicas)
            assert costs is not None
            high = max(high, longest_busy_s(costs))
        return np.geomspace(low, high, _LANES + 1)[1:], low

    def _descend(self, node: Node, search: Search, alive: NDArray[np.bool_], roots: Ints, most: int) -> float:
        """Extend beginnings stage by stage, of each length the `most` promising; return a bound on those dropped."""
        dropped = math.inf
        cuts = self._by_number(node, search.grid, alive, roots)
        labels, bounds = search.first_stages(roots, cuts)
        levels: list[Labels] = []
        while len(labels):
            self.pipelines += len(labels)
            done = labels.following == 0
            if done.any():
                self._judge(node, search, [*levels, labels], np.flatnonzero(done), bounds)
                cuts = self._by_number(node, search.grid, alive, roots)
            going = ~done & (bounds < cuts[labels.root])
            labels, bounds = labels[going], bounds[going]
            if len(labels) > most:
                values = self._values(node, alive, roots, labels.root, bounds)
                order = np.argsort(values, kind="stable")
                dropped = min(dropped, float(values[order[most]]))
                labels, bounds = labels[np.sort(order[:most])], bounds[np.sort(order[:most])]
            levels.append(labels)
            labels, bounds = search.extended(labels, cuts, first=len(levels) == 1)
        return dropped

    def _by_number(self, node: Node, grid: Grid, alive: NDArray[np.bool_], roots: Ints) -> Floats:
        """Return the cuts by the vectors' numbers in the grid."""
        cuts = np.zeros(grid.count)
        cuts[roots] = self._cuts_s(node)[alive]
        return cuts

    def _values(self, node: Node, alive: NDArray[np.bool_], roots: Ints, at: Ints, seconds: Floats) -> Floats:
        position = np.searchsorted(roots, at)
        return np.asarray(node.worth.slope[alive][position] * seconds + node.worth.offset[alive][position])

    def _judge(self, node: Node, search: Search, levels: list[Labels], done: Ints, bounds: Floats) -> None:
        """Put complete pipelines in place, the most promising first, while they can win by their bounds."""
        place = {int(number): index for index, number in enumerate(search.grid.numbers(node.vectors))}
        rows = [place[int(levels[-1].root[index])] for index in done]
        values = node.worth.slope[rows] * bounds[done] + node.worth.offset[rows]
        candidates = [
            Candidate(
                float(values[turn]),
                node.part,
                node.size,
                node.replicas,
                chain_of(levels, int(done[turn])),
                float(bounds[done[turn]]),
            )
            for turn in np.lexsort((done, values))
            if values[turn] < self.winning
        ]
        self.judging.judge(candidates, _JUDGED)
