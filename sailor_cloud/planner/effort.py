"""How much work a search may do: counts, so that the same input gives the same plan; a clock only where asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """`settings`: how many are solved in whole numbers; `refined`: drafts that are improved step by step.

    `cuts`: of each number of stages. `closer`: how often numbers of pipelines near the best ones are looked at.
    `expired` ends a search early; what it has found by then is its answer.
    """

    settings: int = 8
    refined: int = 4
    cuts: int = 3
    closer: int = 2
    expired: Callable[[], bool] = _never

    def lighter(self) -> Effort:
        """Return a fraction of the effort, for plans that only stand beside the chosen one."""
        return Effort(settings=2, refined=1, cuts=1, closer=1, expired=self.expired)


NORMAL = Effort()
