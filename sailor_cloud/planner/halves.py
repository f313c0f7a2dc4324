"""Two halves of a search at once, the first in a process of its own; what they find doesn't depend on that."""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import TypeVar

_First = TypeVar("_First")
_Second = TypeVar("_Second")


def at_once(processes: int) -> bool:
    """Return whether the halves run side by side: with more than one process, where the system can copy one."""
    return processes > 1 and sys.platform == "linux"


def border(loads: Sequence[int]) -> int:
    """Return how many of some loads, in their order, the first half takes so that the larger half is smallest."""
    return min(range(len(loads) + 1), key=lambda number: max(sum(loads[:number]), sum(loads[number:])))


def both(first: Callable[[], _First], second: Callable[[], _Second], *, processes: int) -> tuple[_First, _Second]:
    """Return what two calls return; with more than one process the first runs beside the second.

    It runs in a copy of this process, so what it changes is lost. Where no copy can be made, or where it dies, the
    call is made here.
    """
    if not at_once(processes):
        return first(), second()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    beside = context.Process(target=_send, args=(first, there), daemon=True)
    try:
        with warnings.catch_warnings():
            # The copy has this thread alone; it computes and sends, and waits for no lock that another one may hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            beside.start()
    except OSError:
        return first(), second()
    there.close()
    try:
        found = second()
        try:
            return here.recv(), found
        except EOFError:
            return first(), found
    finally:
        here.close()
        beside.kill()
        beside.join()


def _send(call: Callable[[], object], there: Connection) -> None:
    """Send what a call returns; nothing where it fails or Ctrl-C ends it, which the caller sees for itself."""
    with contextlib.suppress(BaseException):
        there.send(call())
    there.close()
