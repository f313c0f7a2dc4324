"""Improves the best plans of different kinds step by step, judged by about what the replay finds of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sailor_cloud.planner.draft import Draft, significant
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.overlap import Factors
from sailor_cloud.planner.part import POLISHED, Part
from sailor_cloud.planner.tasks import Task, do

# A draft in the part that it was found in.
Placed = tuple[Part, Draft]

# How many drafts one task estimates.
_AT_ONCE = 16


def polish(drafts: Sequence[Placed], effort: Effort, *, most: int) -> list[Placed]:
    """Return drafts with about their figures under the replay, and what the best of them become step by step.

    The best one of each cut and number of pipelines is improved, `most` in all.
    """
    found: list[Placed] = []
    batches = [drafts[first : first + _AT_ONCE] for first in range(0, len(drafts), _AT_ONCE)]
    estimates = [
        Task(partial(_expected, batch), partial(_enter, found, [part for part, _ in batch])) for batch in batches
    ]
    do(estimates, team=effort.team, tell=effort.between(0.0, 0.2).tell)
    found.sort(key=_near)
    kinds: dict[tuple[object, ...], Placed] = {}
    for part, draft in found:
        kinds.setdefault((draft.pipelines[0].cut, len(draft.pipelines)), (part, draft))
    some = list(kinds.values())[:most]
    factors = some[0][0].overlap.measured(some[0][1]) if some else {}
    steps = [
        Task(
            partial(_polished, part, draft, factors, effort.expired),
            partial(_enter, found, [part] * POLISHED),
            size=len(draft.pipelines),
            about=(len(draft.pipelines),),
        )
        for part, draft in some
    ]
    do(steps, team=effort.team, tell=effort.between(0.2, 1.0).tell)
    return found


def _expected(drafts: Sequence[Placed]) -> list[Draft]:
    return [part.overlap.expected(draft) for part, draft in drafts]


def _polished(part: Part, draft: Draft, factors: Factors, expired: Callable[[], bool]) -> list[Draft]:
    return [] if expired() else part.polished(draft, factors)


def _enter(found: list[Placed], parts: Sequence[Part], drafts: Sequence[Draft]) -> None:
    found += zip(parts, drafts, strict=False)


def _near(placed: Placed) -> tuple[object, ...]:
    """Return the sort key of a draft that may break limits a little."""
    part, draft = placed
    excess, (value, *rest) = part.overlap.rank(draft)
    return significant(value * excess), *rest
