"""Shows how far a teardown is: a line for each thing that happens, and on a terminal a bar below them."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from sailor_cloud.cli.terminal.waiting import progress_bar
from sailor_cloud.provision.progress import Progress as Moment
from sailor_cloud.provision.progress import Step
from sailor_cloud.report.console import progress_console


class TeardownDisplay:
    """Counts resources that are gone, of those that are known to go."""

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
