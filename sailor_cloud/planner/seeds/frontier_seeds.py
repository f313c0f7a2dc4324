"""Plans over the whole range from the fastest to the cheapest."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from sailor_cloud.planner.evaluate.pareto import behind, unbeaten
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.seeds.blocks import Blocks
from sailor_cloud.planner.seeds.blocks.guesses import Guess
from sailor_cloud.planner.seeds.group_search import GroupSearch, run
from sailor_cloud.planner.seeds.narrowing import narrowed
from sailor_cloud.planner.space.draft import Draft, in_space
from sailor_cloud.planner.space.effort import Effort
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.restrictions import fits_whole, variants
from sailor_cloud.planner.space.space import Space

# The error of guesses is up to about this factor; a guess that others beat by more is dropped.
_SLACK = 1.15
# The order of judging: first the first guess of every set of nodes and the first ones of every stretch of time, up to
# this share longer; then the next ones of each stretch. The error of guesses varies, mostly with the traffic between
# zones.
_STRETCH, _OF_STRETCH = 0.1, 10
# Limits: guesses of one set of nodes, orders of each, guesses judged at once, and in all, by the money of an iteration
# and by that of the nodes per hour.
_OF_NODES = 10
_ORDERS = 2
_AT_ONCE = 50
MOST_GUESSES = 400, 150


@dataclass(slots=True)
class _Spread:
    """A search of some parts of a space; `left`: indices of guesses that are not judged yet, best first."""

    space: Space
    parts: list[Blocks]
    effort: Effort
    # Guesses with the index of their part.
    rated: list[tuple[int, Guess]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    drafts: list[Draft] = field(default_factory=list)
    taken: Counter[tuple[object, ...]] = field(default_factory=Counter)
    _seen: set[int] = field(default_factory=set)

    def run(self) -> list[Draft]:
        self._rate()
        self._group()
        effort, total, begun = self.effort.between(0.4, 1.0), sum(MOST_GUESSES), 0
        for usd, most in zip((_of_iteration, _of_nodes), MOST_GUESSES, strict=True):
            self.left = [number for number in _ranked(self.rated, usd) if number not in self._seen]
            end = begun + most
            while begun < end and (some := self._next()):
                share = effort.between(begun / total, (begun + len(some)) / total)
                self._judge(some, share)
                begun += len(some)
        return self.drafts

    def _judge(self, some: list[int], effort: Effort) -> None:
        for at, number in enumerate(some):
            effort.tell(at / len(some))
            part, guess = self.rated[number]
            drafts = self._judged(part, guess)
            self.taken[part, guess.nodes] += bool(drafts)
            self.drafts += drafts
        self._seen.update(some)

    def _rate(self) -> None:
        """Rate the blocks of all parts."""
        wanted = [(part, search, key) for part, search in enumerate(self.parts) for key in search.many()]
        for number, (part, search, key) in enumerate(wanted):
            self.effort.tell(0.4 * number / len(wanted))
            self.rated += [(part, guess) for guess in search.trades(key).guesses]

    def _group(self) -> None:
        """Search groups of equal pipelines for each accelerator, on all nodes and on fewer."""
        searches = [GroupSearch(Evaluator(part.assessor)) for part in self.parts]
        run(searches, GroupSearch.for_trades)
        for part, search in zip(self.parts, searches, strict=True):
            self.drafts += self._here(part.space, search.every())

    def _next(self) -> list[int]:
        """Remove and return the next guesses, from sets of nodes that have not yielded many plans yet."""
        nodes = ((number, *self.rated[number]) for number in self.left)
        self.left = [number for number, part, guess in nodes if self.taken[part, guess.nodes] < _OF_NODES]
        some, self.left = self.left[:_AT_ONCE], self.left[_AT_ONCE:]
        return some

    def _judged(self, part: int, guess: Guess) -> list[Draft]:
        search = self.parts[part]
        return self._here(search.space, list(search.of(guess, orders=_ORDERS)))

    def _here(self, part: Space, drafts: list[Draft]) -> list[Draft]:
        return drafts if part is self.space else [in_space(draft, part, self.space) for draft in drafts]


def spread(space: Space, effort: Effort) -> list[Draft]:
    """Return plans from the fastest to the cheapest, regardless of the job's limits on money and time."""
    anything = Target(goal=Figure.ITERATION_S, limits=())
    # If all devices hold the whole model, plans with ZeRO-1 are within a few per cent of those without.
    shared = not all(fits_whole(space))
    alike = [variant for variant in variants(space, ()) if shared or variant.zero_stage == space.zero_stage]
    parts = [Blocks(part, anything) for variant in alike for part in narrowed(variant)]
    return _Spread(space, parts, effort).run()


def _of_iteration(guess: Guess) -> float:
    return guess.usd


def _of_nodes(guess: Guess) -> float:
    return guess.usd_per_hour


def _ranked(rated: list[tuple[int, Guess]], money: Callable[[Guess], float]) -> list[int]:
    """Return the indices of guesses that no others beat by far, in the order in which they are judged."""
    seconds, usd = np.array([(guess.iteration_s, money(guess)) for _, guess in rated]).reshape(-1, 2).T
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
    return [index for _, index in sorted(found, key=lambda entry: entry[0])]
