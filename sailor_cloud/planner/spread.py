"""Plans over the whole range from the fastest to the cheapest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.halves import border, both
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.variants import variants


def spread(space: Space, *, processes: int, tell: Callable[[float], None]) -> list[Draft]:
    """Return plans from the fastest to the cheapest, whatever the job's limits; `processes`, `tell`: as in `do`."""
    anything = Target(goal=Figure.ITERATION_S, limits=())
    searches = [Blocks(part, anything) for variant in variants(space, ()) for part in narrowed(variant)]
    ratings = [(search, key) for search in searches for key in search.many()]
    tasks = [
        Task(partial(search.rate, key, unbeaten=True), partial(search.found.__setitem__, key))
        for search, key in ratings
    ]
    do(tasks, processes=processes, tell=tell)
    middle = border([len(search.space.pools) for search in searches])
    first, second = both(
        lambda: _drafts(space, searches[:middle]), lambda: _drafts(space, searches[middle:]), processes=processes
    )
    return [*first, *second]


def _drafts(space: Space, searches: Sequence[Blocks]) -> list[Draft]:
    found: list[Draft] = []
    for search in searches:
        drafts = search.spread()
        found += drafts if search.space is space else [in_space(draft, search.space, space) for draft in drafts]
    return found
