"""Append-only files: each line is written through to the disk, and read only once.

Teardown must continue if the disk is full or read-only. Its lines are then kept in this process's memory, and all
readers here find them at the end of the file.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.durable import naming

_KEPT: dict[Path, list[bytes]] = {}


def append_line(path: Path, line: str, *, or_keep: bool = False) -> None:
    """Append one or more lines to a file of mode 0600 and wait until they are on disk. Raises OSError.

    With `or_keep`, lines that can't be written are kept in memory.
    """
    text = (line + "\n").encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            with naming(path):
                _write(handle, text)
        finally:
            os.close(handle)
    except OSError:
        if not or_keep:
            raise
        _KEPT.setdefault(path, []).extend(text.splitlines())


def kept_lines(path: Path) -> tuple[str, ...]:
    """Return the lines of a file that are only in memory."""
    return tuple(line.decode() for line in _KEPT.get(path, ()))


def _write(handle: int, text: bytes) -> None:
    """Write all of a text, or nothing if the disk is full: a part would damage the next line."""
    before = os.fstat(handle).st_size
    try:
        left = memoryview(text)
        while left:
            left = left[os.write(handle, left) :]
        os.fsync(handle)
    except OSError:
        os.ftruncate(handle, before)
        raise


def close_torn_line(path: Path, *, or_keep: bool = False) -> None:
    """End a line that a crash cut off, so that the next one begins on its own line."""
    try:
        torn = path.is_file() and (content := path.read_bytes()) and not content.endswith(b"\n")
    except OSError:
        if not or_keep:
            raise
        return
    if torn:
        append_line(path, "", or_keep=or_keep)


@dataclass(slots=True)
class AppendedFile:
    """The read position in a file; `torn` is the text after its last complete line. Others may append meanwhile."""

    path: Path
    torn: bytes = b""
    _offset: int = 0
    _inode: int = 0
    _kept: int = 0

    def new_lines(self) -> tuple[list[bytes], bool]:
        """Return the complete lines added since the last call, and whether the file was restarted since.

        An unreadable file counts as empty.
        """
        lines, rewritten = self._on_disk()
        kept = _KEPT.get(self.path, [])
        added = kept if rewritten else kept[self._kept :]
        self._kept = len(kept)
        return [*lines, *added], rewritten

    def _on_disk(self) -> tuple[list[bytes], bool]:
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError(self.path)
        except OSError:
            rewritten, self._offset, self.torn = self._offset > 0, 0, b""
            return [], rewritten
        rewritten = found.st_size < self._offset or (self._offset > 0 and found.st_ino != self._inode)
        self._inode = found.st_ino
        if rewritten:
            self._offset = 0
        if found.st_size == self._offset + len(self.torn) and not rewritten:
            return [], rewritten
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, self.torn = file.read().rpartition(b"\n")
        except OSError:
            return [], rewritten
        self._offset += len(whole) + len(newline)
        return whole.splitlines(), rewritten
