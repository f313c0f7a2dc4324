"""Searches large problems, all parts of a space at once: blocks first, then mixes of pipelines, then single steps.

Each step is a row of tasks that depend on nothing but what the steps before it found, so that what is found doesn't
depend on how many processes share them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.blocks import Blocks, Judged, Key, Rated
from sailor_cloud.planner.bounds import breaks_limits, goal_bound
from sailor_cloud.planner.draft import Draft, in_space, significant
from sailor_cloud.planner.effort import NORMAL, Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.group_search import GroupSearch, run
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.overlap import Overlap
from sailor_cloud.planner.part import RIPE, Found, Part, Promised
from sailor_cloud.planner.polish import Placed, polish
from sailor_cloud.planner.promises import Promise
from sailor_cloud.planner.settings import FreeChain, Settings
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.twins import elsewhere

_What = TypeVar("_What")

# Which share of a search is over after its ratings, blocks, promises and whole mixes.
_RATED, _JUDGED, _PROMISED, _MIXED = 0.4, 0.5, 0.7, 0.9
# What is rated of each part even when a time limit is over: so many microbatch sizes and numbers of pipelines.
_ANYWAY = 8
# Sets of blocks of each part that are judged at once, at first and at most; some of them in vain where one makes the
# next not worth it, which the first ones do most.
_JUDGED_AT_ONCE = 4, 16
# Microbatch sizes and numbers of pipelines for which blocks are rated as if layers were even.
_EVEN_KEYS = 16
# Cuts whose settings are looked at first, since what they promise leaves out others; then ever so many times more.
_FIRST_CUTS, _MORE_CUTS = 8, 4
# The replay finds plans faster than the closed form by up to about this: up to so much behind the best one, and of so
# many, it is estimated what it will find. Those of groups are estimated in any case.
_HOPEFUL, _MOST_HOPEFUL = 1.35, 160
# A plan that keeps limits by an estimate keeps them under the replay if they leave as much as this.
_DEARER = 1.02


def mix(space: Space, target: Target, *, keep: int, effort: Effort = NORMAL, known: float = np.inf) -> Answer:
    """Return the best drafts found and a bound on any plan's goal; `known` is that of a plan that is known already."""
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
        columns=search.columns,
        nodes=search.nodes,
    )


