"""Searches first plans of large problems, in all parts of a space at once: blocks, then groups of equal pipelines.

Each step depends only on the results of earlier steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sailor_cloud.planner.bound.bounds import breaks_limits, goal_bound
from sailor_cloud.planner.evaluate.assess import Assessor
from sailor_cloud.planner.evaluate.similar_zones import elsewhere
from sailor_cloud.planner.improvement import Evaluator
from sailor_cloud.planner.seeds.group_search import GroupSearch, run
from sailor_cloud.planner.seeds.narrowing import narrowed
from sailor_cloud.planner.seeds.part import Part
from sailor_cloud.planner.seeds.zone_chains import ZoneChains
from sailor_cloud.planner.space.answer import Answer
from sailor_cloud.planner.space.draft import Draft, in_space, significant
from sailor_cloud.planner.space.effort import NORMAL, Effort
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.space import Space

# The progress of a search after its ratings and after its blocks.
_RATED, _JUDGED = 0.6, 0.8
# The sets of blocks of each part that are judged at once, at first and at most. Some are wasted if one makes the next
# unnecessary, most often the first ones.
_JUDGED_AT_ONCE = 4, 16
# The replay may be faster than the closed form by up to about the first factor. Drafts are evaluated up to this factor
# behind the incumbent, and up to the second number; those of groups always are.
_EVALUATED_WITHIN, _MOST_EVALUATED = 1.2, 60


def mix(space: Space, target: Target, *, keep: int, effort: Effort = NORMAL, known: float = np.inf) -> Answer:
    """Return the best drafts found and a bound on any plan's goal; `known`: the goal of a known plan."""
    search = _Search(space, target, effort, known)
    if breaks_limits(space, target):
        search.bound = goal_bound(space, target, close=effort.bounded)
    else:
        search.run()
    best = sorted({draft.order(): draft for draft in search.drafts}.items())[:keep]
    return Answer(
        drafts=tuple(draft for _, draft in best),
        others=(*search.drafts, *search.expected.values()),
        bound=search.bound,
    )


@dataclass(slots=True)
class _Search:
    """A search of all parts of a space; `best` is the goal of the incumbent, `bound` the bound on any plan's."""

    space: Space
    target: Target
    effort: Effort
    best: float
    bound: float = -np.inf
    parts: tuple[Part, ...] = ()
    drafts: list[Draft] = field(default_factory=list)
    # Drafts with their figures under the replay, by sort key; they may break limits by the closed form.
    expected: dict[tuple[object, ...], Draft] = field(default_factory=dict)
    # Each draft with its part and its form in that part.
    _found: list[tuple[Draft, Part, Draft]] = field(default_factory=list)

    def run(self) -> None:
        spaces = narrowed(self.space)
        self.parts = tuple(Part(part, self.target, self.effort.quiet()) for part in spaces)
        self._rate()
        self._judge()
        self._group()
        self._evaluate()
        for draft in ZoneChains(self.space, self.target, self.best).draw():
            self.expected.setdefault(draft.order(), draft)
        if any(part is not self.space for part in spaces):
            assessor = Assessor(self.space, self.target)
            self.drafts += elsewhere(assessor, self.drafts, assessor.rank)
            evaluator = Evaluator(assessor)
            for draft in map(evaluator.expected, elsewhere(assessor, self.expected.values(), evaluator.rank)):
                self.expected.setdefault(draft.order(), draft)
        if self._limited:
            self.bound = self._goal_bound()

    @property
    def _limited(self) -> bool:
        """Whether time is limited, so that plans come before the bound."""
        return self.space.known.deadline.at_s < np.inf

    def _goal_bound(self) -> float:
        return goal_bound(self.space, self.target, close=self.effort.bounded)

    def _rate(self) -> None:
        """Rate the blocks of every part, and find the bound."""
        effort = self.effort.between(0.0, _RATED)
        if not self._limited:
            self.bound = self._goal_bound()
        wanted = [(part.blocks, key) for part in self.parts for key in part.blocks.rough()]
        for number, (blocks, key) in enumerate(wanted):
            effort.tell(number / len(wanted))
            blocks.keep(key, blocks.rate(key))

    def _judge(self) -> None:
        """Judge the most promising blocks of all parts."""
        for part in self.parts:
            part.blocks.known = self.best
        searches = [part.blocks for part in self.parts]
        at_once, most = _JUDGED_AT_ONCE
        while any(wanted := [search.wanted(at_once) for search in searches]):
            at_once = min(most, 2 * at_once)
            for search, guesses in zip(searches, wanted, strict=True):
                search.enter([search.judge(guess) for guess in guesses])
            best = min(search.known for search in searches)
            for search in searches:
                search.known = best
        for part in self.parts:
            self._enter(part, part.blocks.nearly_kept)
        self.effort.tell(_JUDGED)

    def _group(self) -> None:
        """Estimate plans of a group of equal pipelines for each accelerator."""
        for part in self.parts:
            part.groups.known = part.blocks.known
        run([part.groups for part in self.parts], GroupSearch.for_the_best)
        for part in self.parts:
            self._enter(part, part.groups.best())

    def _evaluate(self) -> None:
        """Evaluate promising drafts by the replay."""
        for here, part, draft in sorted(self._found, key=self._near)[:_MOST_EVALUATED]:
            if draft.expected is None and draft.figures[self.target.goal] <= self.best * _EVALUATED_WITHIN:
                expected = part.evaluator.expected(draft)
                self.expected[here.order()] = self._here(part, expected)

    def _here(self, part: Part, draft: Draft) -> Draft:
        return draft if part.space is self.space else in_space(draft, part.space, self.space)

    def _near(self, found: tuple[Draft, Part, Draft]) -> tuple[object, ...]:
        """Return the sort key of a draft that may break limits a little."""
        here, part, draft = found
        return significant(draft.figures[self.target.goal] * part.assessor.excess(draft)), here.order()

    def _enter(self, part: Part, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            here = self._here(part, draft)
            self._found.append((here, part, draft))
            if part.assessor.keeps(draft):
                self.drafts.append(here)
                self.best = min(self.best, draft.figures[self.target.goal])
            if draft.expected is not None:
                self.expected[here.order()] = here
