"""The best plan whose pipelines all share stage count, layer cut and microbatch size, with a proof."""

from __future__ import annotations

from collections.abc import Collection

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import Restriction


def even_answer(space: Space, target: Target, restrictions: Collection[Restriction] = ()) -> Answer:
    """Return the best drafts whose pipelines share stage count, layer cut and microbatch size, and a bound on them.

    Microbatch counts differ by at most one. `restrictions` make the space smaller still: with EVEN_LAYERS stages hold
    equal numbers of layers, up to one.
    """
    raise NotImplementedError("the search over even batches is not finished")
