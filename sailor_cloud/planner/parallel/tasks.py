"""Tasks shared out in a team, each of them to the process that is free first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sailor_cloud.planner.parallel.two_processes import MOST_AT_ONCE, Team

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Task(Generic[_Found]):
    """What to find out, which may happen in another process and in any order, and what to do with it here, in order.

    Tasks that take longer than others, by about what `size` says, are begun first. Those that look up much of the same
    are `about` the same: one process does them all, this time and the next, while it has the time.
    """

    find: Callable[[], _Found]
    keep: Callable[[_Found], None]
    size: float = 0.0
    about: tuple[int, ...] | None = None


def do(tasks: Sequence[Task[Any]], *, team: Team, tell: Callable[[float], None]) -> None:
    """Find and keep what all tasks are after; nothing that one finds may depend on what another one finds or keeps.

    `tell` gets the share of them that is being done.
    """
    order = sorted(range(len(tasks)), key=lambda number: -tasks[number].size)
    found: dict[int, Any] = {}
    for first in range(0, len(tasks), MOST_AT_ONCE):
        numbers = order[first : first + MOST_AT_ONCE]
        calls = [tasks[number].find for number in numbers]
        said = partial(_tell, tell, first / len(tasks), len(calls) / len(tasks))
        abouts = [tasks[number].about for number in numbers]
        homes = [place if about is None else hash(about) for place, about in enumerate(abouts)]
        found |= zip(numbers, team.shared(calls, said, homes=homes), strict=True)
    for number, task in enumerate(tasks):
        task.keep(found[number])


def _tell(tell: Callable[[float], None], begin: float, part: float, share: float) -> None:
    tell(begin + part * share)
