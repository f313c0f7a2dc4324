"""Requests from the node's agent to its ranks, through a small file."""

from __future__ import annotations

import json
from pathlib import Path


class Control:
    """Reads `{"checkpoint": n, "stop": bool}`; a checkpoint is requested whenever n has increased."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._changed = 0
        self._served = 0
        self._wanted = 0
        self.stop = False

    def poll(self) -> None:
        """Read the file if it has changed."""
        if self._path is None:
            return
        try:
            changed = self._path.stat().st_mtime_ns
        except FileNotFoundError:
            return
        if changed == self._changed:
            return
        content = json.loads(self._path.read_text())
        self._changed = changed
        self._wanted = int(content.get("checkpoint", 0))
        self.stop = bool(content.get("stop", False))

    @property
    def checkpoint(self) -> bool:
        return self._wanted > self._served

    def checkpoint_done(self) -> None:
        self._served = self._wanted
