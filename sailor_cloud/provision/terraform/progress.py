"""Progress reports of provisioning, and its interruption."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from sailor_cloud.errors import ProvisionError

_BETWEEN_S = 60.0
_PATIENCE_S = 20.0


class ProvisionInterrupted(ProvisionError):  # noqa: N818 - named after what happened, like KeyboardInterrupt
    """Provisioning was interrupted; the journal has everything that it began."""

    exit_code = 130


class Step(StrEnum):
    PLANNED = "planned"
    STARTED = "started"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One step of one resource: `action` is Terraform's own word, such as create or delete.

    `usd_per_hour` is known for planned resources with an hourly cost. `problem` names an obstacle, if any.
    """

    action: str
    step: Step
    provider: str
    region: str
    resource: str
    key: str
    elapsed_s: float
    message: str
    usd_per_hour: float | None = None
    problem: str = ""


Listener = Callable[[Progress], None]


class CloudProbe:
    """Checks whether a cloud answers during a long operation, by a query in the background once a minute."""

    def __init__(self, ask: Callable[[], object], *, now: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._now = now
        self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None
        self._error = ""

    def problem(self) -> str:
        """Return the problem: the cloud's error, or how long it has not answered; empty while it answers."""
        waited_s = self._now() - self._asked_at
        if self._thread is not None and self._thread.is_alive():
            return f"the cloud has not answered for {waited_s:.0f} s" if waited_s >= _PATIENCE_S else self._error
        if waited_s >= _BETWEEN_S:
            self._asked_at = self._now()
            self._thread = threading.Thread(target=self._asked, daemon=True)
            self._thread.start()
        return self._error

    def wait(self) -> None:
        """Wait for the answer to the pending query, if there is one."""
        if self._thread is not None:
            self._thread.join()

    def _asked(self) -> None:
        try:
            self._ask()
            self._error = ""
        except (ProvisionError, OSError) as error:
            self._error = f"the cloud does not answer: {error}"


class Interrupt:
    """Lets one thread stop the provisioning that runs in others.

    The first request reaches every running command and prevents further ones. Later requests do nothing, because a
    second signal would make Terraform drop its state.
    """

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._requested = False
        self._woken = threading.Event()
        self._stops: list[Callable[[], None]] = []

    @property
    def requested(self) -> bool:
        return self._requested

    def request(self) -> None:
        with self._mutex:
            if not self._requested:
                self._requested = True
                self._woken.set()
                for stop in self._stops:
                    stop()

    def check(self) -> None:
        """Raise ProvisionInterrupted if it was requested."""
        if self._requested:
            raise ProvisionInterrupted("interrupted; what was created until then is still there")

    def wait(self, seconds: float) -> None:
        """Wait, but raise ProvisionInterrupted as soon as it is requested."""
        self._woken.wait(seconds)
        self.check()

    def attach(self, stop: Callable[[], None]) -> None:
        """From now on, call `stop` on a request, too. Raises ProvisionInterrupted if it was requested already."""
        with self._mutex:
            self.check()
            self._stops.append(stop)

    def detach(self, stop: Callable[[], None]) -> None:
        """No longer call this on a request."""
        with self._mutex:
            if stop in self._stops:
                self._stops.remove(stop)
