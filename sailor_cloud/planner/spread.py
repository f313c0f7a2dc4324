"""Plans over the whole range from the fastest to the cheapest."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.team import Team
from sailor_cloud.planner.variants import variants


def spread(space: Space, *, team: Team, tell: Callable[[float], None]) -> list[Draft]:
    """Return plans from the fastest to the cheapest, whatever the job's limits; `team`, `tell`: as in `do`."""
    anything = Target(goal=Figure.ITERATION_S, limits=())
    searches = [Blocks(part, anything) for variant in variants(space, ()) for part in narrowed(variant)]
    ratings = [(search, key) for search in searches for key in search.many()]
    rated = [
        Task(partial(search.rate, key, unbeaten=True), partial(search.found.__setitem__, key))
        for search, key in ratings
    ]
    do(rated, team=team, tell=lambda share: tell(0.8 * share))
    found: list[Draft] = []
    judged = [Task(partial(_drafts, space, search), found.extend) for search in searches]
    do(judged, team=team, tell=lambda share: tell(0.8 + 0.2 * share))
    return found


def _drafts(space: Space, search: Blocks) -> list[Draft]:
    drafts = search.spread()
    return drafts if search.space is space else [in_space(draft, search.space, space) for draft in drafts]
