"""The space of even batches of a job, under the product's closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.even.costs import Chain, StageCosts, Worth
from sailor_cloud.planner.even.engine import Outcome, solve
from sailor_cloud.planner.even.placing import Placing
from sailor_cloud.planner.even.tables import MAX_STAGES, Tables
from sailor_cloud.planner.even.worth import Prices
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def solve_even(space: Space, target: Target, *, keep: int = 16, even_layers: bool = False) -> Answer:
    """Return the best drafts of the even batches of a space, best first, and a value that none of them undercuts."""
    kinds = Kinds.of(space)
    if even_layers:
        lengths = sorted({space.layers // stages for stages in range(1, min(MAX_STAGES, space.layers) + 1)})
        outcomes = [
            solve(EvenSpace(Tables(space, kinds, lengths=frozenset({length, length + 1})), target), keep=keep)
            for length in lengths
        ]
    else:
        outcomes = [solve(EvenSpace(Tables(space, kinds), target), keep=keep)]
    return _joined(outcomes, keep)


def _joined(outcomes: list[Outcome], keep: int) -> Answer:
    drafts = {
        draft.order(): draft for outcome in outcomes for found in outcome.found for draft in (cast(Draft, found.placed),)
    }
    bound = min(outcome.bound for outcome in outcomes)
    return Answer(
        drafts=tuple(drafts[order] for order in sorted(drafts)[:keep]),
        bound=bound if math.isfinite(bound) else None,
        columns=sum(outcome.pipelines for outcome in outcomes),
        nodes=sum(outcome.nodes for outcome in outcomes),
    )


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
    def devices(self) -> Ints:
        return self.tables.devices

    @property
    def rising(self) -> bool:
        return self.prices.rising

    @property
    def timed(self) -> bool:
        return self.prices.timed

    def sizes(self) -> list[int]:
        """Return all divisors of the batch: every pipeline gets through whole microbatches of one size."""
        return [size for size in range(1, self.batch + 1) if self.batch % size == 0]

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if replicas is None:
            # Least memory: one pipeline's buckets, most of all pipelines' shares of optimizer state.
            return self.tables.costs(size, self.batch if self.tables.space.zero_stage else 1, MAX_STAGES)
        return self.tables.costs(size, replicas, -(-self.batch // (size * replicas)))

    def sync_s(self, size: int, replicas: int) -> Floats:
        return self.tables.sync_s(replicas)

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        return self.prices.worth(replicas, use)

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float) -> tuple[float, Draft] | None:
        return self.placing.best(size, replicas, chain)
