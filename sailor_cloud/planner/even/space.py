"""The space of even batches of a job, under the product's closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.even.costs import Chain, Judged, StageCosts, Worth
from sailor_cloud.planner.even.engine import solve
from sailor_cloud.planner.even.outcome import Outcome
from sailor_cloud.planner.even.placing import Placing
from sailor_cloud.planner.even.tables import MAX_STAGES, Tables
from sailor_cloud.planner.even.worth import Prices
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import part_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Microbatch sizes and numbers of replicas without anything better after which a search ends where real nodes are slower
# than the costs say.
_PATIENCE = 5
# Sorts of zones that are searched by themselves.
_MOST_ZONES = 3


def solve_even(space: Space, target: Target, *, keep: int = 16, even_layers: bool = False) -> Answer:
    """Return the best drafts of the even batches of a space, best first, and a value that none of them undercuts.

    Zones are searched one by one first: the whole space then only has to be better than the best of them.
    """
    # Plans whose stages stand together on nodes are found fast; others then only have to be better.
    drafts = [] if even_layers else Blocks(space, target, even=True).run()
    known = min((draft.figures[target.goal] for draft in drafts), default=math.inf)
    kinds, parts = Kinds.of(space), _single_zones(space)
    outcomes = [_solve(part, Kinds.of(part), target, keep, even_layers, known) for part in parts]
    drafts += [
        in_space(draft, part, space)
        for part, outcome in zip(parts, outcomes, strict=True)
        for draft in _drafts(outcome)
    ]
    known = min((draft.figures[target.goal] for draft in drafts), default=math.inf)
    whole = _solve(space, kinds, target, keep, even_layers, known)
    ordered = {draft.order(): draft for draft in (*drafts, *_drafts(whole))}
    return Answer(
        drafts=tuple(ordered[order] for order in sorted(ordered)[:keep]),
        bound=whole.bound if math.isfinite(whole.bound) else None,
        columns=whole.pipelines + sum(outcome.pipelines for outcome in outcomes),
        nodes=whole.nodes + sum(outcome.nodes for outcome in outcomes),
    )


def _single_zones(space: Space) -> list[Space]:
    """Return the parts of a space with several zones, one for each sort of zone, the largest first."""
    rows = space.candidates.rows
    sorts: dict[tuple[tuple[int, str, str, float], ...], str] = {}
    for zone in sorted({pool.offer.zone for pool in space.pools}):
        offers = sorted(
            (rows[pool.row].devices, pool.offer.instance_type, pool.offer.market.value, pool.offer.usd_per_hour)
            for pool in space.pools
            if pool.offer.zone == zone
        )
        sorts.setdefault(tuple(offers), zone)
    if len({pool.offer.zone for pool in space.pools}) < 2:
        return []
    names = {pool.accelerator.name for pool in space.pools}
    ordered = sorted(sorts.items(), key=lambda entry: (-sum(devices for devices, *_ in entry[0]), entry[1]))
    return [part_of(space, names, {zone}) for _, zone in ordered[:_MOST_ZONES]]


def _solve(space: Space, kinds: Kinds, target: Target, keep: int, even_layers: bool, known: float) -> Outcome:
    if not even_layers:
        return solve([EvenSpace(Tables(space, kinds), target)], keep=keep, known=known, patience=_PATIENCE)
    outcomes = []
    for length in sorted({space.layers // stages for stages in range(1, min(MAX_STAGES, space.layers) + 1)}):
        tables = Tables(space, kinds, lengths=frozenset({length, length + 1}))
        outcomes.append(solve([EvenSpace(tables, target)], keep=keep, known=known, patience=_PATIENCE))
        known = min([known, *(found.value for found in outcomes[-1].found)])
    return Outcome(
        found=tuple(found for outcome in outcomes for found in outcome.found),
        bound=min(outcome.bound for outcome in outcomes),
        nodes=sum(outcome.nodes for outcome in outcomes),
        pipelines=sum(outcome.pipelines for outcome in outcomes),
    )


def _drafts(outcome: Outcome) -> list[Draft]:
    return [cast(Draft, found.placed) for found in outcome.found]


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
        return self.tables.costs(size, replicas, -(-self.batch // (size * replicas)))

    def sync_s(self, size: int, replicas: int) -> Floats:
        return self.tables.sync_s(replicas)

    def worth(self, size: int, replicas: int, use: Ints) -> Worth:
        return self.prices.worth(replicas, use)

    @property
    def settles(self) -> bool:
        return False

    def judge(self, size: int, replicas: int, chain: Chain, seconds: float, below: float, *, closely: bool) -> Judged:
        draft = self.placing.best(size, replicas, chain)
        return Judged() if draft is None else Judged(value=draft.figures[self.target.goal], placed=draft)
