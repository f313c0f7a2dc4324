"""Files that are on disk when a write returns, and that a crash leaves whole or as they were."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def written(path: Path) -> Iterator[TextIO]:
    """Give a file to write text to, as it is, through to the disk; what is there already is written over."""
    with path.open("w", encoding="utf-8", newline="") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replaced(target: Path) -> Iterator[TextIO]:
    """Give a file of mode 0600 that replaces another one at once, or not at all where writing fails."""
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_atomically(target: Path, text: str) -> None:
    """Replace a file by a text; see `replaced`."""
    with replaced(target) as file:
        file.write(text)
