"""A sign of life on stderr while something takes longer than a second."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE_S = 1.0


@contextmanager
def waiting(activity: str, *, patience_s: float = PATIENCE_S) -> Iterator[None]:
    """Show an animated line with the seconds spent; nothing in a pipe, nothing for what ends soon."""
    if not sys.stderr.isatty():
        yield
        return
    done = threading.Event()
    shown = threading.Thread(target=_show, args=(activity, patience_s, done), daemon=True)
    shown.start()
    try:
        yield
    finally:
        done.set()
        shown.join()


def _show(activity: str, patience_s: float, done: threading.Event) -> None:
    if done.wait(patience_s):
        return
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from sailor_cloud.report.console import progress_console

    columns = (SpinnerColumn("line"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=progress_console(), transient=True) as progress:
        progress.add_task(activity, total=None)
        done.wait()
