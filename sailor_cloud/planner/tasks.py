"""Tasks shared out between two processes, each of which takes the next one that is left."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from sailor_cloud.planner.halves import at_once, both

_Found = TypeVar("_Found")

# How a task's number stands in the pipe that the processes take them from, and how many are in there at once: a page
# full, which is what any pipe holds.
_NUMBER = struct.Struct("i")
_MOST = 1024


@dataclass(frozen=True, slots=True)
class Task(Generic[_Found]):
    """What to find out, which may happen in another process and in any order, and what to do with it here, in order."""

    find: Callable[[], _Found]
    keep: Callable[[_Found], None]


def do(tasks: Sequence[Task[Any]], *, processes: int, tell: Callable[[float], None]) -> None:
    """Find and keep what all tasks are after; nothing that one finds may depend on what another one finds or keeps.

    `tell` is told which share of them is being done.
    """
    found: list[Any] = []
    for first in range(0, len(tasks), _MOST):
        finds = [task.find for task in tasks[first : first + _MOST]]
        found += _every(finds, processes, partial(_tell, tell, first / len(tasks), len(finds) / len(tasks)))
    for task, what in zip(tasks, found, strict=True):
        task.keep(what)


def _every(finds: Sequence[Callable[[], Any]], processes: int, tell: Callable[[float], None]) -> list[Any]:
    if len(finds) < 2 or not at_once(processes):
        return list(_done(finds, iter(range(len(finds))), tell).values())
    numbers, entry = os.pipe()
    try:
        # Without a writer the pipe ends after the last number, for both readers.
        with os.fdopen(entry, "wb") as queue:
            queue.write(b"".join(_NUMBER.pack(number) for number in range(len(finds))))
        beside, here = both(
            lambda: _done(finds, _taken(numbers), lambda share: None),
            lambda: _done(finds, _taken(numbers), tell),
            processes=processes,
        )
    finally:
        os.close(numbers)
    found = beside | here
    # Those that went down with the process beside are done here.
    return [found[number] if number in found else find() for number, find in enumerate(finds)]


def _done(finds: Sequence[Callable[[], Any]], numbers: Iterator[int], tell: Callable[[float], None]) -> dict[int, Any]:
    found = {}
    for number in numbers:
        tell(number / len(finds))
        found[number] = finds[number]()
    return found


def _tell(tell: Callable[[float], None], begin: float, part: float, share: float) -> None:
    tell(begin + part * share)


def _taken(numbers: int) -> Iterator[int]:
    """Yield the numbers that this process takes out of a pipe that both read from."""
    while entry := os.read(numbers, _NUMBER.size):
        (number,) = _NUMBER.unpack(entry)
        yield number
