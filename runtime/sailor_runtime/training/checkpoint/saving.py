"""When a run saves, and when it gives up after failed saves."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import CheckpointSpec
from sailor_runtime.training.checkpoint.checkpoint import Checkpoints, Saved, Unsaved
from sailor_runtime.training.checkpoint.requests import Control
from sailor_runtime.training.engine import Engine

# A run that can't save spends money on work that it will lose.
MOST_FAILURES = 3


class Saver:
    """Saves on time and on request.

    `report` (on rank 0 only) writes an event; `doubtful` says that saved weights are better than the present ones.
    """

    def __init__(
        self,
        spec: CheckpointSpec,
        checkpoints: Checkpoints,
        control: Control,
        notes: Callable[[], Mapping[str, Any]],
        report: Callable[..., None] | None,
        doubtful: Callable[[], bool] = lambda: False,
    ) -> None:
        self._spec = spec
        self._checkpoints = checkpoints
        self._control = control
        self._notes = notes
        self._report = report
        self._doubtful = doubtful
        self._began = time.monotonic()
        self._failures = 0
        self._last: Saved | None = None

    def start_from(self, engine: Engine, name: str | None) -> None:
        """Record that `engine` is at a checkpoint, or at the beginning."""
        self._began = time.monotonic()
        if name is not None:
            self._last = Saved(step=engine.next_step, path=self._checkpoints.location(name))

    @property
    def last(self) -> str:
        """The last good checkpoint, in words."""
        if self._last is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self._last.path}"

    def save_requested(self, *, leads: bool) -> bool:
        """Whether this rank asks for a save: its node requests one, or it leads and a save is due.

        Not while one still runs: a store that does not answer must not block training. Not by the clock while the loss
        rises either: the last good checkpoint is one from before.
        """
        if self._checkpoints.running:
            return False
        due = leads and time.monotonic() - self._began >= self._spec.every_s
        return self._control.checkpoint or (due and not self._doubtful())

    def begin(self, engine: Engine) -> None:
        """Begin to save while training continues; waits for a save that still runs."""
        self._note(self._checkpoints.wait())
        self._checkpoints.begin(engine, self._notes())
        self._control.checkpoint_done()
        self._began = time.monotonic()

    def wait(self) -> None:
        """Wait for the save that runs, and record it. Raises RefusedError if too many in a row have failed."""
        self._note(self._checkpoints.wait())

    def poll(self) -> None:
        """Record a save that has ended. Raises RefusedError if too many in a row have failed."""
        self._note(self._checkpoints.finished())

    def finish(self, engine: Engine) -> None:
        """Save the present step unless it is saved already. Raises RefusedError after too many failures."""
        self._note(self._checkpoints.wait())
        while self._last is None or self._last.step != engine.next_step:
            self._checkpoints.begin(engine, self._notes())
            self._note(self._checkpoints.wait())

    def _note(self, outcome: Saved | Unsaved | None) -> None:
        if isinstance(outcome, Saved):
            self._last, self._failures = outcome, 0
            if self._report is not None:
                self._report("checkpoint", step=outcome.step, path=outcome.path, written=outcome.written)
        elif isinstance(outcome, Unsaved):
            self._failures += 1
            if self._report is not None:
                self._report("checkpoint_failed", step=outcome.step, reason=outcome.reason, failures=self._failures)
            if self._failures >= MOST_FAILURES:
                raise RefusedError(
                    f"{self._failures} checkpoints in a row could not be saved: {outcome.reason}; {self.last}"
                )
