"""The best zones of one chain's pipelines, as an integer programme over all ways of putting a pipeline in zones."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice, permutations, product

import numpy as np
from numpy.typing import NDArray
from sailor_formulas import USD_PER_HOUR
from sailor_order import best_walk, quick_ways
from sailor_places import Placer, Rated, Runs, Zones, as_runs
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from scipy.sparse import csr_matrix

Floats = NDArray[np.float64]

# Ways of a pipeline that are looked at together; with more, nothing is said of the chain.
_MOST_WAYS = 400
# Orders of the ways along the rings that are tried at most.
_MOST_ORDERS = 24
# Runs whose best order is searched.
_MOST_RUNS = 10
_NODES = 3000
# Shares by which ways may be slower for the sake of quicker hops.
_SLACKS = (1e-9, 0.02, 0.1)
_EXACT = 1e-5
# The solver's word for a programme without a solution.
_IMPOSSIBLE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a plan has to be: seconds and USD of an iteration at most, and a value below which it is of any use.

    The value is USD where `cheapest`, else seconds.
    """

    longest_s: float
    budget: float
    cheapest: bool
    below: float

    @property
    def within_s(self) -> float:
        return self.longest_s if self.cheapest else min(self.longest_s, self.below)

    def value(self, rated: Rated) -> float:
        return rated.usd if self.cheapest else rated.seconds

    def keeps(self, rated: Rated) -> bool:
        return rated.seconds <= self.longest_s and rated.usd <= self.budget


