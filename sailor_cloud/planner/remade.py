"""Makes new plans of known ones, all by the same rule, and improves the best of them step by step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.draft import Draft, significant
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.part import Part
from sailor_cloud.planner.polish import polish
from sailor_cloud.planner.tasks import Task, do

# Returns what drafts become; those that can't be changed so are left out.
Change = Callable[[Assessor, Sequence[Draft]], list[Draft]]

# So many known plans are changed, the best ones; how many one task changes.
_MOST, _AT_ONCE = 96, 16


def remade(part: Part, drafts: Sequence[Draft], changes: Sequence[Change], effort: Effort, *, most: int) -> list[Draft]:
    """Return what the best drafts become by some changes one after the other, with about what the replay finds of them.

    `most`: so many are improved step by step. All stand in the part's space.
    """
    goal = part.target.goal
    best = sorted(drafts, key=lambda draft: (significant(draft.foreseen[goal]), draft.order()))[:_MOST]
    for number, change in enumerate(changes):
        made: list[Draft] = []
        tasks = [
            Task(partial(change, part.assessor, best[first : first + _AT_ONCE]), made.extend)
            for first in range(0, len(best), _AT_ONCE)
        ]
        do(tasks, team=effort.team, tell=effort.between(0.25 * number, 0.25 * (number + 1)).tell)
        best = list({draft.order(): draft for draft in made}.values())
    if not effort.expired():
        best = [draft for _, draft in polish([(part, draft) for draft in best], effort.between(0.5, 1.0), most=most)]
    return best
