"""Checks drafts under the replay, and tells good ones apart by it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sailor_cloud.planner.draft import Draft, significant, to_plan
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A draft that keeps the limits under the replay, too."""

    draft: Draft
    evaluation: Evaluation


def first_that_holds(space: Space, target: Target, drafts: Sequence[Draft]) -> Chosen | None:
    """Return the first draft whose plan keeps the constraints under the replay, too."""
    for draft in drafts:
        evaluation = evaluate(to_plan(space, draft), space.scenario)
        if evaluation.fits and target.feasible(replayed(draft, evaluation)).all():
            return Chosen(draft=draft, evaluation=evaluation)
    return None


def best_that_holds(space: Space, target: Target, drafts: Sequence[Draft], *, team: Team) -> Chosen | None:
    """Return the best draft under the replay of those that promise most by what it is expected to find.

    `drafts`: best first by the closed form, by which they need not keep limits. Drafts are replayed until no other one
    promises more than the best has kept.
    """
    waiting = _leaders_first(space, target, _estimated(space, target, drafts))
    # The least that the replay was from what was expected of it.
    distance: dict[Figure, float] = {}
    best, least, count = None, math.inf, 0
    while count < MOST_REPLAYED:
        some = [entry for entry in waiting if _promises(target, entry[1], distance, least)][:AT_ONCE]
        if not some:
            break
        found: list[Mapping[Figure, float] | None] = []
        tasks = [Task(partial(_figures, space, draft), found.append) for draft, _ in some]
        do(tasks, team=team, tell=lambda share: None)
        for (draft, about), figures in zip(some, found, strict=True):
            if figures is None:
                continue
            for figure, value in about.items():
                if math.isfinite(value) and value > 0.0:
                    distance[figure] = min(distance.get(figure, math.inf), figures[figure] / value)
            if _feasible(target, figures) and figures[target.goal] < least:
                best, least = draft, figures[target.goal]
        waiting = [entry for entry in waiting if all(entry is not other for other in some)]
        count += len(some)
    return None if best is None else Chosen(draft=best, evaluation=evaluate(to_plan(space, best), space.scenario))


# A draft with about its figures under the replay.
_About = tuple[Draft, Mapping[Figure, float]]


def _estimated(space: Space, target: Target, drafts: Sequence[Draft]) -> list[_About]:
    """Return drafts with about their figures under the replay, best first by these."""
    known = {draft.order(): draft for draft in drafts if draft.expected is not None}
    others = {draft.order(): draft for draft in drafts if draft.order() not in known}
    estimates = Estimates(space, target)
    known |= {order: estimates.expected(draft) for order, draft in list(others.items())[:MOST_ESTIMATED]}
    abouts = [(draft, draft.expected) for draft in known.values() if draft.expected is not None]
    return sorted(abouts, key=lambda entry: (significant(entry[1][target.goal]), entry[0].order()))


def _leaders_first(space: Space, target: Target, drafts: Sequence[_About]) -> list[_About]:
    """Return drafts, the best one of each of a few kinds that are about as good first."""
    leaders: dict[tuple[object, ...], _About] = {}
    for draft, about in drafts:
        if about[target.goal] <= drafts[0][1][target.goal] * AS_GOOD:
            leaders.setdefault(_kind(space, draft), (draft, about))
    first = list(leaders.values())[:AT_ONCE]
    return [*first, *(entry for entry in drafts if all(entry[0] is not leader for leader, _ in first))]


def _promises(target: Target, about: Mapping[Figure, float], distance: Mapping[Figure, float], least: float) -> bool:
    """Return whether a draft may keep limits and be better than `least` under the replay."""
    figures = {figure: value * distance.get(figure, 1.0) * ALIKE for figure, value in about.items()}
    return figures[target.goal] < least and _feasible(target, figures)


def _figures(space: Space, draft: Draft) -> Mapping[Figure, float] | None:
    """Return the figures of a draft under the replay; None where it doesn't fit there."""
    evaluation = evaluate(to_plan(space, draft), space.scenario)
    found = {figure: float(value) for figure, value in replayed(draft, evaluation).items()}
    return found if evaluation.fits else None


def _feasible(target: Target, figures: Mapping[Figure, float]) -> bool:
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
