"""Files that are on disk when a write returns, and that a crash leaves complete or unchanged."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in errors of writes, which say no place, unlike those of opens."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


@contextmanager
def written(path: Path) -> Iterator[TextIO]:
    """Open a file for text without newline translation, and sync it at the end; old content is overwritten."""
    with naming(path), path.open("w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replaced(target: Path) -> Iterator[TextIO]:
    """Open a file of mode 0600 that replaces another one atomically, or not at all if writing fails."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with naming(target), os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_atomically(target: Path, text: str) -> None:
    """Replace a file's content by a text; see `replaced`."""
    with replaced(target) as file:
        file.write(text)
