"""The event file of one rank, which the node's agent reads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any


class EventWriter:
    """Appends one JSON object per line, each in one write, so that readers never see mixed lines."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)

    def write(self, event: str, **fields: Any) -> None:
        line = json.dumps({"ts": time.time(), "event": event, **fields}, allow_nan=True)
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        self._file.close()
