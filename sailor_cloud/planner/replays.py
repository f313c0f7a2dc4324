"""Checks drafts under the replay, and tells good ones apart by it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.draft import Draft, to_plan
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.team import Team
from sailor_cloud.simulator import Evaluation, evaluate

Floats = NDArray[np.float64]

# The replay sums gradients beside the last passes, which the closed form leaves out: drafts this close to the best one
# by the closed form are told apart by the replay, the first ones of so many kinds, then so many of each of the best.
AS_GOOD = 1.05
MOST_KINDS, BEST_KINDS, MOST_OF_A_KIND = 8, 2, 4


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
    """Return the best draft under the replay of those that are about as good by the closed form as the first to hold.

    `drafts`: best first.
    """
    first = first_that_holds(space, target, drafts)
    if first is None:
        return None
    most = first.draft.figures[target.goal] * AS_GOOD
    kinds: dict[tuple[object, ...], dict[tuple[object, ...], Draft]] = {_kind(space, first.draft): {}}
    for draft in (first.draft, *(draft for draft in drafts if draft.figures[target.goal] <= most)):
        cuts = tuple(sorted({part.cut for part in draft.pipelines}))
        kinds.setdefault(_kind(space, draft), {}).setdefault(cuts, draft)
    values = {first.draft.order(): float(replayed(first.draft, first.evaluation)[target.goal])}
    leaders = [next(iter(members.values())) for members in kinds.values()][:MOST_KINDS]
    best_kinds = _ranked(space, target, leaders, values, team)[:BEST_KINDS]
    members = [draft for each in best_kinds for draft in list(kinds[_kind(space, each)].values())[:MOST_OF_A_KIND]]
    best = _ranked(space, target, members, values, team)[0]
    if best is first.draft:
        return first
    return Chosen(draft=best, evaluation=evaluate(to_plan(space, best), space.scenario))


def replayed(draft: Draft, evaluation: Evaluation) -> dict[Figure, Floats]:
    """Return the figures of a plan by the replay and the whole bill."""
    prediction, cost = evaluation.prediction, evaluation.cost
    figures = {
        Figure.ITERATION_S: prediction.iteration_s_replay,
        Figure.DURATION_S: math.inf if prediction.duration_s is None else prediction.duration_s,
        Figure.TOTAL_USD: math.inf if cost.total_usd is None else cost.total_usd,
        Figure.USD_PER_ITERATION: cost.usd_per_iteration,
        Figure.USD_PER_HOUR: cost.usd_per_hour,
        Figure.NODES: draft.figures[Figure.NODES],
    }
    return {figure: np.array(value) for figure, value in figures.items()}


def _ranked(
    space: Space, target: Target, drafts: Sequence[Draft], values: dict[tuple[object, ...], float], team: Team
) -> list[Draft]:
    """Return drafts best first under the replay; `values` takes what the goal is of each."""
    tasks = [
        Task(partial(_value, space, target, draft), partial(values.__setitem__, draft.order()))
        for draft in drafts
        if draft.order() not in values
    ]
    do(tasks, team=team, tell=lambda share: None)
    return sorted(drafts, key=lambda draft: values[draft.order()])


def _value(space: Space, target: Target, draft: Draft) -> float:
    """Return the goal's figure of a draft under the replay, infinite where it breaks a constraint there."""
    evaluation = evaluate(to_plan(space, draft), space.scenario)
    return float(target.value(replayed(draft, evaluation))) if evaluation.fits else math.inf


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
