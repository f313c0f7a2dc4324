"""Shows how far a refresh of prices is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from sailor_cloud.catalog.providers.fetched import Progress as Report


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
    from sailor_cloud.cli.terminal.waiting import progress_bar

    with progress_bar(console) as bar:
        tasks: dict[str, TaskID] = {}

        def report_bar(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(f"reading {what}", total=total)
            bar.update(tasks[what], completed=done, total=total)

        yield report_bar
