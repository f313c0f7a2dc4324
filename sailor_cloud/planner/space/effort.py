"""The effort of a search, in counts, so that the same input yields the same plan; a clock only on request."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sailor_cloud.errors import SailorError


class OutOfTimeError(Exception):
    """The time of a search is up, and its result so far is the answer. The text says what the nearest plan needs."""


class NoPlanInTimeError(SailorError):
    """The time limit ended a search before it had a plan; the job may well have one."""


@dataclass(slots=True)
class Deadline:
    """Ends a search at a time of a clock, or after so many checks; each evaluation of a plan is one or two."""

    now_s: Callable[[], float] = lambda: 0.0
    at_s: float = math.inf
    checks: int = 0
    most_checks: float = math.inf

    def check(self) -> None:
        """Raise OutOfTimeError once the time is up."""
        self.checks += 1
        if self.checks > self.most_checks or (self.at_s < math.inf and self.now_s() >= self.at_s):
            raise OutOfTimeError

    def lift(self) -> None:
        """Remove the limit for what follows."""
        self.at_s = math.inf


def _nobody(share: float) -> None:
    """Ignore progress reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Counts that limit a search. `refined`: drafts that start a local search; `depth`: its relative depth.

    `tell` gets the completed share of the search, by counts; shares never fall. Unless `bounded`, a search may skip
    what only serves a proof.
    """

    refined: int = 5
    depth: float = 1.0
    bounded: bool = True
    tell: Callable[[float], None] = _nobody

    def lighter(self) -> Effort:
        """Return a fraction of the effort, for plans that are only shown next to the chosen one."""
        return replace(self, refined=1, depth=0.15, bounded=False)

    def between(self, begin: float, end: float) -> Effort:
        """Return the effort for a part of the search, from one share of the whole to another."""
        return replace(self, tell=lambda share: self.tell(begin + (end - begin) * share))

    def quiet(self) -> Effort:
        """Return the same effort without progress reports."""
        return replace(self, tell=_nobody)


NORMAL = Effort()
