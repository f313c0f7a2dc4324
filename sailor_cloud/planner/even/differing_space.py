"""The space of even batches of a job whose replicas of a stage may be of several kinds, under the closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.mixed import mixed
from sailor_cloud.planner.even.mixes import Mix
from sailor_cloud.planner.even.prices import price_vectors, whole_prices
from sailor_cloud.planner.even.rings import Rings
from sailor_cloud.planner.even.space import EvenSpace, every_table
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# Searches for a bound, prices tried at one number of replicas, beginnings of pipelines kept, and numbers of replicas
# whose mixes are tried.
_SEARCHES, _TRIES, _WIDE, _NUMBERS = 16, 1, 100, 2
# Plans whose cuts are tried with replicas of several kinds.
_CUTS = 3


def solve_differing(
    space: Space, kinds: Kinds, target: Target, drafts: list[Draft], *, bounded: bool
) -> tuple[list[Draft], float, int]:
    """Return better drafts than those known, a bound on all even plans, and how many searches it took.

    Replicas of a stage may differ in accelerator, tp and zone. Where nothing has to be `bounded`, only cuts of plans
    that are known are tried.
    """
    known = min((draft.figures[target.goal] for draft in drafts), default=math.inf)
    first = sorted(drafts, key=Draft.order)
    cuts = dict.fromkeys((draft.pipelines[0].microbatch_size, draft.pipelines[0].cut) for draft in first)
    found: list[Draft] = []
    bound, searches = math.inf, 0
    for tables in every_table(space, kinds):
        problem = DifferingSpace(EvenSpace(tables, target))
        if not bounded:
            # Without searches no other cuts are known.
            problem.only = frozenset(size for size, _ in list(cuts)[:_CUTS])
        answer = mixed(
            problem,
            known=known,
            cuts=list(cuts)[:_CUTS],
            most_searches=_SEARCHES if bounded else 0,
            tries=_TRIES,
            wide=_WIDE,
            numbers=_NUMBERS,
        )
        found += [cast(Draft, placed.placed) for placed in answer.found]
        known = min([known, *(placed.value for placed in answer.found)])
        bound, searches = min(bound, answer.bound), searches + answer.searches
    return found, bound, searches


@dataclass(slots=True)
class DifferingSpace:
    """A Differing problem over the groups of a space; see priced.Differing.

    Pools are the accelerators, all zones together. A pipeline of its own stands in any zones, and all sums go over the
    best links that any ring has. only: the microbatch sizes looked at, all of them if None.
    """

    even: EvenSpace
    only: frozenset[int] | None = None

    @property
    def batch(self) -> int:
        return self.even.batch

    @property
    def rising(self) -> bool:
        return self.even.rising

    @property
    def timed(self) -> bool:
        return self.even.timed

    @property
    def settles(self) -> bool:
        return False

    @property
    def devices(self) -> Ints:
        return np.asarray(self.even.tables.devices[self.even.prices.counted])

    @property
    def rents(self) -> Ints | None:
        return None if self.rising else whole_prices(self.even.prices.least_rents)

    @property
    def prices(self) -> Ints:
        return price_vectors(len(self.devices))

    def bounded(self, replicas: int) -> int:
        return replicas

    def most(self, replicas: int) -> Ints:
        return self.devices // replicas

    def sizes(self) -> list[int]:
        return [size for size in self.even.sizes() if self.only is None or size in self.only]

    def counts(self, size: int) -> list[tuple[int, int]]:
        """Every pipeline has so many microbatches at least, and the others use devices, too."""
        shares = self.batch // size
        fewest: dict[int, int] = {}
        for replicas in range(1, shares + 1):
            fewest.setdefault(shares // replicas, replicas)
        return [(replicas, microbatches) for microbatches, replicas in sorted(fewest.items())]

    def shares(self, size: int, replicas: int) -> tuple[int, int]:
        most = -(-self.batch // (size * replicas))
        return most, self.batch // size - replicas * (most - 1)

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        # Least memory of what counts stand for: fewest microbatches in flight, most sharers of optimizer state.
        tables, shares = self.even.tables, self.batch // size
        fewest = shares if replicas is None else shares // replicas
        sharers = self.batch if replicas is None else shares // fewest
        rings = None if replicas is None else Rings(replicas, differ=True)
        held = tables.costs(size, sharers if tables.space.zero_stage else replicas or 1, fewest, rings)
        if held is None:
            return None
        use, compute = held.use[:, self.even.prices.counted], held.compute_s
        if not self.even.prices.counted.all():
            # A single pipeline's stage stands in one region.
            several = np.array([tables.group(kind).area is None for kind in range(held.kinds)])
            compute = np.where(several[:, None, None], np.inf, compute)
        return replace(held, use=use, compute_s=compute)

    def sync_s(self, size: int, replicas: int) -> Floats:
        return self.even.tables.sync_s(Rings(replicas, differ=True))

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        """Return the worth of pipelines that all use the same devices."""
        return self.worth_priced(size, replicas, use.sum(axis=1)[:, None], np.ones(len(self.devices), dtype=np.int64))

    def worth_priced(self, size: int, replicas: int, use: Ints, prices: Ints) -> Worth:
        return self.even.prices.worth_priced(replicas, use[:, 0], prices)

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        return self.even.judge(size, replicas, chain, seconds, below, closely=closely)

    def judge_mix(self, mix: Mix, below: float) -> Judged:
        draft = self.even.placing.best_mix(mix)
        return Judged() if draft is None else Judged(value=draft.figures[self.even.target.goal], placed=draft)
