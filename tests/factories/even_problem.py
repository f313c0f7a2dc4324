"""Small made-up spaces of even batches, and every plan of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, pairwise, product

import numpy as np

from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth


@dataclass
class RandomEven:
    """Random layers, kinds, cuts, sums, memory limits and prices; time or money is minimised, limited or not.

    late: plans are slower in place than their costs say, each by a share of its own, which is seen when looked at
    closely. marked: plans need a stage of one of the marked kinds exactly once, which the problem states as a pool of
    its own.
    """

    seed: int
    marked: bool = False
    late: bool = False
    batch: int = field(init=False)
    devices: np.ndarray = field(init=False)
    cheapest: bool = field(init=False)
    tables: dict[int, StageCosts] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = np.random.default_rng(self.seed)
        self.layers, kinds, pools = int(draw.integers(2, 6)), int(draw.integers(1, 4)), int(draw.integers(1, 3))
        self.batch = int(draw.choice([2, 3, 4, 6, 8]))
        self.devices = draw.integers(1, 7, pools)
        self.pool = draw.integers(0, pools, kinds)
        self.tp = draw.choice([1, 2], kinds)
        self.speed = draw.uniform(0.5, 2.0, kinds) * self.tp**0.8
        self.work = draw.uniform(0.2, 2.0, self.layers)
        self.weight = draw.uniform(0.1, 1.0, self.layers)
        self.limit = draw.uniform(1.0, 6.0, kinds)
        self.cut = draw.uniform(0.0, 0.4, (kinds, kinds, self.layers + 1))
        self.update = draw.uniform(0.0, 0.3, kinds)
        self.first_after = draw.choice([1.0, 2.0], self.layers)
        self.last_before = float(draw.choice([1.0, 2.0]))
        self.price = draw.uniform(0.5, 2.0, pools)
        self.cheapest = bool(draw.integers(0, 2))
        self.longest_s = float(draw.choice([np.inf, 3.0, 8.0]))
        self.budget = float(draw.choice([np.inf, 20.0, 60.0]))
        self.mark = draw.integers(0, 2, kinds).astype(bool)

    @property
    def rising(self) -> bool:
        return not self.cheapest and self.budget == np.inf

    @property
    def timed(self) -> bool:
        return not self.cheapest

    def most(self, replicas: int) -> np.ndarray:
        return np.append(self.devices // replicas, 1) if self.marked else self.devices // replicas

    def sizes(self) -> list[int]:
        return [size for size in range(1, self.batch + 1) if self.batch % size == 0]

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if size not in self.tables:
            self.tables[size] = self._build(size)
        costs = self.tables[size]
        return costs if np.isfinite(costs.compute_s).any() else None

    def sync_s(self, size: int, replicas: int) -> np.ndarray:
        weight = spans(self.weight)
        return np.stack([weight / tp * (1.0 - 1.0 / replicas) for tp in self.tp])

    def worth(self, size: int, replicas: int, use: np.ndarray) -> Worth:
        rate = use[:, : len(self.price)] @ self.price * replicas
        with np.errstate(divide="ignore"):
            longest = np.minimum(self.longest_s, self.budget / rate)
        if self.marked:
            longest = np.where(use[:, -1] == 1, longest, -1.0)
        slope = rate if self.cheapest else np.ones(len(use))
        return Worth(slope=slope, offset=np.zeros(len(use)), longest_s=longest)

    @property
    def settles(self) -> bool:
        return self.late

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        value = self.value(size, replicas, chain)
        if value is None:
            return Judged(bound=np.inf)
        if self.late and not closely:
            return Judged(value=2.0 * value, placed=chain)
        return Judged(value=value, placed=chain, bound=value)

    def delay(self, size: int, chain: Chain) -> float:
        """Return by how much a chain's places make it slower than its costs say: a made-up figure of the chain."""
        if not self.late:
            return 1.0
        parts = [size, *chain.kinds, *chain.cut]
        return 1.0 + 0.2 * float(np.random.default_rng([self.seed, *parts]).random())

    def seconds(self, size: int, replicas: int, chain: Chain) -> float:
        """Return the seconds of an iteration, infinite where a stage doesn't fit; nothing of the engine is used."""
        found = self.paces(size, chain.kinds, chain.cut)
        if found is None:
            return np.inf
        busy, update = found
        spans_of = zip(chain.kinds, pairwise(chain.cut), strict=True)
        sums = [self.weight[a:b].sum() / self.tp[kind] * (1.0 - 1.0 / replicas) for kind, (a, b) in spans_of]
        microbatches = -(-self.batch // (size * replicas))
        return float((microbatches - 1) * max(busy) + sum(busy) + update + max(sums))

    def paces(self, size: int, kinds: tuple[int, ...], cut: tuple[int, ...]) -> tuple[list[float], float] | None:
        """Return how long each stage is busy, and the longest update; None where a stage doesn't fit."""
        stages, busy, update = len(kinds), [], 0.0
        for stage, (kind, (first, end)) in enumerate(zip(kinds, pairwise(cut), strict=True)):
            if self.weight[first:end].sum() * (1 + 0.5 * (stages - stage) * size) > self.limit[kind]:
                return None
            spent = self.work[first:end].sum() * size / self.speed[kind]
            if stage + 1 < stages:
                after = self.cut[kind, kinds[stage + 1], end] * size
                spent += after * (self.first_after[stages - 1] if stage == 0 else 1.0)
            if stage:
                before = 0.5 * self.cut[kinds[stage - 1], kind, first] * size
                spent += before * (self.last_before if stage + 1 == stages else 1.0)
            busy.append(spent)
            update = max(update, self.update[kind])
        return busy, float(update)

    def value(self, size: int, replicas: int, chain: Chain) -> float | None:
        if self.marked and sum(self.mark[kind] for kind in chain.kinds) != 1:
            return None
        seconds = self.seconds(size, replicas, chain) * self.delay(size, chain)
        used = np.zeros(len(self.devices))
        for kind in chain.kinds:
            used[self.pool[kind]] += self.tp[kind] * replicas
        usd = float(used @ self.price) * seconds
        if (used > self.devices).any() or seconds > self.longest_s or usd > self.budget or seconds == np.inf:
            return None
        return usd if self.cheapest else seconds

    def every_value(self) -> Iterator[float]:
        """Yield the values of all plans that fit."""
        for size in self.sizes():
            for replicas in range(1, self.batch // size + 1):
                for stages in range(1, self.layers + 1):
                    for inner in combinations(range(1, self.layers), stages - 1):
                        for kinds in product(range(len(self.tp)), repeat=stages):
                            value = self.value(size, replicas, Chain(kinds=kinds, cut=(0, *inner, self.layers)))
                            if value is not None:
                                yield value

    def _use(self) -> np.ndarray:
        use = np.zeros((len(self.tp), len(self.most(1))), dtype=np.int64)
        use[np.arange(len(self.tp)), self.pool] = self.tp
        if self.marked:
            use[:, -1] = self.mark
        return use

    def _build(self, size: int) -> StageCosts:
        layers, kinds = self.layers, len(self.tp)
        first, end = np.indices((layers + 1, layers + 1))
        compute = np.full((layers, kinds, layers + 1, layers + 1), np.inf)
        for held in range(1, layers + 1):
            for kind in range(kinds):
                fits = (end > first) & (spans(self.weight) * (1 + 0.5 * held * size) <= self.limit[kind])
                compute[held - 1, kind] = np.where(fits, spans(self.work) * size / self.speed[kind], np.inf)
        cut = self.cut * size
        return StageCosts(
            size=size,
            use=self._use(),
            exact=np.arange(len(self.most(1))) == len(self.devices),
            compute_s=compute,
            after_s=cut,
            before_s=0.5 * cut,
            after_way_s=cut,
            before_way_s=0.5 * cut,
            first_after=self.first_after,
            last_before=self.last_before,
            update_s=np.broadcast_to(self.update[:, None, None], compute.shape[1:]).copy(),
        )


def spans(values: np.ndarray) -> np.ndarray:
    """Sums of values[first:end], shape [first, end]; 0 or less where end <= first."""
    prefix = np.concatenate([[0.0], np.cumsum(values)])
    return prefix[None, :] - prefix[:, None]
