"""Plans for other schedules: a short local search from the best plans by 1F1B."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice

from sailor_cloud.planner.improvement.choice import Chosen, holds, simulated
from sailor_cloud.planner.improvement.local_search import Improver
from sailor_cloud.planner.improvement.moves import Neighbourhood
from sailor_cloud.planner.space.draft import Draft, to_plan
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import evaluate

# The number of plans with other numbers of stages and pipelines that are tried first; and of all simulations.
_BEGINNINGS, _MOST = 4, 48
# The number of neighbours of one kind of moves that are rated in a round.
_OF_A_KIND = 12
# The factor by which a plan may be worse than the incumbent by 1F1B. Other schedules shorten the bubble, not the
# compute.
_NEAR = 1.5


def rescheduled(
    space: Space, target: Target, chosen: Chosen, drafts: Sequence[Draft], keeps: Callable[[Draft], bool]
) -> Chosen:
    """Return the best plan within a few moves from the incumbent or from other drafts of a search.

    Moves change microbatch sizes, numbers of stages and pipelines, and tensor-parallel degrees. Each plan is simulated
    with the best schedule that the job allows. `keeps` returns whether a draft is in the searched space.
    """
    improver, goal = Improver(space, target), target.goal
    improver.factors = improver.evaluator(improver.stage(chosen.draft)).correction(chosen.draft)
    best, known = chosen.draft, simulated(space, chosen.draft)
    assert known is not None, "the incumbent fits"
    least, tried = known[goal], {_name(best)}
    round_of = [improver.expected(draft) for draft in _beginnings(best, drafts, target)]
    first = True
    while len(tried) <= _MOST:
        before = best
        near = sorted((each.foreseen[goal], each.order(), each) for each in round_of if keeps(each))
        limit = improver.expected(best).foreseen[goal] * _NEAR
        for about, _, draft in near:
            if about > limit or len(tried) > _MOST:
                break
            if _name(draft) in tried:
                continue
            tried.add(_name(draft))
            figures = simulated(space, draft)
            if figures is not None and holds(target, figures) and figures[goal] < least:
                best, least = draft, figures[goal]
        if best is before and not first:
            break
        first, round_of = False, list(_neighbours(space, improver, best))
    if best is chosen.draft:
        return chosen
    return Chosen(draft=best, evaluation=evaluate(to_plan(space, best), space.scenario))


def _beginnings(incumbent: Draft, drafts: Sequence[Draft], target: Target) -> list[Draft]:
    """Return the best draft for each other combination of numbers of stages and pipelines."""
    kinds: dict[tuple[int, ...], Draft] = {_shape(incumbent): incumbent}
    for draft in sorted(drafts, key=lambda draft: (draft.foreseen[target.goal], draft.order())):
        kinds.setdefault(_shape(draft), draft)
    return [draft for draft in kinds.values() if draft is not incumbent][:_BEGINNINGS]


def _neighbours(space: Space, improver: Improver, draft: Draft) -> Iterator[Draft]:
    stage = improver.stage(draft)
    kinds = Neighbourhood(space.at(stage), transfers=False).shape_moves(draft)
    for neighbour in chain.from_iterable(islice(kind(), _OF_A_KIND) for kind in kinds):
        made = improver.made(neighbour, stage)
        if made is not None:
            yield made


def _shape(draft: Draft) -> tuple[int, ...]:
    return tuple(sorted(len(part.slots) for part in draft.pipelines))


def _name(draft: Draft) -> tuple[object, ...]:
    return draft.zero_stage, tuple(part.key() for part in draft.pipelines)
