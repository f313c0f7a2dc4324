"""Plans over the whole range from the fastest to the cheapest."""

from __future__ import annotations

from collections.abc import Sequence

from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.halves import border, both
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import variants


def spread(space: Space, *, processes: int = 1) -> list[Draft]:
    """Return plans from the fastest to the cheapest, whatever the limits of the job; `processes`: as of `both`."""
    parts = [part for variant in variants(space, ()) for part in narrowed(variant)]
    middle = border([len(part.pools) for part in parts])
    first, second = both(
        lambda: _of_parts(space, parts[:middle]), lambda: _of_parts(space, parts[middle:]), processes=processes
    )
    return [*first, *second]


def _of_parts(space: Space, parts: Sequence[Space]) -> list[Draft]:
    anything = Target(goal=Figure.ITERATION_S, limits=())
    found: list[Draft] = []
    for part in parts:
        drafts = Blocks(part, anything).spread()
        found += drafts if part is space else [in_space(draft, part, space) for draft in drafts]
    return found
