"""The best plans whose replicas of a stage are of several kinds, and a bound on all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

from sailor_cloud.planner.even.differing import TRIES, WIDE, rule_out
from sailor_cloud.planner.even.engine import GAP
from sailor_cloud.planner.even.mixes import Mix, fastest_mix
from sailor_cloud.planner.even.priced import Differing
from sailor_cloud.planner.even.ruling import Open

# Cuts looked at for one number of replicas, and numbers of replicas of which cuts are looked at.
_CUTS = 10
_NUMBERS = 12
# Steps by which the best mix is improved.
_STEPS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A mix in its place, and its value."""

    value: float
    mix: Mix
    placed: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixed:
    """Mixes better than what was known, best first; `bound` is a value that no plan of the space undercuts."""

    found: tuple[Placed, ...]
    bound: float
    searches: int


def mixed(
    problem: Differing,
    *,
    known: float = math.inf,
    cuts: Iterable[tuple[int, tuple[int, ...]]] = (),
    gap: float = GAP,
    most_searches: int = 100_000,
    tries: int = TRIES,
    wide: int = WIDE,
    numbers: int = _NUMBERS,
    finer: Differing | None = None,
) -> Mixed:
    """Return mixes better than a plan that is known, and a bound on all plans.

    cuts: microbatch sizes with cuts of good plans. Only numbers of replicas are looked at that no bound rules out, the
    most promising `numbers` of them. most_searches, tries, wide: see rule_out. finer: the same plans by smaller pools,
    for numbers of replicas that are left open where time is minimised.
    """
    most_open = None if most_searches else numbers
    ruled = rule_out(
        problem, known=known, gap=gap, most_searches=most_searches, tries=tries, wide=wide, most_open=most_open
    )
    if finer is not None and ruled.open and math.isfinite(ruled.bound):
        closer = rule_out(finer, known=known, gap=gap, most_searches=most_searches, wide=wide, only=ruled.open)
        ruled = replace(closer, open=_with_chains(closer.open, ruled.open), searches=ruled.searches + closer.searches)
    search = _Search(problem, known, gap)
    good = list(cuts)
    for number in ruled.open[:numbers]:
        if number.least < search.winning:
            search.try_number(number, [cut for size, cut in good if size == number.size])
    search.step()
    left = [number.least for number in ruled.open]
    return Mixed(
        found=tuple(sorted(search.found, key=lambda placed: (placed.value, placed.mix.size, placed.mix.cut))),
        bound=min([ruled.bound, search.winning, *left]),
        searches=ruled.searches,
    )


def _with_chains(left: Iterable[Open], before: Iterable[Open]) -> tuple[Open, ...]:
    """Return numbers of replicas with the pipelines found before, too, for their cuts."""
    chains = {(number.size, number.replicas): number.chains for number in before}
    return tuple(replace(each, chains=(*each.chains, *chains[each.size, each.replicas])) for each in left)


@dataclass(slots=True)
class _Search:
    problem: Differing
    best: float
    gap: float
    found: list[Placed] = field(default_factory=list)
    _seen: set[tuple[int, int, tuple[int, ...]]] = field(default_factory=set)

    @property
    def winning(self) -> float:
        return self.best * (1.0 - self.gap)

    def try_number(self, number: Open, good: list[tuple[int, ...]]) -> None:
        """Try the cuts of the pipelines that were found fast enough, and those of good plans."""
        shares = self.problem.batch // number.size
        # The fewest and the most replicas that have so many microbatches at least.
        counts = sorted({number.replicas, shares // number.microbatches})
        cuts = dict.fromkeys([*(chain.cut for chain in number.chains), *good])
        for cut in islice(cuts, _CUTS):
            for replicas in counts:
                self._try(number.size, replicas, cut)

    def step(self) -> None:
        """Move single layers over the borders of the best mix while that makes it better."""
        for _ in range(_STEPS):
            if not self.found:
                return
            start = min(self.found, key=lambda placed: placed.value)
            for cut in _neighbours(start.mix.cut):
                self._try(start.mix.size, start.mix.replicas, cut)
            if min(placed.value for placed in self.found) >= start.value:
                return

    def _try(self, size: int, replicas: int, cut: tuple[int, ...]) -> None:
        costs = self.problem.costs(size, replicas)
        if costs is None or (size, replicas, cut) in self._seen:
            return
        self._seen.add((size, replicas, cut))
        costs = costs.once()
        counted = costs.counted
        limit = self.winning if self.problem.timed else math.inf
        shares = self.problem.shares(size, replicas)
        narrowed = replace(costs, use=costs.use[:, counted], exact=None)
        mix = fastest_mix(narrowed, self.problem.devices, cut, replicas, shares, limit)
        if mix is None:
            return
        judged = self.problem.judge_mix(mix, self.best)
        if judged.placed is not None and judged.value < self.best:
            self.best = judged.value
            self.found.append(Placed(value=judged.value, mix=mix, placed=judged.placed))


def _neighbours(cut: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for place in range(1, len(cut) - 1):
        for moved in (cut[place] - 1, cut[place] + 1):
            if cut[place - 1] < moved < cut[place + 1]:
                yield (*cut[:place], moved, *cut[place + 1 :])
