"""Files that are only ever appended to: written line by line through to the disk, and read each line once.

Teardown must continue where the disk is full or can't be written to. What it appends is then kept in the memory of this
process, and all that reads the file here finds it at its end.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

_KEPT: dict[Path, list[bytes]] = {}


def append_line(path: Path, line: str, *, or_keep: bool = False) -> None:
    """Append a line, or several, to a file of mode 0600 and wait until it is on disk. Raises OSError.

    With `or_keep`, what can't be written is kept in memory.
    """
    text = (line + "\n").encode()
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            _write(handle, text)
        finally:
            os.close(handle)
    except OSError:
        if not or_keep:
            raise
        _KEPT.setdefault(path, []).extend(text.splitlines())


def kept_lines(path: Path) -> tuple[str, ...]:
    """Return the lines that belong into a file and are in memory alone."""
    return tuple(line.decode() for line in _KEPT.get(path, ()))


def _write(handle: int, text: bytes) -> None:
    """Write all of a text, or nothing where the disk has no room for it: a part would spoil what comes next."""
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
    """End a line that a crash cut off, so that what is appended next begins its own."""
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
    """Remembers how far a file was read; `torn` is what follows its last whole line. Others may append meanwhile."""

    path: Path
    torn: bytes = b""
    _offset: int = 0
    _inode: int = 0
    _kept: int = 0

    def new_lines(self) -> tuple[list[bytes], bool]:
        """Return the whole lines that were added since the last call, and whether the file was begun again since.

        A file that can't be read holds nothing.
        """
        lines, anew = self._on_disk()
        kept = _KEPT.get(self.path, [])
        added = kept if anew else kept[self._kept :]
        self._kept = len(kept)
        return [*lines, *added], anew

    def _on_disk(self) -> tuple[list[bytes], bool]:
        try:
            found = self.path.stat()
            if not stat.S_ISREG(found.st_mode):
                raise FileNotFoundError(self.path)
        except OSError:
            anew, self._offset, self.torn = self._offset > 0, 0, b""
            return [], anew
        anew = found.st_size < self._offset or (self._offset > 0 and found.st_ino != self._inode)
        self._inode = found.st_ino
        if anew:
            self._offset = 0
        if found.st_size == self._offset + len(self.torn) and not anew:
            return [], anew
        try:
            with self.path.open("rb") as file:
                file.seek(self._offset)
                whole, newline, self.torn = file.read().rpartition(b"\n")
        except OSError:
            return [], anew
        self._offset += len(whole) + len(newline)
        return whole.splitlines(), anew
