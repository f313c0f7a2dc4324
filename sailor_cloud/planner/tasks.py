"""Tasks shared out in a team, each of them to the process that is free first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sailor_cloud.planner.team import MOST_AT_ONCE, Team

_Found = TypeVar("_Found")


@dataclass(frozen=True, slots=True)
class Task(Generic[_Found]):
    """What to find out, which may happen in another process and in any order, and what to do with it here, in order."""

    find: Callable[[], _Found]
    keep: Callable[[_Found], None]


def do(tasks: Sequence[Task[Any]], *, team: Team, tell: Callable[[float], None]) -> None:
    """Find and keep what all tasks are after; nothing that one finds may depend on what another one finds or keeps.

    `tell` is told which share of them is being done.
    """
    found: list[Any] = []
    for first in range(0, len(tasks), MOST_AT_ONCE):
        calls = [task.find for task in tasks[first : first + MOST_AT_ONCE]]
        found += team.shared(calls, partial(_tell, tell, first / len(tasks), len(calls) / len(tasks)))
    for task, what in zip(tasks, found, strict=True):
        task.keep(what)


def _tell(tell: Callable[[float], None], begin: float, part: float, share: float) -> None:
    tell(begin + part * share)
