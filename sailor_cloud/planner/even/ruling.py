"""Rules out numbers of replicas, or says what prices leave of them; see differing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import Chain, Worth
from sailor_cloud.planner.even.engine import Engine
from sailor_cloud.planner.even.judging import Judging
from sailor_cloud.planner.even.node import Node
from sailor_cloud.planner.even.priced import Differing, Priced
from sailor_cloud.planner.even.prices import amidst, nearest, whole_prices
from sailor_cloud.planner.even.relax import Relaxed, least_way_s, relax

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Pipelines kept of each search.
_KEPT = 50
# Vectors of devices that are told apart where time is minimised.
_VECTORS = 40
_QUICK, _NARROW = 10, 100
# From which share of its devices' worth or of its value on a pipeline passes no more.
_PASSED = 1.0 + 1e-9
# Prices that ruled out something lately.
_RULING = 4
# By how much more than its rent a device may be worth.
_SCARCER = (1.25, 1.5, 2.0, 3.0, 5.0, 9.0)


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


@dataclass(frozen=True, slots=True)
class Start:
    size: int
    replicas: int
    microbatches: int
    least_s: float
    prices: Ints
    stages: int | None = None

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
class Ruling:
    problem: Differing
    known: float
    gap: float
    most_searches: int
    wide: int
    searches: int = 0
    _ruling: list[Ints] = field(default_factory=list)
    _engines: dict[tuple[tuple[int, ...], int | None], Engine] = field(default_factory=dict)
    _relaxed: dict[tuple[int, ...], dict[int, Relaxed]] = field(default_factory=dict)

    @property
    def winning(self) -> float:
        return self.known * (1.0 - self.gap)

    def starts(self) -> list[Start]:
        """Return the numbers of replicas that all pools' relaxations together leave, the most promising first."""
        found, every = [], self.problem.prices
        for size in self.problem.sizes():
            costs = self.problem.costs(size, None)
            if costs is None or (self.problem.timed and least_way_s(costs) >= self.winning):
                continue
            relaxed = relax(costs)
            for replicas, microbatches in self.problem.counts(size):
                mean = np.zeros(len(costs.counted))
                mean[costs.counted] = self.problem.devices / self.problem.bounded(replicas)
                each = relaxed.priced_s(mean, microbatches)
                every_price = np.concatenate([relaxed.prices_s[1:], relaxed.worths])
                least, price = float(each.max()), every_price[int(each[1:].argmax())][costs.counted]
                if least > self._longest_s(size, replicas, len(costs.counted) - len(self.problem.devices)):
                    continue
                found.append(Start(size, replicas, microbatches, least, every[nearest(every, price)]))
        return sorted(found, key=lambda start: (start.least_s, start.size, start.replicas))

    def _longest_s(self, size: int, replicas: int, exact: int) -> float:
        """Return the most seconds of any use: those that the limits leave to devices without any worth."""
        nothing = np.concatenate([[0], np.ones(exact, dtype=np.int64)])[None]
        prices = np.ones(len(self.problem.devices), dtype=np.int64)
        longest = float(self.problem.worth_priced(size, replicas, nothing, prices).longest_s[0])
        return min(longest, self.winning, 1e300) if self.problem.timed else min(longest, 1e300)

    def again(self, numbers: Sequence[Open]) -> list[Start]:
        """Return numbers of replicas that another problem of the same plans has left open, the most promising first."""
        middle = amidst(self.problem.prices)
        found = [Start(each.size, each.replicas, each.microbatches, each.least, middle) for each in numbers]
        return sorted(found, key=lambda start: (start.least_s, start.size, start.replicas))

    def rule(self, start: Start, tries: int, floor: float) -> Open | None:
        """Return what prices leave of a number of replicas, None if nothing.

        What is not below `floor` is not looked at more closely, since something else is.
        """
        least, chains = (start.least_s if self.problem.timed else 0.0), dict[Chain, Passed]()
        best, last, widely = -math.inf, start.prices, None
        # What ruled out others often rules out this one.
        if any(self._least(start, prices) == math.inf for prices in self._ruling):
            return None
        ladder = self._ladder(start, tries)
        # What ruled out another one last is tried first where there are several tries.
        first = self._ruling[:1] if ladder is None and tries > 1 else []
        for _ in range(tries):
            borrowed = bool(first)
            prices = first.pop() if borrowed else self._prices(start, chains, ladder)
            if prices is None:
                break
            low, found = self._searched(start, prices, (_QUICK, _NARROW))
            if not found and low < self.winning and self.wide > _NARROW:
                low, found = self._searched(start, prices, (self.wide,))
                widely = prices
            least = max(least, low)
            if least >= self.winning:
                self._ruling = [prices, *(each for each in self._ruling if (each != prices).any())][:_RULING]
                return None
            best, last = (low, prices) if low > best else (best, last)
            chains |= found
            # Where nothing was found, the next prices would be the same.
            if least >= floor or (ladder is None and not found and not borrowed):
                break
        if least < floor and last is not widely:
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

    def apart(self, start: Start, whole: Open, tries: int, floor: float) -> Open | None:
        """Return what is left where numbers of stages are told apart: all pipelines have equally many."""
        costs = self.problem.costs(start.size, start.replicas)
        assert costs is not None
        rest = [
            found
            for stages in range(1, min(costs.max_stages, costs.layers) + 1)
            if (found := self.rule(replace(start, stages=stages), tries, floor)) is not None
        ]
        least = max(whole.least, min((found.least for found in rest), default=math.inf))
        chains = dict.fromkeys(chain for found in rest for chain in found.chains)
        return replace(whole, least=least, chains=tuple(chains)) if least < self.winning else None

    def _ladder(self, start: Start, tries: int) -> list[Ints] | None:
        """Return the prices that may be tried where money counts, those with the highest bounds before a search first.

        They are rents, and rents that make some device scarcer.
        """
        rents, pools = self.problem.rents, len(self.problem.devices)
        if rents is None:
            return None
        if tries == 1:
            return [start.prices if self.problem.timed else rents]
        scarcer = [np.where(np.arange(pools) == pool, step, 1.0) for step in _SCARCER for pool in range(pools)]
        every = [rents] if pools == 1 else [rents, *(whole_prices(rents.astype(np.float64) * each) for each in scarcer)]
        bounds: dict[tuple[int, ...], float] = {}
        for prices in [*every, start.prices] if self.problem.timed else every:
            bounds[tuple(int(price) for price in prices)] = least = self._least(start, prices)
            if least == math.inf:
                return [prices]
        return [np.array(prices) for prices in sorted(bounds, key=lambda prices: (-bounds[prices], prices))]

    def _least(self, start: Start, prices: Ints) -> float:
        """Return a bound at some prices without a search."""
        node = self._node(start, prices)
        return math.inf if node is None else node.value

    def _searched(self, start: Start, prices: Ints, widths: tuple[int, ...]) -> tuple[float, dict[Chain, Passed]]:
        """Return a bound at some prices, and each pipeline found that is fast enough.

        widths: beginnings kept per stage, ever more until something is found or ruled out.
        """
        node = self._node(start, prices)
        if node is None:
            return math.inf, {}
        engine, _ = self._engine(prices, start.stages)
        node = node.coarse(_VECTORS) if self.problem.timed else node
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

    def _node(self, start: Start, prices: Ints) -> Node | None:
        engine, relaxed = self._engine(prices, start.stages)
        costs = engine.parts[0].costs(start.size, None)
        assert costs is not None
        if start.size not in relaxed:
            every = self._engine(prices, None)[0].parts[0].costs(start.size, None)
            assert every is not None
            relaxed[start.size] = relax(every)
        # Every search begins anew: what is known is that of a whole plan.
        engine.judging = Judging(engine.parts, _KEPT, self.gap, self.known)
        counts = (start.size, start.replicas, start.microbatches)
        node = engine.node(0, counts, costs, relaxed[start.size])
        return None if node is None else engine.refined(node)

    def _passed(self, start: Start, prices: Ints, engine: Engine) -> dict[Chain, Passed]:
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

    def _worth(self, start: Start, use: Ints, prices: Ints) -> Worth:
        counted = len(prices)
        priced = np.hstack([(use[:, :counted] @ prices)[:, None], use[:, counted:]])
        return self.problem.worth_priced(start.size, start.replicas, priced, prices)

    def _engine(self, prices: Ints, stages: int | None) -> tuple[Engine, dict[int, Relaxed]]:
        """Return what searches at some prices, and its bounds by microbatch size, for any number of stages."""
        key = tuple(int(price) for price in prices)
        if (key, stages) not in self._engines:
            parts = [Priced(self.problem, prices, stages)]
            self._engines[key, stages] = Engine(parts, Judging(parts, _KEPT, self.gap, self.known))
        return self._engines[key, stages], self._relaxed.setdefault(key, {})

    def _prices(self, start: Start, chains: dict[Chain, Passed], left: list[Ints] | None) -> Ints | None:
        """Return the prices to be tried next, None if there are none: no pipeline that was found passes at them.

        left: what is left of the ladder, if there is one.
        """
        every = self.problem.prices if left is None else np.array(left)
        if not len(every):
            return None
        if not chains:
            return start.prices if left is None else left.pop(0)
        use = np.array([passed.use for passed in chains.values()])
        mean = (every @ self.problem.devices) // self.problem.bounded(start.replicas)
        over = use[:, : every.shape[1]] @ every.T / np.maximum(mean, 0.5)
        if left is not None:
            seconds = np.array([passed.seconds for passed in chains.values()])
            for column, prices in enumerate(every):
                worth = self._worth(start, use, prices)
                late = np.where(worth.longest_s > 0, seconds / np.maximum(worth.longest_s, 1e-12), np.inf)
                value = (worth.slope * seconds + worth.offset) / self.winning if math.isfinite(self.known) else 0.0
                over[:, column] = np.maximum(np.maximum(over[:, column], late), value)
        able = np.flatnonzero(over.min(axis=0) > _PASSED)
        if not len(able):
            return None
        if left is not None:
            return left.pop(int(able[0]))
        # Whatever the prices amidst those let pass rules out about half of them.
        return amidst(every[able])
