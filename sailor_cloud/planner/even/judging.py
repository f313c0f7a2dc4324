"""Keeps the pipelines that were put in place, and a bound on those whose places are not settled."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from sailor_cloud.planner.even.costs import Chain, Problem
from sailor_cloud.planner.even.outcome import Found

# Pipelines of one part whose places are settled, and that wait for it.
_SETTLED = 60
_WAITING = 20_000
_SAME = 1.0 + 1e-9


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A pipeline that no costs rule out: the least value and seconds by its costs."""

    value: float
    part: int
    size: int
    replicas: int
    chain: Chain
    seconds: float


@dataclass(slots=True)
class Judging:
    """known: the value of a plan that is known already. loose: a bound on pipelines that are left undecided.

    placed: how many were put in place.
    """

    parts: Sequence[Problem]
    keep: int
    gap: float
    known: float
    found: list[Found] = field(default_factory=list)
    loose: float = math.inf
    placed: int = 0
    _seen: set[tuple[int, int, int, Chain]] = field(default_factory=set)
    _waiting: list[Candidate] = field(default_factory=list)

    @property
    def best(self) -> float:
        return min(self.known, self.found[0].value) if self.found else self.known

    @property
    def winning(self) -> float:
        """Plans from this value on can't be better by more than the gap."""
        return self.best * (1.0 - self.gap)

    def judge(self, candidates: list[Candidate], most: int) -> None:
        """Put the most promising candidates in place while they can win; the others wait or are left undecided."""
        count = 0
        for candidate in candidates:
            if candidate.value >= self.winning:
                break
            key = (candidate.part, candidate.size, candidate.replicas, candidate.chain)
            if key in self._seen:
                continue
            self._seen.add(key)
            if count < most:
                count += 1
                decided = self._place(candidate, closely=False)
            else:
                decided = False
            if not decided and not self._wait(candidate):
                self.loose = min(self.loose, candidate.value)

    def settle(self) -> None:
        """Look closely at the places of candidates that wait, the most promising first."""
        heapq.heapify(self._waiting)
        for _ in range(_SETTLED):
            if not self._waiting or self._waiting[0].value >= self.winning:
                break
            self._place(heapq.heappop(self._waiting), closely=True)
        self.loose = min([self.loose, *(candidate.value for candidate in self._waiting)])
        self._waiting.clear()

    def _wait(self, candidate: Candidate) -> bool:
        if not self.parts[candidate.part].settles or len(self._waiting) == _WAITING:
            return False
        self._waiting.append(candidate)
        return True

    def _place(self, candidate: Candidate, *, closely: bool) -> bool:
        """Return whether the best places are known, or matter no more."""
        judged = self.parts[candidate.part].judge(
            candidate.size, candidate.replicas, candidate.chain, candidate.seconds, self.winning, closely=closely
        )
        self.placed += 1
        if judged.placed is not None:
            self._keep(candidate, judged.value, judged.placed)
        decided = judged.placed is not None and judged.value <= candidate.value * _SAME
        if closely and not decided:
            self.loose = min(self.loose, max(candidate.value, judged.bound))
        return decided

    def _keep(self, candidate: Candidate, value: float, placed: object) -> None:
        self.found.append(
            Found(
                value=value,
                part=candidate.part,
                size=candidate.size,
                replicas=candidate.replicas,
                chain=candidate.chain,
                placed=placed,
            )
        )
        self.found.sort(key=Found.order)
        del self.found[self.keep :]
