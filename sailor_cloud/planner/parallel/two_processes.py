"""Two processes that make the same search: of what can be shared out each of them does a part, and tells the other.

Both go through the same steps, so that either knows all that was found, and what it looked up once stays at hand. What
is found doesn't depend on whether there is a second one.
"""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

_Answer = TypeVar("_Answer")

# How a call's number is written to a pipe that both take the next one from, and what follows the last one, once for
# each. So many calls at once are a page full, which is what any pipe holds.
_NUMBER = struct.Struct("i")
_NO_MORE = -1
MOST_AT_ONCE = 1000


@dataclass(slots=True)
class Team:
    """One process of a search, alone or with a second one; `leads`: its answer is the one that counts.

    The second one, where one is `wanted`, begins as a copy at the first step that can be shared out. At each step that
    both take the follower speaks first and waits for the leader, so that they never wait for each other. A leader whose
    follower is gone, or is at another step, goes on alone.
    """

    wanted: bool = False
    leads: bool = True
    _link: Connection | None = None
    # Ends of the pipes of numbers, the leader's and the follower's: those to read from, and of the leader to write to.
    _numbers: tuple[int, ...] = ()
    _entries: tuple[int, ...] = ()
    _follower: int = 0
    _steps: int = 0
    # Within a call that was shared out nothing else is.
    _inside: bool = False

    def shared(
        self, calls: Sequence[Callable[[], Any]], tell: Callable[[float], None], *, homes: Sequence[int] | None = None
    ) -> list[Any]:
        """Return what each call returns, some of them made by the other process; `MOST_AT_ONCE` of them at most.

        `tell` gets the share of them that is being made. Calls with the same one of `homes` go to the same process as
        far as neither waits for the other: what they look up, later ones need.
        """
        if len(calls) > 1 and self.wanted and not self._inside:
            self._begin()
        if len(calls) < 2 or self._link is None or self._inside or not self._exchanged(f"{len(calls)} calls", True):
            return [self._one(call, number / len(calls), tell) for number, call in enumerate(calls)]
        if self.leads:
            for home, entry in enumerate(self._entries):
                there = [number for number in range(len(calls)) if (homes or range(len(calls)))[number] % 2 == home]
                os.write(entry, b"".join(map(_NUMBER.pack, [*there, _NO_MORE, _NO_MORE])))
        self._inside = True
        try:
            taken = ((number, share / len(calls)) for number, share in self._taken())
            found = {number: self._one(calls[number], share, tell) for number, share in taken}
        finally:
            self._inside = False
        found |= self._exchanged("what they return", found) or {}
        # Those that went down with the other process are made here.
        return [found[number] if number in found else call() for number, call in enumerate(calls)]

    def end(self) -> None:
        """End the second process: this one, if it follows."""
        if not self.leads:
            os._exit(0)
        if self._follower:
            os.kill(self._follower, signal.SIGKILL)
            os.waitpid(self._follower, 0)
            self._close(*self._numbers, *self._entries)
            self._follower = 0
        self._leave()

    def _begin(self) -> None:
        """Copy this process; where that can't be done it goes on alone."""
        from multiprocessing import Pipe

        self.wanted = False
        here, there = Pipe()
        self._numbers, self._entries = zip(os.pipe(), os.pipe(), strict=True)
        try:
            with warnings.catch_warnings():
                # The copy has this thread alone; it computes, sends, and waits for no lock that another one may hold.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._follower = os.fork()
        except OSError:
            here.close()
            there.close()
            self._close(*self._numbers, *self._entries)
            return
        self.leads = self._follower != 0
        self._link, other = (here, there) if self.leads else (there, here)
        other.close()
        if not self.leads:
            # With no such ends here a dead leader is seen.
            self._close(*self._entries)

    def _leave(self) -> None:
        if self._link is not None:
            self._link.close()
        self._link = None

    def _one(self, call: Callable[[], Any], share: float, tell: Callable[[float], None]) -> Any:
        tell(share)
        return call()

    def _taken(self) -> Iterator[tuple[int, int]]:
        """Yield the numbers of the calls that this process makes, its own first, each with the largest one so far."""
        most = 0
        for pipe in self._numbers if self.leads else self._numbers[::-1]:
            while entry := os.read(pipe, _NUMBER.size):
                (number,) = _NUMBER.unpack(entry)
                if number == _NO_MORE:
                    break
                most = max(most, number)
                yield number, most

    @staticmethod
    def _close(*ends: int) -> None:
        for end in ends:
            os.close(end)

    def _exchanged(self, what: str, mine: object) -> Any:
        """Return what the other process has to say at this step; None once it is gone or at another step."""
        assert self._link is not None
        self._steps += 1
        step = (self._steps, what)
        if not self.leads:
            self._link.send((step, mine))
            return self._link.recv()
        with contextlib.suppress(EOFError, OSError):
            there, theirs = self._link.recv()
            if there == step:
                self._link.send(mine)
                return theirs
        self._leave()
        return None


def together(search: Callable[[Team], _Answer], *, processes: int) -> _Answer:
    """Return what a search finds; with more than one process, where the system can copy one, two make it.

    The second one is a copy of this one, so what it changes is lost. Errors are those of the search here.
    """
    team = Team(wanted=processes > 1 and sys.platform == "linux")
    try:
        return search(team)
    finally:
        team.end()
