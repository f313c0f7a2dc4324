"""Prints on stdout or stderr; a text can't control the terminal, whatever its source."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, TextIO

import click

from sailor_cloud.errors import printable


def echo(text: str = "", *, nl: bool = True, err: bool = False) -> None:
    """Print a text with control characters escaped."""
    click.echo(printable(text), nl=nl, err=err)


def print_error(text: str) -> None:
    """Print on stderr; if that fails, the exit code must suffice."""
    print(text, file=PersistentStream(sys.stderr), flush=True)


def discard_output(stream: TextIO) -> None:
    """Redirect a stream to nowhere, so that Python's own flush at exit succeeds as well."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class PersistentStream:
    """A stream whose writer continues after its reader or terminal has closed."""

    def __init__(self, stream: TextIO, errors: type[OSError] = OSError) -> None:
        self._stream, self._errors = stream, errors

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except self._errors:
            discard_output(self._stream)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._errors:
            discard_output(self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
