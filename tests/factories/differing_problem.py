"""Small made-up spaces of even batches whose replicas may be of several kinds, and every plan of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations, combinations_with_replacement, pairwise, product

import numpy as np

from factories.even_problem import RandomEven
from sailor_cloud.planner.even.costs import Judged, Worth
from sailor_cloud.planner.even.mixes import Mix
from sailor_cloud.planner.even.prices import price_vectors, whole_prices


@dataclass
class RandomDiffering(RandomEven):
    """Each pipeline has a pace of its own, those of fewest microbatches where they don't come out even: the slowest.

    The plan takes as long as its slowest pipeline and then as the longest sum of any stage. summed: whether there are
    sums at all. scarce: only time counts, and devices of two sorts that are about as fast are too few for replicas of
    a stage to be all of one.
    """

    summed: bool = True
    uneven: bool = False
    scarce: bool = False
    _times: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[float, float] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.layers, self.batch = min(self.layers, 3), min(self.batch, 4)
        self.work, self.weight = self.work[: self.layers], self.weight[: self.layers]
        self.first_after, self.cut = self.first_after[: self.layers], self.cut[:, :, : self.layers + 1]

        if self.scarce:
            draw = np.random.default_rng([self.seed, 1])
            self.cheapest, self.longest_s, self.budget, self.summed = False, np.inf, np.inf, False
            self.batch, self.devices, self.price = 4, draw.integers(2, 6, 2), np.ones(2)
            self.pool, self.tp, self.speed = np.array([0, 1]), np.array([1, 1]), draw.uniform(0.8, 1.2, 2)
            self.limit, self.update = np.full(2, 10.0), np.zeros(2)
            self.cut = draw.uniform(0.0, 0.1, (2, 2, self.layers + 1))

    def sync_s(self, size: int, replicas: int) -> np.ndarray:
        return super().sync_s(size, replicas) * self.summed

    @property
    def rents(self) -> np.ndarray | None:
        return None if self.rising else whole_prices(self.price)

    @property
    def prices(self) -> np.ndarray:
        return price_vectors(len(self.devices))

    def bounded(self, replicas: int) -> int:
        return replicas

    def counts(self, size: int) -> list[tuple[int, int]]:
        shares, fewest = self.batch // size, {}
        for replicas in range(1, shares + 1):
            fewest.setdefault(shares // replicas if self.uneven else -(-shares // replicas), replicas)
        return [(replicas, microbatches) for microbatches, replicas in fewest.items()]

    def shares(self, size: int, replicas: int) -> tuple[int, int]:
        most = -(-self.batch // (size * replicas))
        return most, self.batch // size - replicas * (most - 1) if self.uneven else replicas

    def worth_priced(self, size: int, replicas: int, use: np.ndarray, prices: np.ndarray) -> Worth:
        rate = use[:, 0] * float((self.price / prices).min()) * replicas
        with np.errstate(divide="ignore"):
            longest = np.minimum(self.longest_s, self.budget / rate)
        slope = rate if self.cheapest else np.ones(len(use))
        return Worth(slope=slope, offset=np.zeros(len(use)), longest_s=longest)

    def judge_mix(self, mix: Mix, below: float) -> Judged:
        kinds = [each for count, each in mix.pipelines for _ in range(count)]
        value = self.mixed_value(mix.size, mix.cut, kinds)
        return Judged() if value is None else Judged(value=value, placed=mix)

    def mixed_value(self, size: int, cut: tuple[int, ...], pipelines: list[tuple[int, ...]]) -> float | None:
        """Return what a plan is worth, None where it doesn't fit or keep the limits; nothing of the engine is used."""
        times = [self._of(size, kinds, cut) for kinds in pipelines]
        most, more = self.shares(size, len(pipelines))
        if any(time is None for time in times):
            return None
        # The slowest pipelines have one microbatch less.
        ordered = sorted(times, key=lambda time: time[0] + (most - 2) * time[1])
        pace = max(way + (most - 1 - (number >= more)) * busiest for number, (way, busiest) in enumerate(ordered))
        tps = [min(self.tp[kinds[stage]] for kinds in pipelines) for stage in range(len(cut) - 1)]
        weights = [self.weight[first:end].sum() for first, end in pairwise(cut)]
        sums = max(weight / tp for weight, tp in zip(weights, tps, strict=True)) * (1.0 - 1.0 / len(pipelines))
        seconds = pace + sums * self.summed
        used = np.zeros(len(self.devices))
        for kind in (kind for kinds in pipelines for kind in kinds):
            used[self.pool[kind]] += self.tp[kind]
        usd = float(used @ self.price) * seconds
        if (used > self.devices).any() or seconds > self.longest_s or usd > self.budget:
            return None
        return usd if self.cheapest else seconds

    def _of(self, size: int, kinds: tuple[int, ...], cut: tuple[int, ...]) -> tuple[float, float] | None:
        """Return the seconds of one microbatch's way with the update, and of the busiest stage."""
        key = (size, kinds, cut)
        if key not in self._times:
            found = self.paces(size, kinds, cut)
            self._times[key] = None if found is None else (sum(found[0]) + found[1], max(found[0]))
        return self._times[key]

    def every_mixed_value(self) -> Iterator[float]:
        """Yield the values of all plans that fit, whatever kinds their replicas are of."""
        for size in self.sizes():
            for stages in range(1, self.layers + 1):
                for inner in combinations(range(1, self.layers), stages - 1):
                    cut = (0, *inner, self.layers)
                    sequences = [
                        kinds for kinds in product(range(len(self.tp)), repeat=stages) if self._of(size, kinds, cut)
                    ]
                    for replicas in range(1, self.batch // size + 1):
                        for chosen in combinations_with_replacement(sequences, replicas):
                            value = self.mixed_value(size, cut, list(chosen))
                            if value is not None:
                                yield value
