"""A problem whose devices all count in one pool, by whole prices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import Chain, Judged, Problem, StageCosts, Worth
from sailor_cloud.planner.even.mixes import Mix

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Differing(Problem, Protocol):
    """A space whose pipelines share their cut and microbatch size, while replicas of a stage may be of several kinds.

    Costs and sums are what no pipeline of those `bounded` undercuts, whatever kinds the others are of.
    """

    @property
    def devices(self) -> Ints:
        """All devices of each pool that counts some, shape [counted pools]."""

    @property
    def rents(self) -> Ints | None:
        """Whole prices in about the proportions of what devices cost, None where money plays no part."""

    @property
    def prices(self) -> Ints:
        """Whole prices that may be tried where money plays no part, shape [vectors, counted pools]."""

    def bounded(self, replicas: int) -> int:
        """Return for how many of so many pipelines the costs and sums hold; for the others nothing need."""

    def counts(self, size: int) -> list[tuple[int, int]]:
        """Return numbers of replicas, each with the fewest microbatches that one of them has.

        A plan with another number of replicas is no better than one with fewer of these that has as many microbatches.
        """

    def shares(self, size: int, replicas: int) -> tuple[int, int]:
        """Return the most microbatches of a pipeline, and how many pipelines have these; others have one less."""

    def judge_mix(self, mix: Mix, below: float) -> Judged:
        """Put the pipelines of a mix in place; plans from the value `below` on are of no use."""

    def worth_priced(self, size: int, replicas: int, use: Ints, prices: Ints) -> Worth:
        """Return what plans are worth at least, each of whose pipelines uses devices of some worth at the prices.

        use: [vectors, 1 + exact pools], the worth first. The worth is the least over all devices worth so much.
        """


@dataclass(slots=True)
class Priced:
    """One pipeline of a plan whose pipelines differ: that whose devices are worth no more than the mean.

    At any prices there is such a pipeline, and the plan takes at least as long as it would alone. See costs.Problem.
    stages: how many stages it has, None for any number.
    """

    inner: Differing
    prices: Ints
    stages: int | None = None
    settles: bool = False
    _costs: dict[tuple[int, int | None], StageCosts | None] = field(default_factory=dict)

    @property
    def batch(self) -> int:
        return self.inner.batch

    @property
    def rising(self) -> bool:
        return self.inner.rising

    @property
    def timed(self) -> bool:
        return self.inner.timed

    def most(self, replicas: int) -> Ints:
        """Return the mean worth, and as much of the exact pools as the space says."""
        mean = int(self.prices @ self.inner.devices) // self.inner.bounded(replicas)
        return np.array([mean, *self.inner.most(replicas)[len(self.prices) :]], dtype=np.int64)

    def sizes(self) -> list[int]:
        return self.inner.sizes()

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if (size, replicas) not in self._costs:
            costs = self.inner.costs(size, replicas)
            self._costs[size, replicas] = None if costs is None else self._priced(costs)
        return self._costs[size, replicas]

    def sync_s(self, size: int, replicas: int) -> Floats:
        return self.inner.sync_s(size, replicas)

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        return self.inner.worth_priced(size, replicas, use, self.prices)

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        """Return the pipeline by its costs: it stands nowhere."""
        costs = self.costs(size, replicas)
        assert costs is not None
        worth = self.worth(size, replicas, costs.use[list(chain.kinds)].sum(axis=0)[None])
        if seconds > worth.longest_s[0]:
            return Judged(bound=np.inf)
        return Judged(value=float(worth.slope[0] * seconds + worth.offset[0]), placed=chain)

    def _priced(self, costs: StageCosts) -> StageCosts:
        counted = costs.counted
        exact = None if costs.exact is None else np.concatenate([[False], costs.exact[~counted]])
        use = np.hstack([(costs.use[:, counted] @ self.prices)[:, None], costs.use[:, ~counted]])
        compute = costs.compute_s
        if self.stages is not None:
            # A first stage is followed by so many more.
            compute = compute[: self.stages].copy()
            compute[: self.stages - 1, :, 0] = np.inf
        return replace(costs, use=use, exact=exact, compute_s=compute)
