"""What the terminal shows while a command waits."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from rich.console import RenderableType
from rich.progress import ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.text import Text

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, TaskID

    from sailor_cloud.catalog.providers.fetched import Progress as Report

BAR_WIDTH = 30


class BarWhereKnown(ProgressColumn):
    """A bar for what has an end that is known, and nothing for what has none."""

    def render(self, task: Task) -> RenderableType:
        if not task.total:
            return Text("")
        return ProgressBar(total=task.total, completed=min(task.completed, task.total), width=BAR_WIDTH)


class Percentage(ProgressColumn):
    """`42 %`; where no end is known, how many things are done."""

    def render(self, task: Task) -> RenderableType:
        if task.total:
            return Text(f"{min(100.0, task.percentage):3.0f} %")
        return Text(f"{task.completed:,.0f}" if task.completed else "")


PATIENCE_S = 1.0
REDRAWN_EVERY_S = 0.1


class Show(Protocol):
    """Is told how much is done, of how much, and, where it changes, what it is about; any thread may call it."""

    def __call__(self, done: float, of: float, what: str = "") -> None: ...

    def screen(self, shown: RenderableType) -> None:
        """Show something above the bar until the end, where both streams are a terminal."""


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

    def screen(self, shown: RenderableType) -> None:
        if sys.stdout.isatty():
            self.state = replace(self.state, shown=shown)

    def finish(self) -> None:
        """Be done with all of it, also where the last report came before the end."""
        if (of := self.state.of) is not None:
            self.state = replace(self.state, done=of)


@contextmanager
def waiting(activity: str, *, patience_s: float = PATIENCE_S) -> Iterator[Show]:
    """Show an animated line with the seconds spent, and once told how far it is a bar with a percentage.

    Nothing is shown in a pipe, nor for what ends soon. A bar whose work is done goes full before it goes.
    """
    told = _Progress(activity)
    if not sys.stderr.isatty():
        yield told
        return
    done = threading.Event()
    shown = threading.Thread(target=_show, args=(told, patience_s, done), daemon=True)
    shown.start()
    try:
        yield told
        told.finish()
    finally:
        done.set()
        shown.join()


def progress_bar(console: Console) -> Progress:
    """Return the one look of all bars: what, a bar, the percentage and the time spent; it leaves no trace."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn("line"),
        TextColumn("{task.description}", markup=False),
        BarWhereKnown(),
        Percentage(),
        TimeElapsedColumn(),
    )
    return Progress(*columns, console=console, transient=True)


def _show(told: _Progress, patience_s: float, done: threading.Event) -> None:
    begun = time.monotonic()
    while time.monotonic() - begun < patience_s and told.state.shown is None:
        if done.wait(min(patience_s, REDRAWN_EVERY_S)):
            return
    from rich.console import Group
    from rich.live import Live

    from sailor_cloud.report.console import progress_console

    console = progress_console()
    progress = progress_bar(console)
    task = progress.add_task(told.state.what, total=None)

    def drawn() -> RenderableType:
        state = told.state
        progress.update(task, completed=state.done, total=state.of, description=state.what)
        bar = progress.get_renderable()
        return bar if state.shown is None else Group(state.shown, "", bar)

    with Live(get_renderable=drawn, console=console, transient=True, refresh_per_second=1.0 / REDRAWN_EVERY_S):
        done.wait()


@contextmanager
def refresh_progress(console: Console) -> Iterator[Report]:
    """Show a bar for each list on a terminal, and a line for each that is read in a pipe.

    AWS is read region by region, Google Cloud list by list; the lists of the latter come page by page and do not say
    how long they are, so what has come of each is counted below.
    """
    if not console.is_terminal:
        seen: set[str] = set()

        def report_line(what: str, done: int, total: int | None) -> None:
            if what not in seen:
                seen.add(what)
                console.print(f"reading {what}")

        yield report_line
        return

    with progress_bar(console) as bar:
        tasks: dict[str, TaskID] = {}

        def report_bar(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"reading {what}", total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report_bar