@dataclass(slots=True)
class _Search:
    """A search of all parts of a space; the best plan so far has `best` as the goal's figure, any at least `bound`.

    `reached`: the least that the replay is expected to find of a plan so far.
    """

    space: Space
    target: Target
    effort: Effort
    best: float
    bound: float = -np.inf
    reached: float = np.inf
    parts: tuple[Part, ...] = ()
    drafts: list[Draft] = field(default_factory=list)
    # Drafts with about what the replay finds of them, which may break limits by the closed form; by their order.
    expected: dict[tuple[object, ...], Draft] = field(default_factory=dict)
    columns: int = 0
    nodes: int = 0
    # Each draft with the part that it was found in, and as it stands there.
    _found: list[tuple[Draft, Part, Draft]] = field(default_factory=list)

    def run(self) -> None:
        spaces = narrowed(self.space)
        self.parts = tuple(Part(part, self.target, self.effort.quiet()) for part in spaces)
        self._rate()
        self._judge()
        if self.effort.bounded and not self.space.even_layers and not self._over():
            self._judge_evenly()
        if not self._over():
            self._group()
        if not self._over():
            self._mix(self._promises())
        if not self._over():
            self._refine()
        if any(part is not self.space for part in spaces):
            assessor = Assessor(self.space, self.target)
            self.drafts += elsewhere(assessor, self.drafts, assessor.rank)
            overlap = Overlap(assessor)
            for draft in map(overlap.expected, elsewhere(assessor, self.expected.values(), overlap.rank)):
                self.expected.setdefault(draft.order(), draft)

    def _over(self) -> bool:
        """Return whether a time limit ends the search: never without any plan."""
        return bool(np.isfinite(min(self.best, self.reached))) and self.effort.expired()

    @property
    def _known(self) -> float:
        """About what a plan's goal must be by the closed form for it to be the best one, there or under the replay."""
        return min(self.best, self.reached * _HOPEFUL)

    def _rate(self) -> None:
        """Rate the blocks of every part; find the bound, and the free chains of parts whose chains aren't known."""
        effort = self.effort.between(0.0, _RATED)
        # Of parts with the same kinds of places the first one stands for the others. What is known of the kinds of the
        # last one, all zones together, is known of those of others.
        alike = {part.settings.alike: part.settings for part in reversed(self.parts)}
        unknown = [settings for settings in alike.values() if not settings.known_chains()]
        chains: list[list[list[FreeChain]]] = []
        # What takes longest goes first. What parts have in common is looked up by one process.
        sizes = sorted({size for settings in unknown for size in settings.sizes})
        bound = partial(goal_bound, self.space, self.target, close=effort.bounded)
        tasks: list[Task[Any]] = [Task(bound, partial(setattr, self, "bound"))]
        tasks += [Task(partial(_free_chains, unknown, size), chains.append) for size in sizes]
        searches = [part.blocks for part in self.parts]
        rounds = effort.closer + 1
        for number in range(rounds):
            wanted: dict[Key, list[Blocks]] = {}
            for search in searches:
                for key in search.near() if number else search.rough():
                    wanted.setdefault(key, []).append(search)
            for at, (key, those) in enumerate(wanted.items()):
                expired = NORMAL.expired if number == 0 and at < _ANYWAY else effort.expired
                keep = partial(_keep_rated, those, key)
                tasks.append(Task(partial(_rated, those, key, expired), keep, about=key[1:]))
            do(tasks, team=effort.team, tell=effort.between(number / rounds, (number + 1) / rounds).tell)
            tasks = []
        for settings, by_size in reversed(list(zip(unknown, zip(*chains, strict=True), strict=True))):
            settings.enter([chain for found in by_size for chain in found])

    def _judge(self) -> None:
        """Judge the most promising blocks of all parts."""
        for part in self.parts:
            part.blocks.known = self.best
        self._judge_blocks([part.blocks for part in self.parts], *_JUDGED_AT_ONCE)
        for part in self.parts:
            self._enter(part, part.judged())
        self.effort.tell(_JUDGED)

    def _judge_evenly(self) -> None:
        """Judge blocks that promise most where layers are even: rated as if they were, longer pipelines come first.

        They have the microbatch sizes and numbers of pipelines of the best ones that were judged.
        """
        effort = self.effort.lighter().quiet()
        for part in self.parts:
            known, reaches = part.blocks.known, part.blocks.reached
            blocks = Blocks(part.space.evenly(), self.target, effort, known=known, reaches=reaches)
            best = sorted(part.blocks.drafts, key=Draft.order)
            keys = dict.fromkeys((draft.pipelines[0].microbatch_size, len(draft.pipelines)) for draft in best)
            ratings = [
                Task(partial(_rated, [blocks], key, effort.expired), partial(_keep_rated, [blocks], key), about=key[1:])
                for key in list(keys)[:_EVEN_KEYS]
            ]
            do(ratings, team=effort.team, tell=NORMAL.tell)
            if blocks.found:
                self._judge_blocks([blocks], _JUDGED_AT_ONCE[1], _JUDGED_AT_ONCE[1])
            self._enter(part, Found(drafts=tuple(blocks.nearly_kept), columns=blocks.rated, nodes=blocks.judged))

    def _judge_blocks(self, searches: Sequence[Blocks], at_once: int, most: int) -> None:
        """Judge the most promising blocks of some searches, so many of each at once at first and at most."""
        while any(wanted := [search.wanted(at_once) for search in searches]):
            at_once = min(most, 2 * at_once)
            found: list[list[Judged]] = [[] for _ in searches]
            do(
                [
                    Task(partial(search.judge, guess), there.append, about=(guess.replicas,))
                    for search, guesses, there in zip(searches, wanted, found, strict=True)
                    for guess in guesses
                ],
                team=self.effort.team,
                tell=NORMAL.tell,
            )
            for search, there in zip(searches, found, strict=True):
                search.enter(there)
            best = min(search.known for search in searches)
            for search in searches:
                search.known = best

    def _group(self) -> None:
        """Estimate plans of a group of equal pipelines for each accelerator."""
        for part in self.parts:
            part.groups.known = part.blocks.known
        run([part.groups for part in self.parts], GroupSearch.for_the_best, self.effort)
        for part in self.parts:
            self._enter(part, part.grouped())

    def _promises(self) -> list[tuple[Part, Promise]]:
        """Return what settings promise, best first, as many of each part as are solved at most."""
        effort = self.effort.between(_JUDGED, _PROMISED)
        cuts = [(likely, part) for part in self.parts for likely in part.likely(self.parts)]
        cuts.sort(key=lambda entry: entry[0].least_s)
        found: list[tuple[Part, Promise]] = []
        begin, end = 0, _FIRST_CUTS
        while begin < len(cuts) and not (begin and self._over()):
            best = min((promise.value for _, promise in found), default=np.inf)
            tasks = [
                Task(
                    partial(part.promised, likely, self._known, best),
                    partial(self._promised, found, part),
                    about=likely.cut,
                )
                for likely, part in cuts[begin:end]
            ]
            do(tasks, team=effort.team, tell=effort.between(begin / len(cuts), end / len(cuts)).tell)
            begin, end = end, min(len(cuts), _MORE_CUTS * end)
        different = {
            (promise.setting.cut, significant(promise.value)): (part, promise) for part, promise in reversed(found)
        }
        ranked = sorted(different.values(), key=lambda entry: entry[1].value)
        return _first_of_each(ranked, self.effort.settings)

    def _promised(self, found: list[tuple[Part, Promise]], part: Part, promised: Promised) -> None:
        found += [(part, promise) for promise in promised.promises]
        self.columns += promised.columns

    def _mix(self, promises: Sequence[tuple[Part, Promise]]) -> None:
        """Solve the settings in whole numbers that promise enough."""
        # With all pipelines it takes longer than with fitting ones only, and the longer they are.
        finds = [
            Task(
                partial(_whole, part, promise, self._known, fitting, self.effort),
                partial(self._enter, part),
                size=0 if fitting else promise.stages,
                about=promise.setting.cut,
            )
            for part, promise in promises
            if promise.value < self._known * RIPE
            for fitting in (True, False)
        ]
        do(finds, team=self.effort.team, tell=self.effort.between(_PROMISED, _MIXED).tell)

    def _refine(self) -> None:
        """Estimate what the replay finds of good drafts, and improve the best ones by that, step by step."""
        good: dict[tuple[object, ...], Placed] = {}
        for here, part, draft in sorted(self._found, key=self._near)[:_MOST_HOPEFUL]:
            if draft.figures[self.target.goal] <= self.best * _HOPEFUL:
                good.setdefault(here.order(), (part, draft))
        good |= {here.order(): (part, draft) for here, part, draft in self._found if draft.expected is not None}
        # So many for each part, of one as many as of two; parts often find the same.
        most = max(2, len(self.parts)) * self.effort.refined
        for part, draft in polish(list(good.values()), self.effort.between(_MIXED, 1.0), most=most):
            here = self._here(part, draft)
            self.expected[here.order()] = here
            if part.assessor.keeps(draft):
                self.drafts.append(here)
                self.best = min(self.best, draft.figures[self.target.goal])

    def _here(self, part: Part, draft: Draft) -> Draft:
        return draft if part.space is self.space else in_space(draft, part.space, self.space)

    def _near(self, found: tuple[Draft, Part, Draft]) -> tuple[object, ...]:
        """Return the sort key of a draft that may break limits a little."""
        here, part, draft = found
        return significant(draft.figures[self.target.goal] * part.assessor.excess(draft)), here.order()

    def _enter(self, part: Part, found: Found) -> None:
        for draft in found.drafts:
            here = self._here(part, draft)
            self._found.append((here, part, draft))
            if part.assessor.keeps(draft):
                self.drafts.append(here)
                self.best = min(self.best, draft.figures[self.target.goal])
            if draft.expected is not None:
                self.expected[here.order()] = here
                dearer = {figure: value * _DEARER for figure, value in draft.expected.items()}
                if part.assessor.excess(draft, dearer) == 1.0:
                    self.reached = min(self.reached, draft.expected[self.target.goal])
        self.columns += found.columns
        self.nodes += found.nodes