@dataclass(slots=True)
class Assignment:
    """One chain with its replicas; sum_s: seconds that its longest gradient sum takes at least."""

    placer: Placer
    replicas: int
    sum_s: float

    @property
    def microbatches(self) -> int:
        return -(-self.placer.links.artifact.batch // (self.placer.size * self.replicas))

    @property
    def usd_per_s(self) -> float:
        return sum(USD_PER_HOUR[kind.gpu] * kind.tp for kind in self.placer.stages) * self.replicas / 3600.0

    def best(self, wanted: Wanted, *, closely: bool) -> tuple[Rated | None, float]:
        """Return the best places found and a value that none undercuts, but for those of `wanted.below` and more."""
        filled = list(self.placer.filled(self.replicas))
        found = [self.placer.rate(runs) for runs in (*filled, *map(self._ordered, filled))]
        best = min(filter(wanted.keeps, found), key=wanted.value, default=None)
        ways = self._ways(wanted) if closely else None
        if ways is None:
            return best, -np.inf
        if not ways:
            return best, np.inf
        solved, bound = self._solved(ways, wanted)
        for rated in solved:
            if wanted.keeps(rated) and (best is None or wanted.value(rated) < wanted.value(best)):
                best = rated
        return best, bound

    def _ways(self, wanted: Wanted) -> list[Zones] | None:
        """Return the zones of single pipelines that are fast enough; None if they are too many."""
        placer, count = self.placer, len(self.placer.stages)
        ways: list[Zones] = [()]
        for stage, kind in enumerate(placer.stages):
            able = [zone for zone in placer.zones if placer.devices.get((kind.gpu, zone), 0) >= kind.tp]
            ways = [(*way, zone) for way, zone in product(ways, able)]
            ways = [way for way in ways if self._least_s(way, min(stage, count - 1)) < wanted.within_s]
            if len(ways) > _MOST_WAYS:
                return None
        ways = [way for way in ways if self._least_s(way, count) < wanted.within_s]
        if wanted.cheapest:
            ways = [way for way in ways if self.usd_per_s * self._least_s(way, count) < wanted.below]
        return ways

    def _least_s(self, way: Zones, known: int) -> float:
        """Return the seconds of an iteration by the zones of a pipeline, whose first stages' neighbours are known."""
        paces = self.placer.compute.copy()
        for stage in range(known):
            paces[stage] += self.placer.pace_s(stage, way)
        return float((self.microbatches - 1) * paces.max() + paces.sum() + self.placer.update + self.sum_s)

    def _solved(self, ways: list[Zones], wanted: Wanted) -> tuple[list[Rated], float]:
        counts, bound = _Programme(self, ways, wanted).solve()
        if counts is None:
            return [], bound
        runs = tuple((int(count), way) for count, way in zip(counts, ways, strict=True) if count)
        orders = [*islice(permutations(runs), _MOST_ORDERS), self._ordered(runs), self._in_a_row(runs)]
        rated = [self.placer.rate(order) for order in orders]
        if not wanted.cheapest and len(self.placer.zones) > 1:
            best = min(rated, key=lambda each: each.seconds)
            # Ways that are about as quick may follow each other over quicker hops.
            most_s = self.placer.longest_sum_s(best.runs)
            for slack in _SLACKS:
                quick = quick_ways(self.placer, ways, runs, slack)
                walk = best_walk(self.placer, self.replicas, quick, self.sum_s, most_s)
                rated += [] if walk is None else [self.placer.rate(walk)]
        return rated, bound

    def _in_a_row(self, runs: Runs) -> Runs:
        """Return the runs, each in one piece, in the order whose slowest hop is fastest."""
        if not 1 < len(runs) <= _MOST_RUNS:
            return runs
        hops = [[self.placer.slowest_hop_s(a, b, self.replicas) for _, b in runs] for _, a in runs]
        # By the runs that are placed and the last of them: the slowest hop so far, and the order.
        best = {(1 << at, at): (0.0, (at,)) for at in range(len(runs))}
        for _ in runs[1:]:
            longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
            for (placed, last), (slowest, order) in best.items():
                for at in range(len(runs)):
                    if not placed >> at & 1:
                        key, entry = (placed | 1 << at, at), (max(slowest, hops[last][at]), (*order, at))
                        longer[key] = min(longer.get(key, entry), entry)
            best = longer
        return tuple(runs[at] for at in min(best.values())[1])

    def _ordered(self, runs: Runs) -> Runs:
        """Return the pipelines in an order in which the slowest hop of their sums is fast; equal ones may be apart."""
        ways = sorted({way for _, way in runs})
        hops = np.array([[self.placer.slowest_hop_s(a, b, self.replicas) for b in ways] for a in ways])
        left = [sum(count for count, each in runs if each == way) for way in ways]
        for limit in np.unique(hops[hops >= _joined_s(hops)]):
            allowed = (hops <= limit).tolist()
            for first in range(len(ways)):
                order = _chained(allowed, left, first)
                if order is not None:
                    return as_runs([ways[at] for at in order])
        return runs


class _Programme:
    """Columns, from the first on: pipelines by way; whether a way is used; seconds that each stage sends; seconds of
    the longest stage and of the longest sum. Then for each stage its hops from zone to zone, whether there are any,
    where its ring begins and ends, and, where money counts, whether it stands in a zone, and whether in several."""

    def __init__(self, chain: Assignment, ways: list[Zones], wanted: Wanted) -> None:
        self.chain, self.ways, self.wanted = chain, ways, wanted
        self.stages, self.count, self.zones = len(chain.placer.stages), len(ways), chain.placer.zones
        self.paid = wanted.cheapest or wanted.budget < np.inf
        self.entries: list[tuple[int, int, float]] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self.width = 2 * self.count + self.stages + 2
        self.whole = list(range(2 * self.count))
        self.usd: dict[int, float] = {}

    def solve(self) -> tuple[Floats | None, float]:
        """Return the pipelines by way, None if there are none, and a bound on the value."""
        chain, placer = self.chain, self.chain.placer
        paces = np.array([[placer.pace_s(stage, way) for stage in range(self.stages)] for way in self.ways])
        fixed = float(placer.compute.sum()) + placer.update
        seconds = dict.fromkeys(range(2 * self.count, self._longest), 1.0)
        seconds |= {self._longest: float(chain.microbatches - 1), self._longest + 1: 1.0}
        self._places()
        self._times(paces)
        for stage in range(self.stages):
            self._ring(stage)
            if self.paid:
                self._traffic(stage)
        samples = chain.microbatches * placer.size
        self.usd |= {at: placer.crossing_usd(way, samples) for at, way in enumerate(self.ways)}
        usd = self.usd | {at: each * chain.usd_per_s for at, each in seconds.items()}
        self._add(seconds, high=self.wanted.within_s - fixed)
        limit = min(self.wanted.budget, self.wanted.below if self.wanted.cheapest else np.inf)
        self._add(usd, high=limit - chain.usd_per_s * fixed)
        goal, more = (usd, chain.usd_per_s * fixed) if self.wanted.cheapest else (seconds, fixed)
        solved = self._solved(goal, paces)
        if solved.status == _IMPOSSIBLE:
            return None, np.inf
        bound = -np.inf if solved.mip_dual_bound is None else float(solved.mip_dual_bound) + more
        return None if solved.x is None else np.round(solved.x[: self.count]), bound

    @property
    def _longest(self) -> int:
        return 2 * self.count + self.stages

    def _solved(self, goal: dict[int, float], paces: Floats) -> OptimizeResult:
        cost, whole, least = np.zeros(self.width), np.zeros(self.width), np.zeros(self.width)
        cost[list(goal)] = list(goal.values())
        whole[self.whole] = 1
        least[2 * self.count : self._longest] = paces.min(axis=0)
        least[self._longest + 1] = self.chain.sum_s
        rows, columns, values = zip(*self.entries, strict=True)
        matrix = csr_matrix((values, (rows, columns)), shape=(len(self.low), self.width))
        return milp(
            cost,
            integrality=whole,
            bounds=Bounds(least, np.full(self.width, np.inf)),
            constraints=LinearConstraint(matrix, self.low, self.high),
            options={"node_limit": _NODES, "mip_rel_gap": _EXACT},
        )

    def _column(self) -> int:
        """Return a new column of whole numbers."""
        self.whole.append(self.width)
        self.width += 1
        return self.width - 1

    def _add(self, row: dict[int, float], *, low: float = -np.inf, high: float = np.inf) -> None:
        self.entries += [(len(self.low), column, value) for column, value in row.items()]
        self.low.append(low)
        self.high.append(high)

    def _places(self) -> None:
        placer, replicas = self.chain.placer, self.chain.replicas
        self._add(dict.fromkeys(range(self.count), 1.0), low=replicas, high=replicas)
        used = [placer.used(way) for way in self.ways]
        for place, there in placer.devices.items():
            self._add({at: float(each[place]) for at, each in enumerate(used) if each[place]}, high=there)
        for at in range(self.count):
            self._add({at: 1.0, self.count + at: -replicas}, high=0.0)
            self._add({self.count + at: 1.0}, high=1.0)

    def _times(self, paces: Floats) -> None:
        for stage in range(self.stages):
            column = 2 * self.count + stage
            self._add({self._longest: 1.0, column: -1.0}, low=float(self.chain.placer.compute[stage]))
            least = paces[:, stage].min()
            for at in range(self.count):
                # A way that is used keeps the stage busy for so long.
                if paces[at, stage] > least:
                    self._add({column: 1.0, self.count + at: -(paces[at, stage] - least)}, low=least)

    def _ring(self, stage: int) -> None:
        """All replicas but the last have a hop to the next; a slow hop that is there makes the sum slow."""
        replicas, least = self.chain.replicas, self.chain.sum_s
        if replicas < 2:
            return
        out: dict[str, dict[int, float]] = {zone: {self._column(): 1.0} for zone in self.zones}
        into: dict[str, dict[int, float]] = {zone: {self._column(): 1.0} for zone in self.zones}
        for row in (out, into):
            self._add({column: 1.0 for ends in row.values() for column in ends}, high=1.0)
        for src, dst in product(self.zones, self.zones):
            hops = self._column()
            out[src][hops] = into[dst][hops] = 1.0
            slow = self.chain.placer.hop_s(stage, src, dst, replicas)
            if slow > least:
                there = self._column()
                self._add({hops: 1.0, there: -replicas}, high=0.0)
                self._add({there: 1.0}, high=1.0)
                self._add({self._longest + 1: 1.0, there: least - slow}, low=least)
        for zone in self.zones:
            here = {at: -1.0 for at, way in enumerate(self.ways) if way[stage] == zone}
            for row in (out, into):
                self._add(row[zone] | here, low=0.0, high=0.0)

    def _traffic(self, stage: int) -> None:
        """A stage with replicas in several zones sums across zones."""
        split = self._column()
        self.usd[split] = self.chain.placer.least_sum_usd(stage, self.chain.replicas)
        zones = [self._column() for _ in self.zones]
        for zone, column in zip(self.zones, zones, strict=True):
            here = {at: 1.0 for at, way in enumerate(self.ways) if way[stage] == zone}
            self._add(here | {column: -float(self.chain.replicas)}, high=0.0)
        self._add(dict.fromkeys(zones, 1.0) | {split: 1.0 - len(zones)}, high=1.0)


def _joined_s(hops: Floats) -> float:
    """Return the least limit on hops, in either direction, at which all ways hang together; no order is faster."""
    either, left = np.minimum(hops, hops.T), np.arange(1, len(hops))
    nearest, slowest = either[0], 0.0
    while len(left):
        at = int(nearest[left].argmin())
        slowest = max(slowest, float(nearest[left[at]]))
        nearest, left = np.minimum(nearest, either[left[at]]), np.delete(left, at)
    return slowest


def _chained(allowed: list[list[bool]], counts: list[int], first: int) -> list[int] | None:
    """Return numbers, each as often as counted, whose neighbours are all allowed; None if there is no easy order."""
    left, order = list(counts), [first]
    left[first] -= 1
    for _ in range(sum(left)):
        after = allowed[order[-1]]
        able = [at for at, count in enumerate(left) if count and after[at]]
        if not able:
            return None
        # What can't follow itself is used up first, else the most frequent.
        order.append(min(able, key=lambda at: (allowed[at][at], -left[at], at)))
        left[order[-1]] -= 1
    return order
