"""The request to stop a run: its reason, and the work that it interrupts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.run.options import Ending

_T = TypeVar("_T")


class Stopped(Exception):  # noqa: N818 - named after what happened, like KeyboardInterrupt
    """The run must end now; `ending` says why."""

    def __init__(self, ending: Ending) -> None:
        self.ending = ending
        super().__init__(ending.value)


@dataclass(slots=True)
class StopSignal:
    """Set once, by the user, the budget or the deadline; the first reason is kept."""

    interrupt: Interrupt = field(default_factory=Interrupt)
    ending: Ending | None = None
    _event: asyncio.Event = field(default_factory=asyncio.Event)

    def request(self, ending: Ending) -> None:
        """Interrupt provisioning and whatever waits under `unless_stopped`."""
        if self.ending is None:
            self.ending = ending
            self._event.set()
            self.interrupt.request()

    def check(self) -> None:
        """Raise Stopped if the run must end."""
        if self.ending is not None:
            raise Stopped(self.ending)

    async def unless_stopped(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Await some work; cancel it and raise Stopped if the run must end."""
        task = asyncio.ensure_future(work)
        stop = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return task.result()
        finally:
            stop.cancel()
            if not task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
