"""Improves the best plans of different kinds once more, judged by about what the replay finds of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.part import POLISHED, Part
from sailor_cloud.planner.tasks import Task, do

# A draft in the part that it was found in.
Placed = tuple[Part, Draft]

# How many drafts one task estimates, and of how many kinds the best ones are improved.
_AT_ONCE, _KINDS = 16, 4


def polish(drafts: Sequence[Placed], effort: Effort) -> list[Placed]:
    """Return drafts with about their figures under the replay, and what the best of them become step by step."""
    found: list[Placed] = []
    batches = [drafts[first : first + _AT_ONCE] for first in range(0, len(drafts), _AT_ONCE)]
    estimates = [
        Task(partial(_expected, batch), partial(_enter, found, [part for part, _ in batch])) for batch in batches
    ]
    do(estimates, team=effort.team, tell=effort.between(0.0, 0.3).tell)
    found.sort(key=_rank)
    kinds: dict[tuple[object, ...], Placed] = {}
    for part, draft in found:
        kinds.setdefault((draft.pipelines[0].cut, len(draft.pipelines)), (part, draft))
    some = list(kinds.values())[: min(effort.refined, _KINDS)]
    steps = [
        Task(partial(part.polished, draft), partial(_enter, found, [part] * POLISHED), size=len(draft.pipelines))
        for part, draft in some
    ]
    do(steps, team=effort.team, tell=effort.between(0.3, 1.0).tell)
    return found


def _expected(drafts: Sequence[Placed]) -> list[Draft]:
    return [part.overlap.expected(draft) for part, draft in drafts]


def _enter(found: list[Placed], parts: Sequence[Part], drafts: Sequence[Draft]) -> None:
    found += zip(parts, drafts, strict=False)


def _rank(placed: Placed) -> tuple[object, ...]:
    part, draft = placed
    return part.overlap.rank(draft)
