"""The folder of a run's checkpoints: complete ones have a name and checksums, and `latest` names the newest."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from sailor_runtime.training.checkpoint.durable import sync

_STEP_FOLDER = re.compile(r"step-(\d+)")
DESCRIPTION = "sailor.json"
LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """The expected size and checksum of a file."""

    name: str
    size: int
    sha256: str


class CheckpointFolder:
    """Plain file operations, each done by one rank."""

    def __init__(self, directory: Path, keep: int) -> None:
        self.directory = directory
        self._keep = max(1, keep)

    def partial(self, step: int) -> Path:
        """Return the folder of a checkpoint before it is complete."""
        return self.directory / f".step-{step}.partial"

    def begin(self, step: int, run: str | None = None) -> None:
        """Prepare for a new checkpoint of a run; remains of an interrupted save are removed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        for leftover in self.directory.glob(".step-*.partial"):
            shutil.rmtree(leftover)
        # Without a pointer it is unknown what is complete, so nothing is deleted.
        newest = self._newest()
        for path in self.directory.iterdir():
            beyond = newest is not None and path.is_dir() and step_of(path.name) > newest
            if beyond and not is_of_another(self, path.name, run):
                shutil.rmtree(path)
        self.partial(step).mkdir()

    def writer(self, step: int) -> FileSystemWriter:
        return FileSystemWriter(self.partial(step))

    def reader(self, name: str) -> FileSystemReader:
        return FileSystemReader(self.directory / name)

    def location(self, name: str) -> str:
        return str(self.directory / name)

    def written(self, step: int, rank: int) -> list[FileSum]:
        """Return the files that this rank has written; rank 0 also writes the metadata."""
        own = sorted(self.partial(step).glob(f"__{rank}_*"))
        return [sum_file(path) for path in [*own, *([self.partial(step) / ".metadata"] if rank == 0 else [])]]

    def publish(
        self, step: int, description: Mapping[str, Any], sums: list[FileSum], damaged: Collection[str] = ()
    ) -> str:
        """Give a complete checkpoint its name, then point `latest` at it; each is one atomic rename.

        Then remove this run's checkpoints that are too old, and known damaged ones, which must not seem good.
        """
        temporary, final = self.partial(step), self.directory / f"step-{step}"
        files = {each.name: {"size": each.size, "sha256": each.sha256} for each in sums}
        (temporary / DESCRIPTION).write_text(json.dumps({**description, "files": files}))
        for path in temporary.iterdir():
            sync(path)
        sync(temporary)
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        staged = self.directory / f"{LATEST}.new"
        staged.write_text(final.name)
        sync(staged)
        os.replace(staged, self.directory / LATEST)
        sync(self.directory)
        for name in {*damaged} - {final.name}:
            shutil.rmtree(self.directory / name, ignore_errors=True)
        for name in own_of(self, description.get("run"))[self._keep :]:
            shutil.rmtree(self.directory / name)
        return final.name

    def newest_first(self) -> list[str]:
        """Return complete checkpoints: the one that `latest` names, then older ones."""
        newest = self._newest()
        if newest is None:
            return []
        found = [path.name for path in self.directory.iterdir() if path.is_dir() and 0 <= step_of(path.name) <= newest]
        return sorted(found, key=step_of, reverse=True)

    def _newest(self) -> int | None:
        """Return the step that `latest` names, None if there is no such file."""
        pointer = self.directory / LATEST
        return step_of(pointer.read_text().strip()) if pointer.is_file() else None

    def describe(self, name: str) -> dict[str, Any]:
        """Return a checkpoint's description. Raises OSError or ValueError if it is unreadable."""
        return dict(json.loads((self.directory / name / DESCRIPTION).read_text()))

    def damage(self, name: str, share: int, shares: int) -> str | None:
        """Return what is wrong with every `shares`-th file from `share` on, None if they are as written."""
        try:
            files = self.describe(name)["files"]
            for file in sorted(files)[share::shares]:
                path = self.directory / name / file
                found = sum_file(path)
                if (found.size, found.sha256) != (files[file]["size"], files[file]["sha256"]):
                    return f"{path} is not what was written"
        except (OSError, ValueError, KeyError) as error:
            return f"{self.location(name)}: {error}"
        return None

    def check(self) -> None:
        """Raise OSError if nothing can be written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.directory):
            pass


class Described(Protocol):
    def describe(self, name: str) -> dict[str, Any]: ...

    def newest_first(self) -> list[str]: ...


def own_of(place: Described, run: str | None) -> list[str]:
    """Return the complete checkpoints that no other run has written, newest first."""
    return [name for name in place.newest_first() if not is_of_another(place, name, run)]


def is_of_another(place: Described, name: str, run: str | None) -> bool:
    """Whether another run has written a checkpoint, as far as it can be read."""
    try:
        return place.describe(name).get("run", run) != run
    except (OSError, ValueError):
        return False


def sum_file(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileSum(name=path.name, size=path.stat().st_size, sha256=digest)


def step_of(name: str) -> int:
    """Return the step in a checkpoint's name, -1 for any other name."""
    match = _STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match else -1
