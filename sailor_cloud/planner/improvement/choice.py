"""Chooses among drafts by the simulator's evaluation of their plans, with the complete bill."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sailor_cloud.planner.evaluate.figures import replayed
from sailor_cloud.planner.improvement.local_search import Improver
from sailor_cloud.planner.space.draft import Draft, significant, to_plan
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import Evaluation, evaluate

# The most drafts that are simulated; and how many without evaluation, the best by the closed form, are evaluated first.
MOST_SIMULATED, MOST_EVALUATED = 32, 64
# For plans in 1F1B, the evaluator's times are exact unless ranks share cores; then the error is up to about this
# factor. Its money is never more than the bill of such a plan.
_CROWDED = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A draft that keeps the limits under the replay."""

    draft: Draft
    evaluation: Evaluation


def first_that_holds(space: Space, target: Target, drafts: Sequence[Draft]) -> Chosen | None:
    """Return the first draft whose plan keeps the constraints under the replay."""
    for draft in drafts:
        if holds(target, simulated(space, draft)):
            return Chosen(draft=draft, evaluation=_evaluation(space, draft))
    return None


def best_that_holds(space: Space, target: Target, drafts: Sequence[Draft]) -> Chosen | None:
    """Return the best draft whose plan keeps the constraints; drafts come best first by the closed form.

    The evaluator's figures are at most the simulator's. So drafts are simulated in order until the next one can't be
    better in 1F1B. For jobs that allow other schedules, `rescheduled` continues from there.
    """
    least_share = _CROWDED if math.isfinite(space.cores(1)) else 1.0
    best, least, count = None, math.inf, 0
    for draft in evaluated_first(Improver(space, target), drafts):
        about = {figure: value * least_share for figure, value in draft.foreseen.items()}
        if about[target.goal] >= least or count == MOST_SIMULATED:
            break
        if not holds(target, about):
            continue
        figures = simulated(space, draft)
        count += 1
        if figures is not None and holds(target, figures) and figures[target.goal] < least:
            best, least = draft, figures[target.goal]
    return None if best is None else Chosen(draft=best, evaluation=_evaluation(space, best))


def evaluated_first(improver: Improver, drafts: Sequence[Draft], *, most: int = MOST_EVALUATED) -> list[Draft]:
    """Return drafts with their figures by the evaluator, without duplicates, best first.

    Only the first `most` of those without evaluation are evaluated.
    """
    found = {draft.order(): draft for draft in drafts if draft.expected is not None}
    others = {draft.order(): draft for draft in drafts if draft.order() not in found}
    found |= {order: improver.expected(draft) for order, draft in list(others.items())[:most]}
    goal = improver.target.goal
    return sorted(found.values(), key=lambda draft: (significant(draft.foreseen[goal]), draft.order()))


def simulated(space: Space, draft: Draft) -> Mapping[Figure, float] | None:
    """Return the simulator's figures of a draft; None if it does not fit. They are kept for other targets."""
    known: dict[tuple[object, ...], Mapping[Figure, float] | None] = space.evaluated.setdefault("simulated", {})
    name = _name(draft)
    if name not in known:
        space.known.deadline.check()
        evaluation = evaluate(to_plan(space, draft), space.scenario)
        space.evaluated["newest evaluation"] = {name: evaluation}
        found = {figure: float(value) for figure, value in replayed(draft, evaluation).items()}
        known[name] = found if evaluation.fits else None
    return known[name]


def _evaluation(space: Space, draft: Draft) -> Evaluation:
    """Return the evaluation of a chosen draft, which is kept: the same plans are chosen again."""
    chosen: dict[tuple[object, ...], Evaluation] = space.evaluated.setdefault("evaluations of chosen", {})
    name = _name(draft)
    if name not in chosen:
        newest = space.evaluated.get("newest evaluation", {})
        chosen[name] = newest.get(name) or evaluate(to_plan(space, draft), space.scenario)
    return chosen[name]


def _name(draft: Draft) -> tuple[object, ...]:
    return draft.zero_stage, tuple(part.key() for part in draft.pipelines)


def holds(target: Target, figures: Mapping[Figure, float] | None) -> bool:
    """Return whether figures keep the limits of a target; False for None."""
    if figures is None:
        return False
    return bool(target.feasible({figure: np.array(value) for figure, value in figures.items()}))
