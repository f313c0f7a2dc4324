"""Lets a command that must not end with its terminal carry on without it."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from types import FrameType

from sailor_cloud.cli.echo import PersistentStream, discard_output


@contextmanager
def outliving_terminal() -> Iterator[None]:
    """Carry on after SIGHUP, and write what a closed terminal would have shown to nowhere.

    Streams to a file or a pipe stay as they are: a full disk below stdout is still an error.
    """
    terminals = [stream for stream in (sys.stdout, sys.stderr) if stream.isatty()]

    def closed(_number: int, _frame: FrameType | None) -> None:
        for stream in terminals:
            discard_output(stream)

    # A terminal can be gone before the signal comes, or without it, as under nohup.
    lost_by_stdout = OSError if sys.stdout.isatty() else BrokenPipeError
    before = signal.signal(signal.SIGHUP, closed) or signal.SIG_DFL
    try:
        with (
            redirect_stderr(PersistentStream(sys.stderr)),
            redirect_stdout(PersistentStream(sys.stdout, lost_by_stdout)),
        ):
            yield
    finally:
        signal.signal(signal.SIGHUP, before)
