"""Raises the bound on plans whose replicas may differ, always where it is lowest.

A plan's pipelines together use no more devices than there are, so at any prices one of them is worth no more than its
share, and the plan takes at least as long as that pipeline. Which prices say most is learned from the pipelines that
are found fast enough at others.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import StageCosts
from sailor_cloud.planner.even.engine import GAP, Engine
from sailor_cloud.planner.even.judging import Judging
from sailor_cloud.planner.even.priced import Differing, Priced
from sailor_cloud.planner.even.prices import nearest
from sailor_cloud.planner.even.relax import Relaxed, least_way_s, relax

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Beginnings of pipelines kept per stage, first and at last, and pipelines kept of a search.
_NARROW, _WIDE, _KEPT = 60, 600, 50
# Prices tried at one number of replicas.
_TRIES = 5
# Steps from what is known to the seconds of a known plan, within which others are looked for, one after the other; and
# from which share of those on where nothing is known.
_STEPS, _LEAST = 5, 0.5
# Searches that may leave a number of replicas below what is known before nothing more is expected of others, and by how
# much a bound is ever raised.
_FAILURES, _FARTHEST = 4, 10.0
# Vectors of devices that are told apart.
_VECTORS = 40
_PASSED = 1.0 + 1e-9
# From which excess on a pipeline like one that is found is likely to be ruled out, too.
_CLEAR = 1.03
# By how much a search at other prices has to raise a bound.
_BETTER = 1.002
# What no devices are worth.
_MUCH = 1e12


class Sharing(Differing, Protocol):
    """A space of differing replicas that says what some pipeline of every plan is worth at most.

    within_s: plans that take longer are left out.
    """

    within_s: float

    def speeds(self, size: int) -> Floats:
        """Return how fast a device of each pool is: [counted pools]."""

    def worths(self, size: int, replicas: int, prices: Floats) -> Floats:
        """Return what the pipeline whose time counts is worth at most; prices: [prices, pools], worths: [prices]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """A value that no plan of the spaces undercuts, and how many searches it took."""

    bound: float
    searches: int


@dataclass(slots=True)
class _Shared(Priced):
    """One pipeline of a plan at whole prices and one microbatch size. share: its most worth by replicas."""

    share: Callable[[int], float] = float

    def most(self, replicas: int) -> Ints:
        exact = self.inner.most(replicas)[len(self.prices) :]
        return np.array([math.floor(self.share(replicas) + 1e-9), *exact], dtype=np.int64)


@dataclass(slots=True)
class _Start:
    """A number of replicas at a microbatch size, and what was found out about it.

    first: the speeds of devices, to which prices are alike. prices: those to be tried next; best: those of the highest
    bound so far. use: [pipelines, pools], the devices of pipelines that were found fast enough, and their seconds.
    """

    part: int
    size: int
    replicas: int
    microbatches: int
    least: float
    first: Floats
    prices: Ints
    best: Ints
    use: Ints
    seconds: Floats
    tried: set[tuple[int, ...]] = field(default_factory=set)
    closed: bool = False


def raised(
    parts: Sequence[Sharing],
    *,
    known: float,
    most_searches: int,
    most_cells: float = math.inf,
    floor: float = 0.0,
    gap: float = GAP,
) -> Raised:
    """Return a bound on all plans of some spaces, not above what makes a plan of the value `known` the best.

    The spaces are compared by time alone. most_searches: of single pipelines; most_cells: of the
    tables that these make. floor: a bound that is known already.
    Plans within ever more seconds are looked for, since it takes the less to rule them out the fewer seconds they have.
    """
    raising, bound = _Raising(parts, most_searches, most_cells, floor), floor
    # Without spaces nothing is known of any plan.
    most = known * (1.0 - gap) if parts else floor
    least = min(max(floor, known * _LEAST if floor <= 0.0 else 0.0), most)
    for step in range(1, _STEPS + 1):
        within = most if step == _STEPS else least * (most / least) ** (step / _STEPS)
        if within <= bound:
            break
        found = raising.run(within)
        bound = max(bound, found)
        if found < within:
            break
    return Raised(bound=bound, searches=raising.searches)


