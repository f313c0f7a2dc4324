"""Seeds for large jobs: node patterns, then groups of equal pipelines for each accelerator."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from sailor_cloud.planner.bound.bounds import breaks_limits, goal_bound
from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.seeds.group_search import grouped
from sailor_cloud.planner.seeds.node_patterns import NodePatterns
from sailor_cloud.planner.space.answer import Answer
from sailor_cloud.planner.space.apportioning import apportioned
from sailor_cloud.planner.space.draft import Draft, in_space
from sailor_cloud.planner.space.effort import NORMAL, Effort
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.space import Space

# The progress of a search after its patterns.
_DRAWN = 0.5

# Drafts with their figures under the replay, by sort key; they may break limits by the closed form.
_Expected = dict[tuple[object, ...], Draft]


def mix(space: Space, target: Target, *, keep: int, effort: Effort = NORMAL, known: float = np.inf) -> Answer:
    """Return the best drafts found and a bound on any plan's goal; `known`: the goal of a known plan."""
    # If time is limited, plans come before the bound.
    limited = space.known.deadline.at_s < np.inf
    if breaks_limits(space, target):
        return Answer(drafts=(), bound=goal_bound(space, target, close=effort.bounded))
    bound = -np.inf if limited else goal_bound(space, target, close=effort.bounded)
    assessor = Assessor(space, target)
    expected: _Expected = {}
    patterns = [
        in_space(draft, part, space)
        for part in apportioned(space)
        for draft in NodePatterns(part, target, known).best()
    ]
    best = _entered(expected, patterns, assessor, known)
    effort.tell(_DRAWN)
    _entered(expected, grouped(space, target, known=best), assessor, best)
    if limited:
        bound = goal_bound(space, target, close=effort.bounded)
    kept = sorted(order for order, draft in expected.items() if assessor.keeps(draft))[:keep]
    return Answer(drafts=tuple(expected[order] for order in kept), others=tuple(expected.values()), bound=bound)


def _entered(expected: _Expected, drafts: Iterable[Draft], assessor: Assessor, best: float) -> float:
    """Add drafts, and return the goal of the best that keeps all limits by the closed form, or `best`."""
    for draft in drafts:
        expected.setdefault(draft.order(), draft)
        if assessor.keeps(draft):
            best = min(best, draft.figures[assessor.target.goal])
    return best
