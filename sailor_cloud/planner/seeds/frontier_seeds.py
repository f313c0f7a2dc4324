"""Plans over the whole range from the fastest to the cheapest."""

from __future__ import annotations

import math

from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.seeds.group_search import GroupSearch, run
from sailor_cloud.planner.seeds.narrowing import narrowed
from sailor_cloud.planner.seeds.node_patterns import NodePatterns
from sailor_cloud.planner.space.apportioning import apportioned
from sailor_cloud.planner.space.draft import Draft, in_space
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.restrictions import simple_zero_stages, variants
from sailor_cloud.planner.space.space import Space

_GOALS = Figure.ITERATION_S, Figure.USD_PER_ITERATION


def spread(space: Space, effort: Effort) -> list[Draft]:
    """Return plans from the fastest to the cheapest, regardless of the job's limits on money and time."""
    stages = simple_zero_stages(space)
    alike = [variant for variant in variants(space, ()) if variant.zero_stage in stages]
    found: list[Draft] = []
    for number, variant in enumerate(alike):
        own = effort.between(number / len(alike), (number + 1) / len(alike))
        parts = narrowed(variant)
        searches = [GroupSearch(Evaluator(Assessor(part, Target(goal=_GOALS[0], limits=())))) for part in parts]
        run(searches, GroupSearch.for_trades)
        every = [(part, draft) for part, search in zip(parts, searches, strict=True) for draft in search.every()]
        for turn, goal in enumerate(_GOALS, 1):
            own.tell(turn / (1 + len(_GOALS)))
            target = Target(goal=goal, limits=())
            every += [
                (part, draft) for part in apportioned(variant) for draft in NodePatterns(part, target, math.inf).every()
            ]
        found += [in_space(draft, part, space) for part, draft in every]
    return found
