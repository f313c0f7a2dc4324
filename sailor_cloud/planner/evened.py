"""Plans of even batches or even layers made of known ones: a search of their own would take as long as the first."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial

from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.blocks.cuts import Cutter
from sailor_cloud.planner.blocks.schedule import UncutPipeline
from sailor_cloud.planner.draft import Draft, seats_of, significant
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.part import Part
from sailor_cloud.planner.polish import polish
from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.twins import shapes_of
from sailor_cloud.planner.variants import Restriction

EVEN = frozenset({Restriction.EVEN_BATCHES, Restriction.EVEN_LAYERS})

# So many known plans are cut evenly, the best ones; how many one task cuts.
_MOST, _AT_ONCE = 96, 16


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
    """Return drafts with the even batches or even layers that are asked for, where layers are even best first.

    Known ones that stand so; where layers have to be even, all are cut so, and the best are improved step by step.
    """
    known = list({draft.order(): draft for draft in drafts}.values())
    if Restriction.EVEN_LAYERS in restrictions:
        stages = {stage: [draft for draft in known if draft.zero_stage == stage] for stage in (0, 1)}
        known = [
            found
            for stage, here in stages.items()
            for found in (_cut_evenly(_at(space, stage), target, here, effort) if here else ())
        ]
    return [draft for draft in known if stands_evenly(space, draft, restrictions)]


def _at(space: Space, stage: int) -> Space:
    """Return a space at a ZeRO stage."""
    return space if stage == space.zero_stage else space.part(list(range(len(space.pools))), zero_stage=stage)


def _cut_evenly(space: Space, target: Target, drafts: Sequence[Draft], effort: Effort) -> list[Draft]:
    """Return drafts of one ZeRO stage, cut evenly and improved, with about their figures under the replay."""
    best = sorted(drafts, key=lambda draft: (significant(draft.foreseen[target.goal]), draft.order()))[:_MOST]
    part = Part(space.evenly(), target, effort.lighter())
    found: list[Draft] = []
    tasks = [
        Task(partial(_recut, part.assessor, best[first : first + _AT_ONCE]), found.extend)
        for first in range(0, len(best), _AT_ONCE)
    ]
    do(tasks, team=effort.team, tell=effort.between(0.0, 0.5).tell)
    if not effort.expired():
        placed = [(part, draft) for draft in {draft.order(): draft for draft in found}.values()]
        found = [draft for _, draft in polish(placed, effort.between(0.5, 1.0), most=2)]
    return [replace(draft, zero_stage=space.zero_stage) for draft in found]


def _recut(assessor: Assessor, drafts: Sequence[Draft]) -> list[Draft]:
    """Return what drafts become where each pipeline gets the even cut whose busiest stage computes least."""
    cutter, found = Cutter(assessor.space), []
    for draft in drafts:
        cuts: dict[tuple[tuple[Seat, ...], int, int], tuple[int, ...] | None] = {}
        shapes = []
        for shape, own in zip(shapes_of(draft), draft.pipelines, strict=True):
            key = (seats_of(shape.slots), shape.microbatch_size, own.microbatches)
            if key not in cuts:
                seats, size, microbatches = key
                pipeline = UncutPipeline(
                    seats=seats, flows=(), size=size, microbatches=microbatches, replicas=len(draft.pipelines)
                )
                cut = cutter.cut(pipeline)
                cuts[key] = None if cut is None else cut[0]
            even = cuts[key]
            if even is not None:
                shapes.append(replace(shape, cut=even))
        made = assessor.draft(shapes) if len(shapes) == len(draft.pipelines) else None
        if made is not None:
            found.append(made)
    return found
