"""Restrictions to smaller spaces: which plans satisfy them, and how known plans change to do so."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sailor_cloud.planner.evaluate.assess import Assessor, shapes_of
from sailor_cloud.planner.improvement.local_search import improved
from sailor_cloud.planner.improvement.moves import Neighbourhood
from sailor_cloud.planner.space.draft import Draft, significant
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.restrictions import Restriction, zero_stages
from sailor_cloud.planner.space.space import Space

# The number of best known plans that are changed, and of results that are evaluated.
_MOST, _EVALUATED = 96, 24


def even_space(space: Space, restrictions: Collection[Restriction]) -> Space:
    """Return the space of plans with the requested even batches and even layers."""
    return space.restricted(
        even_layers=Restriction.EVEN_LAYERS in restrictions, even_batches=Restriction.EVEN_BATCHES in restrictions
    )


def is_even(space: Space, draft: Draft, restrictions: Collection[Restriction]) -> bool:
    """Return whether a draft has the requested even batches and even layers."""
    there, even = even_space(space, restrictions), True
    if there.even_batches:
        counts = [part.microbatches for part in draft.pipelines]
        even = len({(part.cut, part.microbatch_size) for part in draft.pipelines}) == 1
        even = even and max(counts) - min(counts) <= 1
    return even and all(there.allows(cut) for cut in {part.cut for part in draft.pipelines})


def even_drafts(
    space: Space, target: Target, drafts: Iterable[Draft], restrictions: Collection[Restriction], effort: Effort
) -> list[Draft]:
    """Return drafts with the requested even batches or even layers, in no order.

    They are known drafts and changes of others. For even layers, all are cut evenly and the best go through a local
    search. For even batches, all pipelines get the cut and the microbatch size of one of them.
    """
    known = {draft.order(): draft for draft in drafts}
    there, made = even_space(space, restrictions), list(known.values())
    for change, wanted in ((_recut, there.even_layers), (_alike, there.even_batches)):
        if wanted:
            best = sorted(made, key=lambda draft: (significant(draft.foreseen[target.goal]), draft.order()))[:_MOST]
            made = [
                replace(draft, zero_stage=stage)
                for stage in zero_stages(space)
                for draft in change(space.at(stage), target, [each for each in best if each.zero_stage == stage])
            ]
    made = sorted(made, key=lambda draft: (significant(draft.foreseen[target.goal]), draft.order()))[:_EVALUATED]
    known |= {draft.order(): draft for draft in improved(there, target, made, effort.lighter(), most=2)}
    return [draft for draft in known.values() if is_even(space, draft, restrictions)]


def _recut(space: Space, target: Target, drafts: Sequence[Draft]) -> list[Draft]:
    """Return drafts with the even cut of each pipeline that has the least busiest stage."""
    assessor = Assessor(space.restricted(even_layers=True), target)
    around, found = Neighbourhood(assessor.space), []
    for draft in drafts:
        replicas = len(draft.pipelines)
        shapes = []
        for shape in shapes_of(draft):
            cut = around.cut(shape.slots, shape.microbatch_size, replicas)
            shapes += [] if cut is None else [shape._replace(cut=cut)]
        made = assessor.draft(shapes) if len(shapes) == replicas else None
        if made is not None:
            found.append(made)
    return found


def _alike(space: Space, target: Target, drafts: Sequence[Draft]) -> list[Draft]:
    """Return drafts of equally long pipelines in which all have the cut and microbatch size of one of them."""
    assessor, found = Assessor(space.restricted(even_batches=True), target), []
    for draft in drafts:
        shapes = shapes_of(draft)
        if len({len(shape.slots) for shape in shapes}) == 1:
            for cut, size in sorted({(shape.cut, shape.microbatch_size) for shape in shapes}):
                alike = [shape._replace(cut=cut, microbatch_size=size) for shape in shapes]
                made = assessor.draft(alike)
                if made is not None:
                    found.append(made)
    return found
