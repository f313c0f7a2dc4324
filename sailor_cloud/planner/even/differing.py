"""Bounds plans whose replicas of a stage are of several kinds, by one pipeline of theirs at a time.

Such a plan's pipelines together use no more devices than there are, so at any prices some pipeline's devices are worth
no more than the mean, and the plan takes at least as long as that pipeline. The search over single pipelines says what
that is at least. Prices under which nothing is fast enough rule a number of replicas out; where no prices do, pipelines
of several sorts that together keep within the devices are each fast enough, and a mix of them may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import Chain, Worth
from sailor_cloud.planner.even.engine import GAP, Engine
from sailor_cloud.planner.even.judging import Judging
from sailor_cloud.planner.even.node import Node
from sailor_cloud.planner.even.priced import Differing, Priced
from sailor_cloud.planner.even.relax import Relaxed, relax

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Prices of a device, in whole numbers: all of these for two pools, some for more.
_HIGHEST = 12
_PAIR = 2
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_FEW_POOLS = 3
# Prices tried at one number of replicas, and pipelines kept of each search.
TRIES = 12
_KEPT = 50
# Vectors of devices that are told apart where time is minimised.
_VECTORS = 40
_QUICK, _NARROW, WIDE = 10, 100, 3000


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
    # Where no plan is known, nothing can be ruled out but what doesn't fit.
    tries = tries if math.isfinite(known) else 1
    rest: list[Open] = []
    bound = math.inf
    for start in ruling.starts():
        # Starts come in the order of their least seconds: from here on none lowers the bound.
        found = start.opened() if problem.timed and start.least_s >= bound else ruling.rule(start, tries)
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


@dataclass(slots=True)
class _Ruling:
    problem: Differing
    known: float
    gap: float
    most_searches: int
    wide: int
    searches: int = 0
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
                if math.isinf(least) or (self.problem.timed and least >= self.winning):
                    continue
                found.append(_Start(size, replicas, microbatches, least, every[_nearest(every, price)]))
        return sorted(found, key=lambda start: (start.least_s, start.size, start.replicas))

    def rule(self, start: _Start, tries: int) -> Open | None:
        """Return what prices leave of a number of replicas, None if nothing."""
        least, chains = (start.least_s if self.problem.timed else 0.0), dict[Chain, Ints]()
        rents = self.problem.rents
        first = [start.prices] if rents is None else [start.prices, rents] if self.problem.timed else [rents]
        prices = first[0]
        for turn in range(tries):
            prices = first[turn] if turn < len(first) else prices
            low, found = self._searched(start, prices, (_QUICK, _NARROW))
            least = max(least, low)
            if least >= self.winning:
                return None
            chains |= found
            fresh = self._prices(start, chains)
            if turn + 1 >= len(first) and (fresh is None or not found):
                break
            prices = prices if fresh is None else fresh
        # Money is counted best by rents.
        last = prices if self.problem.timed or rents is None else rents
        low, found = self._searched(start, last, (self.wide,))
        least = max(least, low)
        if least >= self.winning:
            return None
        return Open(
            size=start.size,
            replicas=start.replicas,
            microbatches=start.microbatches,
            least=least,
            chains=tuple(chains | found),
        )

    def _searched(self, start: _Start, prices: Ints, widths: tuple[int, ...]) -> tuple[float, dict[Chain, Ints]]:
        """Return a bound at some prices, and the devices of each pipeline found that is fast enough.

        widths: beginnings kept per stage, ever more until something is found or ruled out.
        """
        engine, relaxed = self._engine(prices)
        costs = engine.parts[0].costs(start.size, None)
        whole = self.problem.costs(start.size, start.replicas)
        assert costs is not None
        assert whole is not None
        if start.size not in relaxed:
            relaxed[start.size] = relax(costs)
        counts = (start.size, start.replicas, start.microbatches)
        low = -math.inf
        for most in widths:
            if self.searches >= self.most_searches:
                break
            self.searches += 1
            # Every search begins anew: what is known is that of a whole plan.
            engine.judging = Judging(engine.parts, _KEPT, self.gap, self.known)
            node = engine.node(0, counts, costs, relaxed[start.size])
            if node is None:
                return math.inf, {}
            passed = engine.search(_coarse(node) if self.problem.timed else node, most)
            low = min([passed, engine.judging.loose, *(found.value for found in engine.judging.found)])
            if engine.judging.found or low >= self.winning:
                break
        use = whole.use[:, whole.counted]
        return low, {found.chain: use[list(found.chain.kinds)].sum(axis=0) for found in engine.judging.found}

    def _engine(self, prices: Ints) -> tuple[Engine, dict[int, Relaxed]]:
        key = tuple(int(price) for price in prices)
        if key not in self._engines:
            parts = [Priced(self.problem, prices)]
            self._engines[key] = (Engine(parts, Judging(parts, _KEPT, self.gap, self.known)), {})
        return self._engines[key]

    def _prices(self, start: _Start, chains: dict[Chain, Ints]) -> Ints | None:
        """Return the prices at which all pipelines found are worth most beyond the mean; None if there are none."""
        every = price_vectors(len(self.problem.devices))
        if not chains or len(every) == 1:
            return None
        mean = (every @ self.problem.devices) // start.replicas
        over = (np.array(list(chains.values())) @ every.T / np.maximum(mean, 0.5)).min(axis=0)
        best = int(over.argmax())
        return every[best] if over[best] > 1.0 + 1e-9 else None


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


def whole_prices(values: Floats) -> Ints:
    """Return whole prices in about the same proportions."""
    every = price_vectors(len(values))
    return np.asarray(every[_nearest(every, values)])


def _nearest(every: Ints, price: Floats) -> int:
    """Return the whole prices in about the same proportions."""
    logs = np.log(every / every.sum(axis=1, keepdims=True))
    wanted = np.log(price / price.sum())
    return int(((logs - wanted) ** 2).sum(axis=1).argmin())


@cache
def price_vectors(pools: int) -> Ints:
    """Return whole prices without a common divisor, shape [vectors, pools]."""
    return np.array(sorted(_vectors(pools)), dtype=np.int64)


def _vectors(pools: int) -> Iterator[tuple[int, ...]]:
    if pools == 1:
        yield (1,)
        return
    steps: Sequence[int] = range(1, _HIGHEST + 1) if pools == _PAIR else _STEPS
    if pools > _FEW_POOLS:
        # One pool dearer or cheaper than the others.
        yield (1,) * pools
        for pool, price in product(range(pools), _STEPS[1:]):
            yield tuple(price if pool == each else 1 for each in range(pools))
            yield tuple(1 if pool == each else price for each in range(pools))
        return
    for vector in product(steps, repeat=pools):
        if math.gcd(*vector) == 1:
            yield vector
