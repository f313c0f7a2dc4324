"""Checks drafts under the replay, and tells good ones apart by it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sailor_cloud.planner.draft import Draft, to_plan
from sailor_cloud.planner.estimates import Estimates
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.replayed import replayed
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.team import Team
from sailor_cloud.simulator import Evaluation, evaluate

# Drafts for which nobody has estimated before what the replay finds, best first by the closed form, are estimated up to
# so many. So many drafts are replayed at once, and in all; first the best one of each kind that promises so much.
MOST_ESTIMATED, AT_ONCE, MOST_REPLAYED = 64, 4, 16
AS_GOOD = 1.05
# By how much the replay's distance from what was expected of it differs between drafts.
ALIKE = 0.995

# The figures of a plan under the replay; none where it doesn't fit there.
_Figures = Mapping[Figure, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A draft that keeps the limits under the replay, too."""

    draft: Draft
    evaluation: Evaluation


def first_that_holds(space: Space, target: Target, drafts: Sequence[Draft]) -> Chosen | None:
    """Return the first draft whose plan keeps the constraints under the replay, too."""
    known = _known(space)
    for draft in drafts:
        if _name(draft) in known and not _holds(target, known[_name(draft)]):
            continue
        evaluation = evaluate(to_plan(space, draft), space.scenario)
        known[_name(draft)] = _figures(draft, evaluation)
        if _holds(target, known[_name(draft)]):
            return Chosen(draft=draft, evaluation=evaluation)
    return None


def best_that_holds(space: Space, target: Target, drafts: Sequence[Draft], *, team: Team) -> Chosen | None:
    """Return the best draft under the replay of those that promise most by what it is expected to find.

    `drafts`: best first by the closed form, by which they need not keep limits. Drafts are replayed until no other one
    promises more than the best has kept.
    """
    estimated = Estimates(space, target).best_first(drafts, most=MOST_ESTIMATED)
    waiting, known = _leaders_first(space, target, estimated), _known(space)
    # The least that the replay was from what was expected of it.
    distance: dict[Figure, float] = {}
    best, least, count = None, math.inf, 0
    while count < MOST_REPLAYED:
        some = [draft for draft in waiting if _promises(target, draft.foreseen, distance, least)][:AT_ONCE]
        if not some:
            break
        # Both processes go through the same tasks, whatever either of them knows.
        tasks = [Task(partial(_replay, space, draft), partial(known.__setitem__, _name(draft))) for draft in some]
        do(tasks, team=team, tell=lambda share: None)
        for draft in some:
            figures = known[_name(draft)]
            if figures is None:
                continue
            for figure, value in draft.foreseen.items():
                if math.isfinite(value) and value > 0.0:
                    distance[figure] = min(distance.get(figure, math.inf), figures[figure] / value)
            if _holds(target, figures) and figures[target.goal] < least:
                best, least = draft, figures[target.goal]
        waiting = [draft for draft in waiting if all(draft is not other for other in some)]
        count += len(some)
    return None if best is None else Chosen(draft=best, evaluation=evaluate(to_plan(space, best), space.scenario))


def _leaders_first(space: Space, target: Target, drafts: Sequence[Draft]) -> list[Draft]:
    """Return drafts, the best one of each of a few kinds that are about as good first."""
    leaders: dict[tuple[object, ...], Draft] = {}
    for draft in drafts:
        if draft.foreseen[target.goal] <= drafts[0].foreseen[target.goal] * AS_GOOD:
            leaders.setdefault(_kind(space, draft), draft)
    first = list(leaders.values())[:AT_ONCE]
    return [*first, *(draft for draft in drafts if all(draft is not leader for leader in first))]


def _promises(target: Target, about: Mapping[Figure, float], distance: Mapping[Figure, float], least: float) -> bool:
    """Return whether a draft may keep limits and be better than `least` under the replay."""
    figures = {figure: value * distance.get(figure, 1.0) * ALIKE for figure, value in about.items()}
    return figures[target.goal] < least and _holds(target, figures)


def _known(space: Space) -> dict[tuple[object, ...], _Figures]:
    """Return what the replay found of plans of a space, by their names; searches of other targets meet many again."""
    known: dict[tuple[object, ...], _Figures] = space.remembered.setdefault("replayed", {})
    return known


def _name(draft: Draft) -> tuple[object, ...]:
    return draft.zero_stage, tuple(part.key() for part in draft.pipelines)


def _replay(space: Space, draft: Draft) -> _Figures:
    known = _known(space)
    if _name(draft) not in known:
        known[_name(draft)] = _figures(draft, evaluate(to_plan(space, draft), space.scenario))
    return known[_name(draft)]


def _figures(draft: Draft, evaluation: Evaluation) -> _Figures:
    found = {figure: float(value) for figure, value in replayed(draft, evaluation).items()}
    return found if evaluation.fits else None


def _holds(target: Target, figures: _Figures) -> bool:
    if figures is None:
        return False
    return bool(target.feasible({figure: np.array(value) for figure, value in figures.items()}))


def _kind(space: Space, draft: Draft) -> tuple[object, ...]:
    """Return what drafts have in common that differ in zones, nodes and cuts only."""
    lines = Counter(
        (
            tuple((space.pools[slot.pool].accelerator.name, slot.tp) for slot in part.slots),
            part.microbatch_size,
        )
        for part in draft.pipelines
    )
    return tuple(sorted(lines.items()))