def _first_of_each(found: Iterable[tuple[Part, _What]], most: int) -> list[tuple[Part, _What]]:
    """Return the first ones of each part, `most` of one part."""
    taken: Counter[Part] = Counter()
    chosen = []
    for part, what in found:
        taken[part] += 1
        if taken[part] <= most:
            chosen.append((part, what))
    return chosen


def _free_chains(settings: Sequence[Settings], size: int) -> list[list[FreeChain]]:
    """Return the free chains of one microbatch size in each of some parts."""
    return [each.free_chains(size) if size in each.sizes else [] for each in settings]


def _rated(searches: Sequence[Blocks], key: Key, expired: Callable[[], bool]) -> list[Rated]:
    """Rate a key in each of some searches; nothing is rated once a time limit is over."""
    return [Rated((), 0) if expired() else search.rate(key) for search in searches]


def _keep_rated(searches: Sequence[Blocks], key: Key, found: Sequence[Rated]) -> None:
    for search, rated in zip(searches, found, strict=True):
        search.keep(key, rated)


def _whole(part: Part, promise: Promise, best: float, fitting: bool, effort: Effort) -> Found:
    nothing = Found(drafts=(), columns=0, nodes=0)
    return nothing if effort.expired() else part.whole(promise, best, fitting=fitting)
