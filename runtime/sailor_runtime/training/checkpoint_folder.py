"""The folder of a run's checkpoints: complete ones have a name and checksums, and `latest` names the newest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STEP_FOLDER = re.compile(r"step-(\d+)")
_DESCRIPTION = "sailor.json"
_LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """What a file must be."""

    name: str
    size: int
    sha256: str


class CheckpointFolder:
    """Plain file operations, each done by one rank."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self._keep = max(1, keep)

    def partial(self, step: int) -> Path:
        """Return where a checkpoint is written before it is complete."""
        return self.directory / f".step-{step}.partial"

    def begin(self, step: int) -> None:
        """Make room for a new checkpoint; what an interrupted save has left is removed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob(".step-*.partial"):
            shutil.rmtree(leftover)
        self.partial(step).mkdir()

    def publish(self, step: int, description: Mapping[str, Any], sums: list[FileSum]) -> Path:
        """Give a complete checkpoint its name, then point `latest` at it; each is one atomic rename."""
        temporary, final = self.partial(step), self.directory / f"step-{step}"
        files = {each.name: {"size": each.size, "sha256": each.sha256} for each in sums}
        (temporary / _DESCRIPTION).write_text(json.dumps({**description, "files": files}))
        for path in temporary.iterdir():
            _sync(path)
        _sync(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        staged = self.directory / f"{_LATEST}.new"
        staged.write_text(final.name)
        _sync(staged)
        os.replace(staged, self.directory / _LATEST)
        _sync(self.directory)
        self._prune(final)
        return final

    def newest_first(self) -> list[Path]:
        """Return complete checkpoints: the one that `latest` names, then older ones."""
        pointer = self.directory / _LATEST
        if not pointer.is_file():
            return []
        current = _step(self.directory / pointer.read_text().strip())
        found = [path for path in self.directory.iterdir() if path.is_dir() and 0 <= _step(path) <= current]
        return sorted(found, key=_step, reverse=True)

    def _prune(self, newest: Path) -> None:
        older = sorted((path for path in self.directory.iterdir() if 0 <= _step(path) < _step(newest)), key=_step)
        for path in older[: max(0, len(older) - self._keep + 1)]:
            shutil.rmtree(path)


def describe(checkpoint: Path) -> dict[str, Any]:
    """Return what was saved beside the tensors. Raises OSError or ValueError where that is unreadable."""
    return dict(json.loads((checkpoint / _DESCRIPTION).read_text()))


def sum_file(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileSum(name=path.name, size=path.stat().st_size, sha256=digest)


def damage(checkpoint: Path, share: int, shares: int) -> str | None:
    """Return what is wrong with every `shares`-th file from `share` on, None if they are as they were written."""
    try:
        files = describe(checkpoint)["files"]
        for name in sorted(files)[share::shares]:
            found = sum_file(checkpoint / name)
            if (found.size, found.sha256) != (files[name]["size"], files[name]["sha256"]):
                return f"{checkpoint / name} is not what was written"
    except (OSError, ValueError, KeyError) as error:
        return f"{checkpoint}: {error}"
    return None


def _step(path: Path) -> int:
    match = _STEP_FOLDER.fullmatch(path.name)
    return int(match[1]) if match else -1


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
