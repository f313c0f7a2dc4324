"""Consoles for results (stdout) and for progress (stderr)."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sailor_cloud.errors import printable


class PlainConsole(Console):
    """A console on which text from files or clouds can't move the cursor or change colours."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))

    def on_broken_pipe(self) -> None:
        # Rich would exit with 1 here; every command handles a closed stdout the same way.
        raise BrokenPipeError


def result_console() -> Console:
    """Return a console on stdout; in a pipe it is plain text, 120 columns wide unless COLUMNS says more or less."""
    return _console(stderr=False)


def progress_console() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    chosen = os.environ.get("COLUMNS", "")
    known = int(chosen) > 0 if chosen.isdigit() else stream.isatty()
    # A pipe has no width; long lines are better there than folded columns.
    width = None if known else 120
    return PlainConsole(stderr=stderr, width=width, highlight=False, soft_wrap=False)
