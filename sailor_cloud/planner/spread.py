"""Plans over the whole range from the fastest to the cheapest."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.blocks.guesses import Guess
from sailor_cloud.planner.draft import Draft, in_space
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.group_search import GroupSearch, run
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.overlap import Overlap
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.trades import behind, unbeaten
from sailor_cloud.planner.variants import variants

# Guesses are right to about this: those that others beat by more are left out.
_SLACK = 1.15
# The first one of every set of nodes and the first ones of every stretch of time, up to this share longer, come before
# all others, then the next ones of stretches: how far guesses are off differs, mostly by what goes between zones.
_STRETCH, _OF_STRETCH = 0.1, 10
# Guesses of one set of nodes, orders of each, guesses judged at once, and in all.
_OF_NODES = 10
_ORDERS = 2
_AT_ONCE = 50
MOST_GUESSES = 400


@dataclass(slots=True)
class _Spread:
    """A search of some parts of a space; `left`: guesses that aren't judged yet, best first, with their part."""

    space: Space
    parts: list[Blocks]
    effort: Effort
    left: list[tuple[int, Guess]] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    taken: Counter[tuple[object, ...]] = field(default_factory=Counter)

    def run(self) -> list[Draft]:
        self._rate()
        self._group()
        effort = self.effort.between(0.4, 1.0)
        begun = 0
        while begun < MOST_GUESSES and not effort.expired() and (some := self._next()):
            found: list[list[Draft]] = []
            do(
                [Task(partial(self._judged, part, guess), found.append) for part, guess in some],
                team=effort.team,
                tell=effort.between(begun / MOST_GUESSES, (begun + len(some)) / MOST_GUESSES).tell,
            )
            for (part, guess), drafts in zip(some, found, strict=True):
                self.taken[part, guess.nodes] += bool(drafts)
                self.drafts += drafts
            begun += len(some)
        return self.drafts

    def _rate(self) -> None:
        """Rate the blocks of all parts, and rank those that no others beat by far."""
        rated: list[tuple[int, Guess]] = []
        tasks = [
            Task(partial(_guesses, search, part, key), rated.extend)
            for part, search in enumerate(self.parts)
            for key in search.many()
        ]
        do(tasks, team=self.effort.team, tell=self.effort.between(0.0, 0.4).tell)
        self.left = _ranked(rated)

    def _group(self) -> None:
        """Look at groups of equal pipelines for each accelerator, on all nodes and on fewer."""
        searches = [GroupSearch(Overlap(part.assessor)) for part in self.parts]
        run(searches, GroupSearch.for_trades, self.effort)
        for part, search in zip(self.parts, searches, strict=True):
            self.drafts += self._here(part.space, search.every())

    def _next(self) -> list[tuple[int, Guess]]:
        """Take out the next guesses, those of sets of nodes that have not brought many plans yet."""
        self.left = [entry for entry in self.left if self.taken[entry[0], entry[1].nodes] < _OF_NODES]
        some, self.left = self.left[:_AT_ONCE], self.left[_AT_ONCE:]
        return some

    def _judged(self, part: int, guess: Guess) -> list[Draft]:
        search = self.parts[part]
        return self._here(search.space, list(search.of(guess, orders=_ORDERS)))

    def _here(self, part: Space, drafts: list[Draft]) -> list[Draft]:
        return drafts if part is self.space else [in_space(draft, part, self.space) for draft in drafts]


def spread(space: Space, effort: Effort) -> list[Draft]:
    """Return plans from the fastest to the cheapest, whatever the job's limits on money and time."""
    anything = Target(goal=Figure.ITERATION_S, limits=())
    parts = [Blocks(part, anything) for variant in variants(space, ()) for part in narrowed(variant)]
    return _Spread(space, parts, effort).run()


def _guesses(search: Blocks, part: int, key: tuple[int, int]) -> list[tuple[int, Guess]]:
    return [(part, guess) for guess in search.trades(key).guesses]


def _ranked(rated: list[tuple[int, Guess]]) -> list[tuple[int, Guess]]:
    """Return the guesses that no others beat by far in the order in which they are judged."""
    seconds, usd = np.array([(guess.iteration_s, guess.usd) for _, guess in rated]).reshape(-1, 2).T
    far = behind(seconds, usd, unbeaten(seconds, usd))
    known: set[tuple[object, ...]] = set()
    taken: Counter[int] = Counter()
    found: list[tuple[int, int]] = []
    for index in np.lexsort((seconds, far)).tolist():
        if far[index] > _SLACK:
            break
        nodes, turn = (rated[index][0], rated[index][1].nodes), 0
        if nodes in known:
            stretch = math.floor(math.log(seconds[index]) / _STRETCH)
            turn = taken[stretch] // _OF_STRETCH
            taken[stretch] += 1
        known.add(nodes)
        found.append((turn, index))
    return [rated[index] for _, index in sorted(found, key=lambda entry: entry[0])]
