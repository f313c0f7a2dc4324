"""The best plan whose pipelines all share stage count, layer cut and microbatch size, with a proof."""

from __future__ import annotations

from collections.abc import Callable, Collection

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.bounds import goal_bound
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.effort import never
from sailor_cloud.planner.even.solving import solve_even
from sailor_cloud.planner.exhaustive import small_layouts
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.variants import Restriction, fits_whole, variants

__all__ = ["even_answer", "solve_even"]

# Drafts kept for the check under the replay.
_KEPT = 16


def even_answer(
    space: Space,
    target: Target,
    restrictions: Collection[Restriction] = (),
    *,
    bounded: bool = True,
    expired: Callable[[], bool] = never,
) -> Answer:
    """Return the best drafts whose pipelines share stage count, layer cut and microbatch size, and a bound on them.

    Microbatch counts differ by at most one. `restrictions` make the space smaller still: with EVEN_LAYERS stages hold
    equal numbers of layers, up to one. Replicas of a stage may differ in accelerator, tp and zone. Where nothing has to
    be `bounded`, plans count alone, and the bound is no use. Once a time limit has `expired`, the plans found by then
    are the answer, if there are any.
    """
    there = space.evenly() if Restriction.EVEN_LAYERS in restrictions else space
    parts = variants(there, restrictions)
    # Where all devices hold the whole model, ZeRO-1 brings little; its bound counts all plans then, even or not.
    left = [part for part in parts if part.zero_stage > space.zero_stage and not _searched(there, part)]
    answers = [
        (part, solve_even(part, target, keep=_KEPT, bounded=bounded, expired=expired))
        for part in parts
        if all(part is not each for each in left)
    ]
    drafts = [_here(draft, part, space) for part, answer in answers for draft in answer.drafts]
    bound = min((answer.bound for _, answer in answers if answer.bound is not None), default=None)
    if bounded and bound is not None and len(parts) > 1:
        # That of all parts together is found in another way than those of each.
        together = min(goal_bound(space.at(stage), target) for stage in {part.zero_stage for part in parts})
        bound = max(min([bound, *(goal_bound(part, target) for part in left)]), together)
    return Answer(
        drafts=tuple(sorted(drafts, key=Draft.order)[:_KEPT]),
        bound=bound,
        columns=sum(answer.columns for _, answer in answers),
        nodes=sum(answer.nodes for _, answer in answers),
        others=tuple(_here(draft, part, space) for part, answer in answers for draft in answer.others),
    )


def _searched(space: Space, part: Space) -> bool:
    """Return whether a part with ZeRO-1 is searched: where it makes room that is needed, or the part is small."""
    return small_layouts(part) is not None or not all(fits_whole(space))


def _here(draft: Draft, part: Space, space: Space) -> Draft:
    return draft if part is space else in_space(draft, part, space)
