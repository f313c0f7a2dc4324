"""Estimates of what the replay finds of drafts of a space that stand at different ZeRO stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.draft import Draft, significant
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.overlap import Overlap
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do

# How many drafts one task estimates.
_AT_ONCE = 16


@dataclass(slots=True)
class Estimates:
    """The estimates of one space and target, by ZeRO stage."""

    space: Space
    target: Target
    _overlaps: dict[int, Overlap] = field(default_factory=dict)

    def expected(self, draft: Draft) -> Draft:
        """Return a draft with about its figures under the replay."""
        if draft.expected is not None:
            return draft
        stage = max(self.space.zero_stage, draft.zero_stage)
        if stage not in self._overlaps:
            self._overlaps[stage] = Overlap(Assessor(self.space.at(stage), self.target))
        return self._overlaps[stage].expected(draft)

    def best_first(self, drafts: Sequence[Draft], *, most: int) -> list[Draft]:
        """Return drafts with about their figures under the replay, each once, best first by these.

        Of those that nobody has estimated before only the first ones, `most` of them.
        """
        found = {draft.order(): draft for draft in drafts if draft.expected is not None}
        others = {draft.order(): draft for draft in drafts if draft.order() not in found}
        found |= {order: self.expected(draft) for order, draft in list(others.items())[:most]}
        return sorted(found.values(), key=lambda draft: (significant(draft.foreseen[self.target.goal]), draft.order()))

    def of(self, drafts: Sequence[Draft], effort: Effort) -> list[Draft]:
        """Return drafts with about their figures under the replay, in their order; as they are once time is over."""
        found: list[Draft] = []
        batches = [drafts[first : first + _AT_ONCE] for first in range(0, len(drafts), _AT_ONCE)]
        tasks = [Task(partial(self._every, batch, effort.expired), found.extend) for batch in batches]
        do(tasks, team=effort.team, tell=lambda share: None)
        return found

    def _every(self, drafts: Sequence[Draft], expired: Callable[[], bool]) -> list[Draft]:
        return list(drafts) if expired() else [self.expected(draft) for draft in drafts]
