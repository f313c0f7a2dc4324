"""A part of a space with the searches for first plans in it."""

from __future__ import annotations

from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.improvement import Evaluator
from sailor_cloud.planner.seeds.blocks import Blocks
from sailor_cloud.planner.seeds.group_search import GroupSearch
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.space import Space


class Part:
    """A part of a space, or all of it, with data that its searches share."""

    def __init__(self, space: Space, target: Target, effort: Effort) -> None:
        self.space, self.target = space, target
        self.assessor = Assessor(space, target)
        self.evaluator = Evaluator(self.assessor)
        self.blocks = Blocks(space, target, effort)
        self.groups = GroupSearch(self.evaluator)
