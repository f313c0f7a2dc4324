"""Shows progress on stderr while something takes longer than a second."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import RenderableType

PATIENCE_S = 1.0
REDRAWN_EVERY_S = 0.1
# What terminals write behind the bar at Ctrl-C. If it began a new line, the screen could not be erased.
ECHOED = "^C"


class Show(Protocol):
    """Gets the amount done, the total and, if it changes, the subject; any thread may call it."""

    def __call__(self, done: float, of: float, what: str = "") -> None: ...

    def subject(self, what: str) -> None:
        """Change the subject alone."""

    def screen(self, shown: RenderableType) -> None:
        """Show something above the bar until the end, if both streams are a terminal."""


@dataclass(frozen=True, slots=True)
class _State:
    done: float
    of: float | None
    what: str
    shown: RenderableType | None = None


class _Progress:
    """The latest report. One reference is replaced as a whole, so that no lock is needed."""

    def __init__(self, activity: str) -> None:
        self.state = _State(0.0, None, activity)

    def __call__(self, done: float, of: float, what: str = "") -> None:
        self.state = _State(done, of, what or self.state.what, self.state.shown)

    def subject(self, what: str) -> None:
        self.state = replace(self.state, what=what)

    def screen(self, shown: RenderableType) -> None:
        if sys.stdout.isatty():
            self.state = replace(self.state, shown=shown)

    def finish(self) -> None:
        """Show the work as complete, even if the last report was incomplete."""
        if (of := self.state.of) is not None:
            self.state = replace(self.state, done=of)


@contextmanager
def waiting(activity: str, *, patience_s: float = PATIENCE_S) -> Iterator[Show]:
    """Show an animated line with the elapsed seconds and, once the total is known, a bar with a percentage.

    Nothing is shown in a pipe, nor for short work. The bar of complete work fills before it disappears.
    """
    tracker = _Progress(activity)
    if not sys.stderr.isatty():
        yield tracker
        return
    done = threading.Event()
    shown = threading.Thread(target=_show, args=(tracker, patience_s, done), daemon=True)
    shown.start()
    try:
        yield tracker
        tracker.finish()
    finally:
        done.set()
        shown.join()


def _show(tracker: _Progress, patience_s: float, done: threading.Event) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < patience_s and tracker.state.shown is None:
        if done.wait(min(patience_s, REDRAWN_EVERY_S)):
            return
    from rich.constrain import Constrain
    from rich.live import Live

    from sailor_cloud.cli.terminal.bars import progress_bar
    from sailor_cloud.cli.terminal.cropping import Cropped
    from sailor_cloud.report.console import progress_console

    console = progress_console()
    progress = progress_bar(console)
    task = progress.add_task(tracker.state.what, total=None)

    def drawn() -> RenderableType:
        state = tracker.state
        progress.update(task, completed=state.done, total=state.of, description=state.what)
        bar = Constrain(progress.get_renderable(), console.width - len(ECHOED))
        return bar if state.shown is None else Cropped(screen=state.shown, bar=bar)

    with Live(get_renderable=drawn, console=console, transient=True, refresh_per_second=1.0 / REDRAWN_EVERY_S):
        done.wait()
