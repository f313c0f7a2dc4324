"""The space of even batches of a job, under the product's closed form."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.placing import Placing
from sailor_cloud.planner.even.rings import Rings
from sailor_cloud.planner.even.tables import MAX_STAGES, Tables
from sailor_cloud.planner.even.worth import Prices
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class EvenSpace:
    """A Problem over the groups of a space; see costs.Problem."""

    tables: Tables
    target: Target
    prices: Prices = field(init=False)
    placing: Placing = field(init=False)

    def __post_init__(self) -> None:
        self.prices = Prices(self.tables, self.target)
        self.placing = Placing(self.tables, self.target)

    @property
    def batch(self) -> int:
        return self.tables.space.batch

    @property
    def rising(self) -> bool:
        return self.prices.rising

    @property
    def timed(self) -> bool:
        return self.prices.timed

    def most(self, replicas: int) -> Ints:
        return self.tables.devices // replicas

    def sizes(self) -> list[int]:
        """Return all divisors of the batch: every pipeline gets through whole microbatches of one size."""
        return [size for size in range(1, self.batch + 1) if self.batch % size == 0]

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if replicas is None:
            # Least memory: one pipeline's buckets, most of all pipelines' shares of optimizer state.
            return self.tables.costs(size, self.batch if self.tables.space.zero_stage else 1, MAX_STAGES)
        return self.tables.costs(size, replicas, -(-self.batch // (size * replicas)), Rings(replicas))

    def sync_s(self, size: int, replicas: int) -> Floats:
        return self.tables.sync_s(Rings(replicas))

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        return self.prices.worth(replicas, use)

    @property
    def settles(self) -> bool:
        return False

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        draft = self.placing.best(size, replicas, chain)
        return Judged() if draft is None else Judged(value=draft.figures[self.target.goal], placed=draft)


def every_table(space: Space, kinds: Kinds) -> list[Tables]:
    """Return the costs of all plans; where layers are even, by the length of the shortest stages."""
    if not space.even_layers:
        return [Tables(space, kinds)]
    lengths = space.shortest(min(MAX_STAGES, space.layers))
    return [Tables(space, kinds, lengths=frozenset({length, length + 1})) for length in lengths]
