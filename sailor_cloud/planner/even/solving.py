"""Searches the even batches of a job: zones one by one, all zones together, and replicas of several kinds."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.bounds import breaks_limits, goal_bound
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.effort import NORMAL, never
from sailor_cloud.planner.even.answered import Question
from sailor_cloud.planner.even.differing_space import solve_differing
from sailor_cloud.planner.even.engine import NARROW, WIDE, solve
from sailor_cloud.planner.even.outcome import Outcome
from sailor_cloud.planner.even.raising import raised
from sailor_cloud.planner.even.space import EvenSpace, every_table
from sailor_cloud.planner.even.zones import sharing
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import MOST_ROWS, part_of

# Microbatch sizes and numbers of replicas without anything better after which a search ends where real nodes are slower
# than the costs say: of a single zone, and of all zones together.
_ZONE_PATIENCE, _PATIENCE = 3, 2
# Cells of the tables that a search makes without anything better before it ends.
_CELLS = 5_000_000
# Sorts of zones that are searched by themselves.
_MOST_ZONES = 3
# Single pipelines searched for the bound on plans whose replicas may differ, and cells of the tables that this makes.
_SEARCHES, _SEARCHED_CELLS = 80, 20_000_000


def solve_even(
    space: Space, target: Target, *, keep: int = 16, bounded: bool = True, expired: Callable[[], bool] = never
) -> Answer:
    """Return the best drafts of the even batches of a space, best first, and a value that none of them undercuts.

    Zones are searched one by one first: the whole space then only has to be better than the best of them. At last come
    plans whose replicas of a stage are of several kinds; what bounds those bounds all. Without `bounded` the bound is
    of no use. Once a time limit has `expired`, what was found by then is the answer, if there is anything.
    """
    question = Question(space=space, target=target, keep=keep, bounded=bounded)
    known = question.known()
    if known is not None:
        return known
    answer = _answer(question, expired)
    # What a time limit cut short is no answer for others.
    return answer if expired() else question.answered(answer)


def _answer(question: Question, expired: Callable[[], bool]) -> Answer:
    space, target = question.space, question.target
    if breaks_limits(space, target):
        return Answer(drafts=(), bound=None, columns=0, nodes=0)
    # Plans whose stages stand together on nodes are found fast; others then only have to be better.
    blocks = Blocks(space, target, replace(NORMAL, expired=expired), even=True)
    drafts = blocks.run()
    columns = nodes = 0
    # The best of each zone is asked for beside the best of all.
    every = question.bounded and len({pool.row for pool in space.pools}) <= MOST_ROWS
    zones = _single_zones(space, every=every)
    for zone in zones if every else []:
        if drafts and expired():
            break
        answer = solve_even(zone, target, keep=question.keep, bounded=False, expired=expired)
        drafts += [in_space(draft, zone, space) for draft in answer.drafts]
        columns, nodes = columns + answer.columns, nodes + answer.nodes
    kinds = Kinds.of(space)
    left = [] if every else [(zone, Kinds.of(zone)) for zone in zones]
    for part, members in [*left, (space, kinds)]:
        if drafts and expired():
            break
        patience = _PATIENCE if part is space and zones else _ZONE_PATIENCE
        # Beside a plan nobody waits for a proof that there is none.
        cells = _CELLS if drafts or not question.bounded else math.inf
        known = _Known(question.keep, _least(drafts, target), patience, cells, expired)
        outcome = _solve(part, members, target, known)
        drafts += [draft if part is space else in_space(draft, part, space) for draft in _drafts(outcome)]
        columns, nodes = columns + outcome.pipelines, nodes + outcome.nodes
    if drafts and expired():
        best = tuple(sorted(drafts, key=Draft.order)[: question.keep])
        answer = Answer(drafts=best, bound=goal_bound(space, target), columns=columns, nodes=nodes)
    else:
        answer = _proven(question, kinds, drafts, columns, nodes)
    # The replay may be kinder to those that break limits a little.
    return replace(answer, others=tuple(blocks.nearly_kept))


def _proven(question: Question, kinds: Kinds, drafts: list[Draft], columns: int, nodes: int) -> Answer:
    """Return the answer with better drafts whose replicas differ, and the bound."""
    space, target = question.space, question.target
    # Every even plan is a plan of the whole space; without any plan there is a proof to be made.
    floor = goal_bound(space, target) if question.bounded and drafts else -math.inf
    differing, bound, searches = solve_differing(space, kinds, target, drafts, bounded=question.bounded and not drafts)
    ordered = {draft.order(): draft for draft in (*drafts, *differing)}
    if question.bounded and drafts:
        known, raising = _least(list(ordered.values()), target), sharing(space, kinds, target)
        found = raised(raising, known=known, most_searches=_SEARCHES, most_cells=_SEARCHED_CELLS, floor=floor)
        bound, searches = found.bound, searches + found.searches
    return Answer(
        drafts=tuple(ordered[order] for order in sorted(ordered)[: question.keep]),
        bound=bound if math.isfinite(bound) else None,
        columns=columns,
        nodes=nodes + searches,
    )


def _least(drafts: list[Draft], target: Target) -> float:
    return min((draft.figures[target.goal] for draft in drafts), default=math.inf)


def _single_zones(space: Space, *, every: bool) -> list[Space]:
    """Return the parts of a space with several zones, one for each sort of zone or all of them, the largest first."""
    rows = space.candidates.rows
    sorts: dict[tuple[tuple[tuple[int, str, str, float], ...], str], str] = {}
    for zone in sorted({pool.offer.zone for pool in space.pools}):
        offers = sorted(
            (rows[pool.row].devices, pool.offer.instance_type, pool.offer.market.value, pool.offer.usd_per_hour)
            for pool in space.pools
            if pool.offer.zone == zone
        )
        sorts.setdefault((tuple(offers), zone if every else ""), zone)
    if len({pool.offer.zone for pool in space.pools}) < 2:
        return []
    names = {pool.accelerator.name for pool in space.pools}
    ordered = sorted(sorts.items(), key=lambda entry: (-sum(devices for devices, *_ in entry[0][0]), entry[1]))
    return [part_of(space, names, {zone}) for _, zone in (ordered if every else ordered[:_MOST_ZONES])]


@dataclass(frozen=True, slots=True)
class _Known:
    """Plans kept of a search, the value of the best one known, and what ends it; see engine.solve."""

    keep: int
    least: float
    patience: int
    most_cells: float
    expired: Callable[[], bool]


def _solve(space: Space, kinds: Kinds, target: Target, known: _Known) -> Outcome:
    outcomes: list[Outcome] = []
    for tables in every_table(space, kinds):
        least = min([known.least, *(found.value for outcome in outcomes for found in outcome.found)])
        parts = [EvenSpace(tables, target)]
        # Bounds come from elsewhere where time is minimised.
        wide = WIDE if not parts[0].timed else NARROW
        outcomes.append(
            solve(
                parts,
                keep=known.keep,
                known=least,
                patience=known.patience,
                most_cells=known.most_cells,
                wide=wide,
                # With a plan known, nothing has to be found.
                expired=known.expired if math.isfinite(least) else never,
            )
        )
    return Outcome(
        found=tuple(found for outcome in outcomes for found in outcome.found),
        bound=min(outcome.bound for outcome in outcomes),
        nodes=sum(outcome.nodes for outcome in outcomes),
        pipelines=sum(outcome.pipelines for outcome in outcomes),
    )


def _drafts(outcome: Outcome) -> list[Draft]:
    return [cast(Draft, found.placed) for found in outcome.found]
