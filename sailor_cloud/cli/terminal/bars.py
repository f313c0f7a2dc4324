"""Progress bars, also of a refresh and of a teardown; separate, because rich is imported only for slow work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.console import Console, RenderableType
from rich.progress import Progress, ProgressColumn, SpinnerColumn, Task, TaskID, TimeElapsedColumn
from rich.progress_bar import ProgressBar
from rich.table import Column
from rich.text import Text

from sailor_cloud.provision.terraform.progress import Progress as Moment
from sailor_cloud.provision.terraform.progress import Step
from sailor_cloud.report.console import progress_console

if TYPE_CHECKING:
    from sailor_cloud.catalog.providers.fetched import Progress as Report

BAR_WIDTH = 30
# On narrower terminals the percentage alone has room.
NARROWEST_WITH_BAR = 60


class BarWhereKnown(ProgressColumn):
    """A bar if the total is known and the terminal is wide enough, else nothing."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> RenderableType:
        if not task.total or self._console.width < NARROWEST_WITH_BAR:
            return Text("")
        return ProgressBar(total=task.total, completed=min(task.completed, task.total), width=BAR_WIDTH)


class Description(ProgressColumn):
    """What is done, in one line; cut where the terminal is too narrow."""

    def render(self, task: Task) -> RenderableType:
        return Text(task.description, no_wrap=True, overflow="ellipsis")


class Percentage(ProgressColumn):
    """`42 %`; without a known total, the number of things done."""

    def __init__(self) -> None:
        super().__init__(table_column=Column(no_wrap=True))

    def render(self, task: Task) -> RenderableType:
        if task.total:
            return Text(f"{min(100.0, task.percentage):3.0f} %")
        return Text(f"{task.completed:,.0f}" if task.completed else "")


def progress_bar(console: Console) -> Progress:
    """Return the common style of all bars: description, bar, percentage and elapsed time; it leaves no trace."""
    columns = (
        SpinnerColumn("line"),
        Description(),
        BarWhereKnown(console),
        Percentage(),
        TimeElapsedColumn(table_column=Column(no_wrap=True)),
    )
    return Progress(*columns, console=console, transient=True)


@contextmanager
def refresh_progress(console: Console) -> Iterator[Report]:
    """Show a bar for each list on a terminal; in a pipe, a line for each list that was read.

    AWS is read region by region, Google Cloud list by list. Lists of Google Cloud come page by page with unknown
    length, so the rows of each are counted below the bar.
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


class TeardownDisplay:
    """Counts deleted resources, of those known to be deleted."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or progress_console()
        self._steps: dict[str, Step] = {}
        self._bar: Progress | None = progress_bar(self._console) if self._console.is_terminal else None
        self._task = None if self._bar is None else self._bar.add_task("tearing down", total=None)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_progress(self, moment: Moment) -> None:
        self.say(f"{moment.key}: {moment.action} {moment.step}")
        self._steps[moment.key] = moment.step
        if self._bar is not None and self._task is not None:
            gone = sum(step is Step.DONE for step in self._steps.values())
            self._bar.update(self._task, completed=gone, total=len(self._steps))

    def say(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)
