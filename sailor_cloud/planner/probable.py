"""Plans that keep budget, deadline and TTL with the probability that a job requires.

Limits are tightened step by step until a plan is probable enough. The steps do not depend on the required probability,
so a higher one never yields a plan that is less likely to keep the limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sailor_cloud.model.document import Infeasibility, PlanDocument, Status
from sailor_cloud.model.job import Goal
from sailor_cloud.model.shown import Rows
from sailor_cloud.planner.space.answer import share_above
from sailor_cloud.planner.space.effort import OutOfTimeError
from sailor_cloud.planner.space.goals import Figure, Target

# Limits that depend on the error of the iteration time. At each step they are divided by a larger quantile of the first
# plan's iteration time, relative to its prediction. These are the probabilities.
_UNCERTAIN = frozenset({Figure.DURATION_S, Figure.TOTAL_USD})
LEVELS = (0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.965, 0.975, 0.985, 0.99, 0.995, 0.999)


def tightened(target: Target, factor: float) -> Target:
    """Return a target whose limits on time and money of the run are smaller by a factor."""
    limits = (
        replace(limit, at_most=limit.at_most / factor) if limit.figure in _UNCERTAIN else limit
        for limit in target.limits
    )
    return replace(target, limits=tuple(limits))


def probable(
    wanted: float,
    first: PlanDocument,
    *,
    ratio: Callable[[float], float],
    search: Callable[[float, int], PlanDocument],
) -> PlanDocument:
    """Return the first plan that keeps the limits with the job's probability; infeasible if there is none.

    `ratio`: the quantile of the first plan's iteration time at a probability, relative to the prediction. `search` gets
    the divisor of the limits and the number of the step, and raises OutOfTimeError once time is up.
    """
    found, most = first, _probability(first)
    for step, level in enumerate(LEVELS, 1):
        if found.plan is None or _probability(found) >= wanted:
            break
        try:
            found = search(ratio(level), step)
        except OutOfTimeError:
            found = replace(found, search=replace(found.search, cut_short=True))
            break
        most = max(most, _probability(found))
    if first.plan is None or _probability(found) >= wanted:
        return found if found is first else _with_bound_of(first, found)
    reason = (
        f"no plan was found that keeps budget, deadline and TTL with a probability of {100 * wanted:g} %; the most "
        f"probable one reaches {100 * most:.3g} %"
    )
    return replace(
        first,
        status=Status.INFEASIBLE,
        objective=None,
        optimality_gap=None,
        bound=None,
        plan=None,
        prediction=None,
        cost=None,
        ttl_s=None,
        totals=None,
        alternatives=Rows(),
        frontier=Rows(),
        gap_parts=(),
        infeasibility=Infeasibility(
            constraint="probability",
            limit=wanted,
            needed=most,
            unit="",
            message=f"{reason}: allow more money or time, or ask for less",
            reason=reason,
            remedies=("more money or time", f"a probability of at most {100 * most:.3g} %"),
        ),
    )


def _probability(document: PlanDocument) -> float:
    """Return the probability that a run keeps its limits; 0 without a plan."""
    if document.plan is None:
        return 0.0
    within = None if document.totals is None else document.totals.within_limits
    return 1.0 if within is None else within


def _with_bound_of(first: PlanDocument, found: PlanDocument) -> PlanDocument:
    """Return a plan with the bound of the search with the original limits, which no probable plan can beat."""
    assert found.objective is not None
    bound, value, gap = first.bound, found.objective.value, None
    if bound is not None:
        low, high = (value, bound) if found.job.goal is Goal.MAXIMIZE_THROUGHPUT else (bound, value)
        gap = share_above(high, low)
    searched = replace(found.search, weakest_branch=first.search.weakest_branch)
    return replace(found, status=Status.FEASIBLE, bound=bound, optimality_gap=gap, gap_parts=(), search=searched)
