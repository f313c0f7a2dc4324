"""Plans of even batches or even layers made of known ones: a search of their own would take as long as the first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.draft import Draft, significant
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.improvement import Improver, Neighbourhood, improved
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.twins import shapes_of
from sailor_cloud.planner.variants import Restriction

# So many known plans are changed, the best ones.
_MOST = 96


def stands_evenly(space: Space, draft: Draft, restrictions: Collection[Restriction]) -> bool:
    """Return whether a draft has the even batches and the even layers that are asked for."""
    even = True
    if Restriction.EVEN_BATCHES in restrictions:
        counts = [part.microbatches for part in draft.pipelines]
        even = len({(part.cut, part.microbatch_size) for part in draft.pipelines}) == 1
        even = even and max(counts) - min(counts) <= 1
    if Restriction.EVEN_LAYERS in restrictions:
        even = even and all(space.evenly().allows(part.cut) for part in draft.pipelines)
    return even


def evened(
    space: Space, target: Target, drafts: Iterable[Draft], restrictions: Collection[Restriction], effort: Effort
) -> list[Draft]:
    """Return drafts with the even batches or even layers that are asked for, in no order.

    Known ones that stand so, and what others become: where layers have to be even, all are cut so and the best improved
    step by step; where batches have to, all pipelines get the cut and the microbatch size of one of them.
    """
    known = {draft.order(): draft for draft in drafts}
    for number, stage in enumerate((0, 1)):
        here = [draft for draft in known.values() if max(space.zero_stage, draft.zero_stage) == stage]
        if here:
            there = space.at(stage)
            share = effort.between(number / 2, (number + 1) / 2)
            made = _made_even(there, target, here, restrictions, share)
            known |= {draft.order(): draft for draft in made}
    return [draft for draft in known.values() if stands_evenly(space, draft, restrictions)]


def _made_even(
    space: Space, target: Target, drafts: Sequence[Draft], restrictions: Collection[Restriction], effort: Effort
) -> list[Draft]:
    """Return what the best drafts of one ZeRO stage become, with their figures under the replay."""
    layers, batches = Restriction.EVEN_LAYERS in restrictions, Restriction.EVEN_BATCHES in restrictions
    there = space.evenly() if layers else space
    assessor = Assessor(there, target)
    made = sorted(drafts, key=lambda draft: (significant(draft.foreseen[target.goal]), draft.order()))[:_MOST]
    for change in (*((_recut,) if layers else ()), *((_alike,) if batches else ())):
        if effort.expired():
            return []
        made = change(assessor, made)
    # Moves make batches uneven, so that there is no use of them there.
    light = effort.lighter()
    improver = Improver(there, target)
    found = [improver.expected(draft) for draft in made] if batches else improved(there, target, made, light, most=2)
    return [draft for draft in found if draft.zero_stage == space.zero_stage or not draft.zero_stage]


def _recut(assessor: Assessor, drafts: Sequence[Draft]) -> list[Draft]:
    """Return what drafts become where each pipeline gets the even cut whose busiest stage computes least."""
    around, found = Neighbourhood(assessor.space), []
    for draft in drafts:
        replicas = len(draft.pipelines)
        shapes = []
        for shape in shapes_of(draft):
            cut = around.cut(shape.slots, shape.microbatch_size, replicas)
            shapes += [] if cut is None else [replace(shape, cut=cut)]
        made = assessor.draft(shapes) if len(shapes) == replicas else None
        if made is not None:
            found.append(made)
    return found


def _alike(assessor: Assessor, drafts: Sequence[Draft]) -> list[Draft]:
    """Return what drafts of equally long pipelines become where all have the cut and microbatch size of one of them."""
    found = []
    for draft in drafts:
        shapes = shapes_of(draft)
        if len({len(shape.slots) for shape in shapes}) == 1:
            for cut, size in sorted({(shape.cut, shape.microbatch_size) for shape in shapes}):
                alike = [replace(shape, cut=cut, microbatch_size=size) for shape in shapes]
                made = assessor.draft(alike, even=True) if assessor.space.batch % size == 0 else None
                if made is not None:
                    found.append(made)
    return found
