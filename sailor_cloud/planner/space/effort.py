"""How much work a search may do: counts, so that the same input gives the same plan; a clock only where asked for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sailor_cloud.errors import SailorError


class OutOfTimeError(Exception):
    """The time of a search is over; what it has found by then is its answer. Its text: what the nearest plan needs."""


class NoPlanInTimeError(SailorError):
    """The time limit ended a search that had no plan yet; the job may well have one."""


@dataclass(slots=True)
class Deadline:
    """Ends a search at a time of a clock; whatever takes long checks it on the way."""

    now_s: Callable[[], float] = lambda: 0.0
    at_s: float = math.inf

    def check(self) -> None:
        """Raise OutOfTimeError once the time is over."""
        if self.at_s < math.inf and self.now_s() >= self.at_s:
            raise OutOfTimeError

    def lift(self) -> None:
        """Let what follows take the time that it needs."""
        self.at_s = math.inf


def _nobody(share: float) -> None:
    """Take the share of a search that is done; nobody wants to know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`refined`: drafts that a local search begins from; `depth`: how far it goes, relative.

    `judged`: plans of blocks that are judged exactly. `tell` gets the share of the search that is done, by counts of
    what there is to look at; shares never fall. Where nothing is `bounded`, a search may leave out what only
    proves.
    """

    refined: int = 5
    depth: float = 1.0
    judged: int = 120
    bounded: bool = True
    tell: Callable[[float], None] = _nobody

    def lighter(self) -> Effort:
        """Return a fraction of the effort, for plans that only stand beside the chosen one."""
        return replace(self, refined=1, depth=0.15, judged=40, bounded=False)

    def between(self, begin: float, end: float) -> Effort:
        """Return the effort of a part of the search, from one share of the whole to another."""
        return replace(self, tell=lambda share: self.tell(begin + (end - begin) * share))

    def quiet(self) -> Effort:
        """Return the same effort without reports."""
        return replace(self, tell=_nobody)


NORMAL = Effort()
