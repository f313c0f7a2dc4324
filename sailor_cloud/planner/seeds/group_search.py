"""Searches plans with one group of equal pipelines per accelerator; faster accelerators get larger microbatches.

The fewer microbatches a pipeline has, the longer is its last backward pass, which hides all-reduces. So these plans are
ranked by estimated replay time. The closed form ignores that overlap and would rank them too low.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.improvement.sizing import Apportioned, with_balanced_sizes
from sailor_cloud.planner.seeds.groups import Ground, Groups, Sort, a_few_more_or_less, on_shares, step_by_step
from sailor_cloud.planner.seeds.narrowing import narrowed
from sailor_cloud.planner.space.draft import Draft, Rank, in_space, near, significant
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.space import Space

# The number of sets of sorts that are tried on fewer nodes, and that number if the goal is money, which fewer nodes
# save; of those with steps to nearby numbers of nodes; and of steps.
_FIRST, _FIRST_FOR_MONEY, _CLIMBING, _CLIMBS = 4, 8, 3, 2
# The number of returned drafts that keep limits, of those that nearly do, and of those of one set of sorts.
_KEPT, _ALIKE = 8, 2
# Pipelines are not sized if their passes alone take so much longer than the best plan known on the same nodes.
_HOPELESS = 1.05


@dataclass(frozen=True, slots=True)
class Asked:
    """Groups, and the initial number of microbatches of each pipeline."""

    groups: Groups
    microbatches: int = 1


@dataclass(frozen=True, slots=True)
class _Entry:
    draft: Draft
    groups: Groups

    @property
    def sorts(self) -> tuple[tuple[str, Sort], ...]:
        return tuple((name, sort) for name, sort, _ in self.groups)


@dataclass(slots=True)
class GroupSearch:
    """The search of one space. `known`: the goal's value of a plan that keeps all limits."""

    evaluator: Evaluator
    known: float = math.inf
    judged: int = 0
    _ground: Ground = field(init=False)
    _found: dict[tuple[object, ...], _Entry] = field(default_factory=dict)
    _seen: set[Groups] = field(default_factory=set)
    # The seconds of an iteration of the fastest draft on the same nodes.
    _soonest: dict[frozenset[tuple[int, int]], float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assessor = self.evaluator.assessor
        self._ground = Ground.of(assessor)

    def for_the_best(self, turn: int) -> list[Asked]:
        """Return what to draw in a turn, after the drafts of earlier turns were entered; empty at the end.

        If the goal is time and all nodes together are slower than the known plan, fewer nodes are not tried.
        """
        if turn == 0:
            return [Asked(groups) for groups in self._fresh(self._ground.whole(self.evaluator.assessor))]
        timed = self.evaluator.assessor.target.goal.is_time
        promising = [entry for entry in self._best_of_sorts() if self._value(entry) < self.known]
        if turn > 1 + _CLIMBS or (timed and not promising):
            return []
        if turn == 1:
            return self._on_others(self._first(), on_shares)
        return self._on_others(promising[:_CLIMBING], a_few_more_or_less)

    def for_trades(self, turn: int) -> list[Asked]:
        """Return what to draw for drafts from the fastest to the cheapest, as in `for_the_best`."""
        if turn == 0:
            return self.for_the_best(turn)
        return self._on_others(self._first(), step_by_step) if turn == 1 else []

    def drawn(self, asked: Asked) -> tuple[list[Draft], int]:
        """Return the drafts of groups with more and more microbatches while that helps, and how many were judged.

        They do not depend on the goal: on the same nodes, less time costs less.
        """
        assessor = self.evaluator.assessor
        known: dict[object, tuple[list[Draft], int]] = assessor.space.remembered.setdefault("drawn groups", {})
        key = tuple(tuple(self._ground.nodes[name]) for name, *_ in asked.groups), asked
        if key not in known:
            sized = [self._sized(shapes, asked.microbatches) for shapes in self._ground.placed(asked.groups)]
            known[key] = [draft for drafts, _ in sized for draft in drafts], sum(judged for _, judged in sized)
        drafts, judged = known[key]
        goal = assessor.target.goal
        return [draft if draft.goal is goal else replace(draft, goal=goal) for draft in drafts], judged

    def _sized(self, shapes: Sequence[Shape], microbatches: int) -> tuple[list[Draft], int]:
        """Return the drafts of pipelines with at least `microbatches` microbatches, and how many were judged."""
        assessor = self.evaluator.assessor
        nodes = frozenset((slot.pool, slot.instance) for shape in shapes for slot in shape.slots)
        apportioned = Apportioned.of(assessor, shapes)
        if apportioned.least_s > self._soonest.get(nodes, math.inf) * _HOPELESS:
            return [], 0
        drafts: list[Draft] = []
        apart = [self.evaluator.expected(draft) for draft in apportioned.drafts()]
        judged = len(apart)
        while microbatches * len(shapes) <= assessor.space.batch:
            draft = with_balanced_sizes(assessor, shapes, microbatches)
            judged += 1
            microbatches *= 2
            if draft is None:
                continue
            drafts.append(self.evaluator.expected(draft))
            if len(drafts) > 1 and self.evaluator.rank(drafts[-1]) > self.evaluator.rank(drafts[-2]):
                break
        drafts += apart
        seconds = (draft.foreseen[Figure.ITERATION_S] for draft in drafts)
        self._soonest[nodes] = min(self._soonest.get(nodes, math.inf), *seconds, math.inf)
        return drafts, judged

    def enter(self, asked: Asked, drawn: tuple[list[Draft], int]) -> None:
        """Add the drafts of groups to the results."""
        drafts, judged = drawn
        self.judged += judged
        for draft in drafts:
            self._found.setdefault(draft.order(), _Entry(draft, asked.groups))

    def best(self) -> list[Draft]:
        """Return the best drafts: those that keep limits by the expected replay, then those that nearly do."""
        kept: dict[tuple[object, ...], Draft] = {}
        allowed = self._allowed()
        for key in (self._rank, self._near):
            taken: Counter[tuple[object, ...]] = Counter()
            first = []
            for entry in sorted(allowed, key=key):
                taken[entry.sorts] += 1
                if taken[entry.sorts] <= _ALIKE:
                    first.append(entry.draft)
            kept |= {draft.order(): draft for draft in first[:_KEPT]}
        return list(kept.values())

    def every(self) -> list[Draft]:
        """Return all drafts."""
        return [entry.draft for entry in self._allowed()]

    def _allowed(self) -> list[_Entry]:
        """Return the entries within the job's limit on nodes; the others are only starting points."""
        excess = self.evaluator.assessor.excess
        return [entry for entry in self._found.values() if math.isfinite(excess(entry.draft))]

    def _fresh(self, every: Iterable[Groups]) -> Iterator[Groups]:
        """Yield the new groups for which there are enough nodes."""
        for groups in every:
            there = all(1 <= count <= self._ground.count(name) for name, _, count in groups)
            if there and groups not in self._seen:
                self._seen.add(groups)
                yield groups

    def _first(self) -> list[_Entry]:
        """Return the best entries of the fastest sets of sorts, and of those that break limits least."""
        soonest = sorted(self._best_of_sorts(), key=self._seconds)
        turns = zip(soonest, self._best_of_sorts(), strict=True)
        most = _FIRST if self.evaluator.assessor.target.goal.is_time else _FIRST_FOR_MONEY
        return list({entry.sorts: entry for turn in turns for entry in turn}.values())[:most]

    def _on_others(self, entries: Sequence[_Entry], others: Callable[[Groups], Iterator[Groups]]) -> list[Asked]:
        return [
            Asked(groups, max(part.microbatches for part in entry.draft.pipelines))
            for entry in entries
            for groups in self._fresh(others(entry.groups))
        ]

    def _best_of_sorts(self) -> list[_Entry]:
        """Return the best entry of each set of sorts, best first; it may break limits."""
        best: dict[tuple[object, ...], _Entry] = {}
        for entry in sorted(self._found.values(), key=self._near):
            best.setdefault(entry.sorts, entry)
        return list(best.values())

    def _value(self, entry: _Entry) -> float:
        return entry.draft.foreseen[self.evaluator.assessor.target.goal]

    def _seconds(self, entry: _Entry) -> tuple[object, ...]:
        return significant(entry.draft.foreseen[Figure.ITERATION_S]), entry.draft.order()

    def _rank(self, entry: _Entry) -> Rank:
        return self.evaluator.rank(entry.draft)

    def _near(self, entry: _Entry) -> tuple[object, ...]:
        return near(self._rank(entry))


def run(searches: Sequence[GroupSearch], wanted: Callable[[GroupSearch, int], list[Asked]]) -> None:
    """Run searches turn by turn, all at once; `wanted`: what a search draws in a turn."""
    turn = 0
    while some := [(search, asked) for search in searches for asked in wanted(search, turn)]:
        for search, asked in some:
            search.enter(asked, search.drawn(asked))
        turn += 1


def draw_on_all_accelerators(space: Space, target: Target) -> None:
    """Draw groups on all nodes of several accelerators, for a search for speed that may end soon.

    Fewer pipelines are judged faster, so they come first. The search ends at the first groups that break limits.
    """
    if target.goal.is_time and len({pool.accelerator.name for pool in space.pools}) > 1:
        search = GroupSearch(Evaluator(Assessor(space, target)))
        every = search.for_the_best(0)
        most = max((len(asked.groups) for asked in every), default=0)
        together = [asked for asked in every if len(asked.groups) == most]
        for asked in sorted(together, key=lambda asked: -sum(sort.stages * sort.tp for _, sort, _ in asked.groups)):
            drafts, _ = search.drawn(asked)
            if all(search.evaluator.assessor.excess(draft, draft.foreseen) > 1.0 for draft in drafts):
                break


def grouped(space: Space, target: Target, *, known: float = math.inf) -> list[Draft]:
    """Return the best plans of such groups in a space; they may break limits a little. `known` as in `GroupSearch`."""
    parts = narrowed(space)
    searches = [GroupSearch(Evaluator(Assessor(part, target)), known) for part in parts]
    run(searches, GroupSearch.for_the_best)
    return [
        in_space(draft, part, space) for part, search in zip(parts, searches, strict=True) for draft in search.best()
    ]