@dataclass(slots=True)
class _Raising:
    """Looks for plans within so many seconds. failures: searches that left a bound below the floor."""

    parts: Sequence[Sharing]
    most_searches: int
    most_cells: float
    floor: float
    within: float = 0.0
    searches: int = 0
    cells: int = 0
    failures: int = 0
    _relaxed: dict[tuple[int, int], Relaxed] = field(default_factory=dict)
    _engines: dict[tuple[int, int, tuple[int, ...]], tuple[Engine, StageCosts, Relaxed]] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        spent = self.searches >= self.most_searches or self.cells >= self.most_cells
        return spent or self.failures >= _FAILURES

    def run(self, within: float) -> float:
        """Return a value that no plan undercuts, not above `within`."""
        self.within = within
        for part in self.parts:
            part.within_s = within
        starts = [start for part in range(len(self.parts)) for start in self._starts(part)]
        heap = [(start.least, start.part, start.size, start.replicas, start) for start in starts]
        heapq.heapify(heap)
        if heap and heap[0][0] * _FARTHEST < self.floor:
            return heap[0][0]
        while heap and heap[0][0] < within:
            start = heap[0][-1]
            if start.closed or self.over:
                return heap[0][0]
            self._raise(start)
            self.failures += start.least < self.floor
            heapq.heapreplace(heap, (start.least, start.part, start.size, start.replicas, start))
        return within

    def _starts(self, number: int) -> list[_Start]:
        """Return the numbers of replicas of a part that no prices rule out without a search."""
        part, found = self.parts[number], []
        every = part.prices
        for size in part.sizes():
            costs = part.costs(size, None)
            if costs is None or least_way_s(costs) >= self.within:
                continue
            if (number, size) not in self._relaxed:
                self._relaxed[number, size] = relax(costs)
            relaxed, speeds = self._relaxed[number, size], part.speeds(size)
            first, none = every[nearest(every, speeds)], np.zeros((0, len(part.devices)), dtype=np.int64)
            prices = np.concatenate([relaxed.prices_s, relaxed.worths])[:, costs.counted]
            some = _like(prices, speeds)
            for replicas, microbatches in part.counts(size):
                worths = np.full(len(prices), _MUCH)
                worths[some] = part.worths(size, replicas, prices[some])
                free = len(relaxed.prices_s)
                each = relaxed.roomy_s(worths[:free], worths[free:], microbatches)
                if each.max() < self.within:
                    found.append(
                        _Start(
                            number,
                            size,
                            replicas,
                            microbatches,
                            float(each.max()),
                            speeds,
                            first,
                            first,
                            none,
                            np.zeros(0),
                        )
                    )
        return found

    def _raise(self, start: _Start) -> None:
        """Search at the next prices, or at the best ones once more and more widely; the start's bound never falls."""
        last = len(start.tried) >= _TRIES or tuple(start.prices) in start.tried
        prices = start.best if last else start.prices
        low, use, seconds = self._searched(start, prices, _WIDE if last else _NARROW)
        if low > start.least:
            start.least, start.best = low, prices
        start.use, start.seconds = np.concatenate([start.use, use]), np.concatenate([start.seconds, seconds])
        start.closed = last
        start.tried.add(tuple(start.prices))
        if not last:
            start.prices = self._next(start)

    def _next(self, start: _Start) -> Ints:
        """Return the prices that may rule out the fastest of the pipelines found; the best ones where none can."""
        part = self.parts[start.part]
        every = np.array([each for each in part.prices if tuple(each) not in start.tried])
        if not len(every):
            return start.best
        most = np.floor(part.worths(start.size, start.replicas, every.astype(np.float64)) + 1e-9)
        over = start.use @ every.T / np.maximum(most, 0.5)
        # No search at these prices says more than this.
        least = np.where(over > _PASSED, self.within, start.seconds[:, None]).min(axis=0, initial=self.within)
        if least.max() <= start.least * _BETTER:
            return start.best
        # Clearly ruled out, at prices most like the speeds of devices.
        clear = over.min(axis=0, initial=np.inf) > _CLEAR
        return np.asarray(every[int(np.lexsort((_unlike(every, start.first), ~clear, -least))[0])])

    def _searched(self, start: _Start, prices: Ints, most: int) -> tuple[float, Ints, Floats]:
        """Return a bound at some prices, the devices of the pipelines that are fast enough, and their seconds."""
        engine, costs, relaxed = self._engine(start, prices)
        engine.judging = Judging(engine.parts, _KEPT, 0.0, self.within)
        none = start.use[:0]
        node = engine.node(0, (start.size, start.replicas, start.microbatches), costs, relaxed)
        node = None if node is None else engine.refined(node)
        if node is None:
            return math.inf, none, np.zeros(0)
        self.searches += 1
        engine.cells = 0
        passed = engine.search(node.coarse(_VECTORS), most)
        self.cells += engine.cells
        found = engine.judging.found
        low = min([passed, engine.judging.loose, *(each.value for each in found)])
        whole = self.parts[start.part].costs(start.size, start.replicas)
        assert whole is not None
        use = [whole.use[list(each.chain.kinds)].sum(axis=0)[whole.counted] for each in found]
        seconds = np.array([each.value for each in found])
        return low, np.array(use, dtype=np.int64) if use else none, seconds

    def _engine(self, start: _Start, prices: Ints) -> tuple[Engine, StageCosts, Relaxed]:
        key = (start.part, start.size, tuple(int(price) for price in prices))
        if key not in self._engines:
            part, size = self.parts[start.part], start.size

            def share(replicas: int) -> float:
                return float(part.worths(size, replicas, prices[None].astype(np.float64))[0])

            priced = _Shared(part, prices, share=share)
            costs = priced.costs(size, None)
            assert costs is not None
            self._engines[key] = Engine([priced], Judging([priced], _KEPT, 0.0, self.within)), costs, relax(costs)
        return self._engines[key]


def _like(prices: Floats, speeds: Floats) -> Ints:
    """Return the indices of prices in about the proportions of devices' speeds."""
    able = np.flatnonzero((prices > 0.0).all(axis=1))
    unlike = _unlike(prices[able], speeds).round(9)
    return np.asarray(able[unlike == unlike.min()])


def _unlike(prices: Floats | Ints, speeds: Floats) -> Floats:
    """Return how far prices are from the proportions of speeds; prices: [prices, pools]."""
    logs = np.log(prices / speeds)
    return np.asarray(logs.max(axis=1) - logs.min(axis=1))
