"""The agent's event file, which the controller reads by byte offset; and logs as events if it can't read files."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from sailor_runtime.spec import MOST_LOG_BYTES

VERSION = 1


class EventJournal:
    """Appends one event {v, seq, ts, event, generation, ...} per line; seq continues after a restart."""

    def __init__(self, path: Path, *, first: int = 0, echo: bool = False) -> None:
        """Continue after the newest event, or after the number `first`. `echo` also writes each event to stdout."""
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
            _to_stdout(line)

    def sync(self) -> None:
        """Flush to disk, for events that must survive a power-off."""
        os.fsync(self._file)


class LogEcho:
    """Writes ranks' logs to stdout as `log` events {log, offset, text}, each file up to a limit.

    `offset` counts the bytes of the text, so that a reader that starts again writes the same text to the same place.
    """

    _EVERY_S, _CHUNK = 1.0, 32 * 1024

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._next = 0.0
        # The read position in each file, and the number of bytes of text sent.
        self._done: dict[str, tuple[int, int]] = {}

    def send(self, *, generation: int, last: bool = False) -> None:
        """Send complete lines, at most one chunk of each file a second; with `last`, send everything left."""
        if not last and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._EVERY_S
        for path in sorted(self._folder.glob(f"g{generation}-rank*.log")):
            while self._send_chunk(path, generation, last=last) and last:
                pass

    def _send_chunk(self, path: Path, generation: int, *, last: bool) -> bool:
        read, sent = self._done.get(path.name, (0, 0))
        if sent >= MOST_LOG_BYTES:
            return False
        with path.open("rb") as file:
            file.seek(read)
            data = file.read(self._CHUNK)
        if not last and len(data) < self._CHUNK:
            data = data[: data.rfind(b"\n") + 1]
        if not data:
            return False
        text = data.decode(errors="replace")
        if sent + len(text.encode()) >= MOST_LOG_BYTES:
            text += f"\n[more than {MOST_LOG_BYTES} bytes; what follows is not sent]\n"
        entry = {"v": VERSION, "ts": time.time(), "event": "log", "generation": generation}
        _to_stdout(json.dumps({**entry, "log": path.name, "offset": sent, "text": text}) + "\n")
        self._done[path.name] = (read + len(data), sent + len(text.encode()))
        return True


def _to_stdout(line: str) -> None:
    data = line.encode()
    while data:
        data = data[os.write(1, data) :]


def _read_end(path: Path) -> tuple[int, bool]:
    """Return the last sequence number, and whether the last line is incomplete."""
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
