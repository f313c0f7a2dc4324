"""Measurements on disk, one JSON object per line, each written immediately: nothing is measured twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Results:
    """The measurements of one task, in a file that may also contain those of others."""

    def __init__(self, path: Path, task: str) -> None:
        self._path, self._task = path, task
        self.rows: list[dict[str, Any]] = []
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        # A line that an interrupted run wrote only partly has no end.
        for line in text[: text.rfind("\n") + 1].splitlines():
            row = json.loads(line)
            if row["task"] == task:
                self.rows.append(row)
        if not text.endswith("\n") and text:
            path.write_text(text[: text.rfind("\n") + 1], encoding="utf-8")

    def has(self, **key: Any) -> bool:
        """Whether a row with these values exists."""
        return any(all(row.get(name) == value for name, value in key.items()) for row in self.rows)

    def add(self, **row: Any) -> None:
        row = {"task": self._task, **row}
        self.rows.append(row)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
