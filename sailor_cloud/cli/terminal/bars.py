"""Columns of progress bars; apart, since rich is imported only where something takes long."""

from __future__ import annotations

from rich.console import RenderableType
from rich.progress import ProgressColumn, Task
from rich.progress_bar import ProgressBar
from rich.text import Text

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
