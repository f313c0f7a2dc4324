"""What provisioning tells while it works, and how it is interrupted."""

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
    """Provisioning was interrupted; what it had begun is in the journal."""

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

    `usd_per_hour` is known of what is planned and costs by the hour. `trouble` says what is in the way, if anything.
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
    trouble: str = ""


Listener = Callable[[Progress], None]


class Pulse:
    """Tells whether a cloud answers while it takes long: asks it in the background, once a minute."""

    def __init__(self, ask: Callable[[], object], *, now: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._now = now
        self._asked_at = float("-inf")
        self._thread: threading.Thread | None = None
        self._error = ""

    def trouble(self) -> str:
        """Return what is wrong: the cloud's error, or for how long it has not answered; nothing while it answers."""
        waited_s = self._now() - self._asked_at
        if self._thread is not None and self._thread.is_alive():
            return f"the cloud has not answered for {waited_s:.0f} s" if waited_s >= _PATIENCE_S else self._error
        if waited_s >= _BETWEEN_S:
            self._asked_at = self._now()
            self._thread = threading.Thread(target=self._asked, daemon=True)
            self._thread.start()
        return self._error

    def settle(self) -> None:
        """Wait for the answer to the question that is under way, if there is one."""
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

    The first request reaches every command that runs and keeps further ones from starting; later requests do nothing,
    because a second signal would make Terraform drop its state.
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
        """Raise ProvisionInterrupted when a request has come."""
        if self._requested:
            raise ProvisionInterrupted("interrupted; what was created until then is still there")

    def wait(self, seconds: float) -> None:
        """Wait, but raise ProvisionInterrupted as soon as a request has come."""
        self._woken.wait(seconds)
        self.check()

    def attach(self, stop: Callable[[], None]) -> None:
        """Name what a request calls from now on, too. Raises ProvisionInterrupted when it has come already."""
        with self._mutex:
            self.check()
            self._stops.append(stop)

    def detach(self, stop: Callable[[], None]) -> None:
        """Let a request no longer call this."""
        with self._mutex:
            if stop in self._stops:
                self._stops.remove(stop)
