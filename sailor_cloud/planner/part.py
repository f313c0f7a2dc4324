"""A part of a space with the searches for first plans in it."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.group_search import GroupSearch
from sailor_cloud.planner.improvement import Evaluator
from sailor_cloud.planner.space import Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a step brought: drafts in the part, which may break limits, and how many plans were rated and judged."""

    drafts: tuple[Draft, ...]
    rated: int
    judged: int


class Part:
    """A part of a space, or all of it, with what searches of it share."""

    def __init__(self, space: Space, target: Target, effort: Effort) -> None:
        self.space, self.target = space, target
        self.assessor = Assessor(space, target)
        self.evaluator = Evaluator(self.assessor)
        self.blocks = Blocks(space, target, effort)
        self.groups = GroupSearch(self.evaluator)

    def judged(self) -> Found:
        """Return the drafts of the most promising blocks, after they were judged."""
        return Found(drafts=tuple(self.blocks.nearly_kept), rated=self.blocks.rated, judged=self.blocks.judged)

    def grouped(self) -> Found:
        """Return the best drafts of a group of equal pipelines for each accelerator, after they were drawn."""
        return Found(drafts=tuple(self.groups.best()), rated=0, judged=self.groups.judged)
