"""Plans over the whole range from the fastest to the cheapest."""

from __future__ import annotations

from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import variants


def spread(space: Space) -> list[Draft]:
    """Return plans from the fastest to the cheapest, whatever the limits of the job."""
    anything = Target(goal=Figure.ITERATION_S, limits=())
    found: list[Draft] = []
    for variant in variants(space, ()):
        for part in narrowed(variant):
            drafts = Blocks(part, anything).spread()
            found += drafts if part is space else [in_space(draft, part, space) for draft in drafts]
    return found
