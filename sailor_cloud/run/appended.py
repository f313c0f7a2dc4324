"""Reads a file that is only ever appended to, each line once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True)
class AppendedFile:
    """Remembers how far a file was read; `torn` is what follows its last whole line. Others may append meanwhile."""

    path: Path
    torn: bytes = b""
    _offset: int = 0
    _inode: int = 0

    def new_lines(self) -> tuple[list[bytes], bool]:
        """Return the whole lines that were added since the last call, and whether the file was begun anew since."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            anew, self._offset, self.torn = self._offset > 0, 0, b""
            return [], anew
        anew = found.st_size < self._offset or (self._offset > 0 and found.st_ino != self._inode)
        self._inode = found.st_ino
        if anew:
            self._offset = 0
        if found.st_size == self._offset + len(self.torn) and not anew:
            return [], anew
        with self.path.open("rb") as file:
            file.seek(self._offset)
            whole, newline, self.torn = file.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return whole.splitlines(), anew
