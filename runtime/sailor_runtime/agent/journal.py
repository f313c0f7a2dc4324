"""The agent's event file, which the controller reads by byte offset."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

VERSION = 1


class EventJournal:
    """Appends one event {v, seq, ts, event, generation, ...} per line; seq continues after a restart."""

    def __init__(self, path: Path, *, first: int = 0, echo: bool = False) -> None:
        """Go on after the newest event, or after the number `first`. `echo` also writes each event to stdout."""
        seq, torn = _read_end(path)
        self._seq = max(seq, first)
        self._echo = echo
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if torn:
            os.write(self._file, b"\n")

    def write(self, event: str, *, generation: int | None, ts: float | None = None, **fields: Any) -> None:
        self._seq += 1
        head = {"v": VERSION, "seq": self._seq, "ts": time.time() if ts is None else ts, "event": event}
        line = json.dumps({**head, "generation": generation, **fields}) + "\n"
        os.write(self._file, line.encode())
        if self._echo:
            os.write(1, line.encode())

    def sync(self) -> None:
        """Flush to disk what a power-off must not lose."""
        os.fsync(self._file)


def _read_end(path: Path) -> tuple[int, bool]:
    """Return the last sequence number, and whether the last line lacks its end."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0, False
    for line in reversed(data.splitlines()):
        try:
            return int(json.loads(line)["seq"]), not data.endswith(b"\n")
        except (ValueError, KeyError, TypeError):
            continue
    return 0, bool(data) and not data.endswith(b"\n")
