"""Bounds plans whose replicas of a stage are of several kinds, by one pipeline of theirs at a time.

Such a plan's pipelines together use no more devices than there are, so at any prices some pipeline's devices are worth
no more than the mean, and the plan takes at least as long as that pipeline. The search over single pipelines says what
that is at least. Prices under which nothing is fast enough rule a number of replicas out; where no prices do, pipelines
of several sorts that together keep within the devices are each fast enough, and a mix of them may be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import Chain, Worth
from sailor_cloud.planner.even.engine import GAP, Engine
from sailor_cloud.planner.even.judging import Judging
from sailor_cloud.planner.even.node import Node
from sailor_cloud.planner.even.priced import Differing, Priced
from sailor_cloud.planner.even.prices import nearest, price_vectors
from sailor_cloud.planner.even.relax import Relaxed, relax

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Prices tried at one number of replicas, and pipelines kept of each search.
TRIES = 12
_KEPT = 50
# Vectors of devices that are told apart where time is minimised.
_VECTORS = 40
_QUICK, _NARROW, WIDE = 10, 100, 3000
# Prices that ruled out something lately, and numbers of prices that are compared where money counts.
_RULING, _PAIRS = 4, 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Open:
    """A number of replicas that no prices rule out: no plan's value is below `least`.

    chains: pipelines found fast enough, at one price or another, best first.
    """

    size: int
    replicas: int
    microbatches: int
    least: float
    chains: tuple[Chain, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruled:
    """What is left of a space of differing replicas; `bound` is a value that none of its plans undercuts."""

    bound: float
    open: tuple[Open, ...]
    searches: int


def rule_out(
    problem: Differing,
    *,
    known: float = math.inf,
    gap: float = GAP,
    most_searches: int = 100_000,
    tries: int = TRIES,
    wide: int = WIDE,
) -> Ruled:
    """Return which numbers of replicas may hold a plan better than `known` by more than the gap, and a bound.

    most_searches in all, at as many prices as `tries` for one number of replicas; `wide`: beginnings of pipelines kept
    per stage at last.
    """
    ruling = _Ruling(problem, known, gap, most_searches, wide)
    rest: list[Open] = []
    bound = math.inf
    for start in ruling.starts():
        # Starts come in the order of their least seconds: from here on none lowers the bound.
        found = start.opened() if problem.timed and start.least_s >= bound else ruling.rule(start, tries, bound)
        if found is not None:
            rest.append(found)
            bound = min(bound, found.least)
    rest.sort(key=lambda each: (each.least, each.size, each.replicas))
    return Ruled(bound=min(bound, ruling.winning), open=tuple(rest), searches=ruling.searches)


@dataclass(frozen=True, slots=True)
class _Start:
    size: int
    replicas: int
    microbatches: int
    least_s: float
    prices: Ints

    def opened(self) -> Open:
        """Return what is known before any search, where time is minimised."""
        return Open(
            size=self.size, replicas=self.replicas, microbatches=self.microbatches, least=self.least_s, chains=()
        )


@dataclass(frozen=True, slots=True)
class Passed:
    """A pipeline that is fast enough at some prices: its devices by pool, and seconds of an iteration."""

    use: Ints
    seconds: float


@dataclass(slots=True)
class _Ruling:
    problem: Differing
    known: float
    gap: float
    most_searches: int
    wide: int
    searches: int = 0
    _ruling: list[Ints] = field(default_factory=list)
    _engines: dict[tuple[int, ...], tuple[Engine, dict[int, Relaxed]]] = field(default_factory=dict)

    @property
    def winning(self) -> float:
        return self.known * (1.0 - self.gap)

    def starts(self) -> list[_Start]:
        """Return the numbers of replicas that all pools' relaxations together leave, the most promising first."""
        found = []
        every = price_vectors(len(self.problem.devices))
        for size in self.problem.sizes():
            costs = self.problem.costs(size, None)
            if costs is None:
                continue
            relaxed = relax(costs)
            for replicas, microbatches in self.problem.counts(size):
                mean = np.zeros(len(costs.counted))
                mean[costs.counted] = self.problem.devices / replicas
                each = relaxed.priced_s(mean, microbatches)
                every_price = np.concatenate([relaxed.prices_s[1:], relaxed.worths])
                least, price = float(each.max()), every_price[int(each[1:].argmax())][costs.counted]
                if least > self._longest_s(size, replicas, len(costs.counted) - len(self.problem.devices)):
                    continue
                found.append(_Start(size, replicas, microbatches, least, every[nearest(every, price)]))
        return sorted(found, key=lambda start: (start.least_s, start.size, start.replicas))

    def _longest_s(self, size: int, replicas: int, exact: int) -> float:
        """Return the most seconds of any use: those that the limits leave to devices without any worth."""
        nothing = np.concatenate([[0], np.ones(exact, dtype=np.int64)])[None]
        prices = np.ones(len(self.problem.devices), dtype=np.int64)
        longest = float(self.problem.worth_priced(size, replicas, nothing, prices).longest_s[0])
        return min(longest, self.winning, 1e300) if self.problem.timed else min(longest, 1e300)

    def rule(self, start: _Start, tries: int, floor: float) -> Open | None:
        """Return what prices leave of a number of replicas, None if nothing.

        What is not below `floor` is not looked at more closely, since something else is.
        """
        least, chains = (start.least_s if self.problem.timed else 0.0), dict[Chain, Passed]()
        rents, best = self.problem.rents, -math.inf
        # What ruled out others often rules out this one.
        if any(self._searched(start, prices, ())[0] == math.inf for prices in self._ruling):
            return None
        first = [start.prices] if rents is None else [start.prices, rents] if self.problem.timed else [rents]
        prices = last = first[0]
        for turn in range(tries if self.problem.timed else min(tries, len(first))):
            prices = first[turn] if turn < len(first) else prices
            low, found = self._searched(start, prices, (_QUICK, _NARROW))
            least = max(least, low)
            if least >= self.winning:
                self._ruling = [prices, *(each for each in self._ruling if (each != prices).any())][:_RULING]
                return None
            best, last = (low, prices) if low > best else (best, last)
            chains |= found
            if least >= floor:
                break
            fresh = self._prices(start, chains)
            if turn + 1 >= len(first) and (fresh is None or not found):
                break
            prices = prices if fresh is None else fresh
        if least < floor:
            low, found = self._searched(start, last, (self.wide,))
            least, chains = max(least, low), chains | found
            if least >= self.winning:
                return None
        return Open(
            size=start.size,
            replicas=start.replicas,
            microbatches=start.microbatches,
            least=least,
            chains=tuple(chains),
        )

    def _searched(self, start: _Start, prices: Ints, widths: tuple[int, ...]) -> tuple[float, dict[Chain, Passed]]:
        """Return a bound at some prices, and each pipeline found that is fast enough.

        widths: beginnings kept per stage, ever more until something is found or ruled out; none to look at bounds only.
        """
        engine, relaxed = self._engine(prices)
        costs = engine.parts[0].costs(start.size, None)
        assert costs is not None
        if start.size not in relaxed:
            relaxed[start.size] = relax(costs)
        # Every search begins anew: what is known is that of a whole plan.
        engine.judging = Judging(engine.parts, _KEPT, self.gap, self.known)
        counts = (start.size, start.replicas, start.microbatches)
        node = engine.node(0, counts, costs, relaxed[start.size])
        node = None if node is None else engine.refined(node)
        if node is None:
            return math.inf, {}
        node = _coarse(node) if self.problem.timed else node
        low = -math.inf
        for most in widths:
            if self.searches >= self.most_searches:
                break
            self.searches += 1
            engine.judging = Judging(engine.parts, _KEPT, self.gap, self.known)
            passed = engine.search(node, most)
            low = min([passed, engine.judging.loose, *(found.value for found in engine.judging.found)])
            if engine.judging.found or low >= self.winning:
                break
        return low, self._passed(start, prices, engine)

    def _passed(self, start: _Start, prices: Ints, engine: Engine) -> dict[Chain, Passed]:
        whole = self.problem.costs(start.size, start.replicas)
        assert whole is not None
        passed = {}
        for found in engine.judging.found:
            use = whole.use[list(found.chain.kinds)].sum(axis=0)
            worth = self._worth(start, use[None], prices)
            slope = float(worth.slope[0])
            seconds = (found.value - float(worth.offset[0])) / slope if slope > 0 else 0.0
            passed[found.chain] = Passed(use, seconds)
        return passed

    def _worth(self, start: _Start, use: Ints, prices: Ints) -> Worth:
        counted = len(prices)
        priced = np.hstack([(use[:, :counted] @ prices)[:, None], use[:, counted:]])
        return self.problem.worth_priced(start.size, start.replicas, priced, prices)

    def _engine(self, prices: Ints) -> tuple[Engine, dict[int, Relaxed]]:
        key = tuple(int(price) for price in prices)
        if key not in self._engines:
            parts = [Priced(self.problem, prices)]
            self._engines[key] = (Engine(parts, Judging(parts, _KEPT, self.gap, self.known)), {})
        return self._engines[key]

    def _prices(self, start: _Start, chains: dict[Chain, Passed]) -> Ints | None:
        """Return the prices that come nearest to ruling out all pipelines found, None if they rule out not even one."""
        every = price_vectors(len(self.problem.devices))
        if not chains or len(every) == 1:
            return None
        use = np.array([passed.use for passed in chains.values()])
        mean = (every @ self.problem.devices) // start.replicas
        over = use[:, : every.shape[1]] @ every.T / np.maximum(mean, 0.5)
        if self.problem.rents is not None and len(every) <= _PAIRS:
            seconds = np.array([passed.seconds for passed in chains.values()])
            for column, prices in enumerate(every):
                worth = self._worth(start, use, prices)
                late = np.where(worth.longest_s > 0, seconds / np.maximum(worth.longest_s, 1e-12), np.inf)
                value = (worth.slope * seconds + worth.offset) / self.winning if math.isfinite(self.known) else 0.0
                over[:, column] = np.maximum(np.maximum(over[:, column], late), value)
        best = int(over.min(axis=0).argmax())
        return every[best] if over[:, best].min() > 1.0 + 1e-9 else None


def _coarse(node: Node) -> Node:
    """Return the node with few vectors of devices, each for those of no more worth down to the next one.

    A pipeline may leave devices over where time is minimised, and a vector counts with the best of what it stands for.
    """
    if len(node.vectors) <= _VECTORS or (node.vectors[:, 1:] != node.vectors[0, 1:]).any():
        return node
    order = np.lexsort(node.vectors.T)
    parts = np.array_split(order, _VECTORS)

    def least(values: Floats) -> Floats:
        return np.array([values[part].min() for part in parts])

    return replace(
        node,
        vectors=node.vectors[order][[part[-1] for part in np.array_split(np.arange(len(order)), _VECTORS)]],
        sync_s=least(node.sync_s),
        least_s=least(node.least_s),
        worth=Worth(
            slope=least(node.worth.slope), offset=least(node.worth.offset), longest_s=-least(-node.worth.longest_s)
        ),
    )
