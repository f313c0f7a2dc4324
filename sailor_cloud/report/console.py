"""Consoles for results (stdout) and for progress (stderr)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sailor_cloud.errors import printable

NARROWEST = 80


class PlainConsole(Console):
    """A console on which text from files or clouds can't move the cursor or change colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        # Rich would exit with 1 here; every command handles a closed stdout the same way.
        raise BrokenPipeError


def result_console() -> Console:
    """Return a console on stdout; in a pipe it is plain text, at least 80 columns wide."""
    return _console(stderr=False)


def progress_console() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    chosen = os.environ.get("COLUMNS", "")
    # A pipe has no width; long lines are better there than folded columns.
    width = None if stream.isatty() or chosen.isdigit() else 120
    return PlainConsole(stderr=stderr, width=width, highlight=False, soft_wrap=False)
