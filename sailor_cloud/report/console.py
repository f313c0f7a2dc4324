"""Consoles for results (stdout) and for progress (stderr)."""

from __future__ import annotations

import os
import sys

from rich.console import Console

NARROWEST = 80


def result_console() -> Console:
    """Return a console on stdout; in a pipe it is plain text, at least 80 columns wide."""
    return _console(stderr=False)


def progress_console() -> Console:
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    chosen = os.environ.get("COLUMNS", "")
    # A pipe has no width of its own; long lines are better there than folded columns.
    width = None if stream.isatty() or chosen.isdigit() else 120
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)
