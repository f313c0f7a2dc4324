"""The folder of a run's checkpoints: complete ones have a name and checksums, and `latest` names the newest."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from sailor_runtime.manifest import (
    DESCRIPTION,
    LATEST,
    METADATA,
    OWNER,
    FileSum,
    Listing,
    encode,
    step_of,
)
from sailor_runtime.training.checkpoint.durable import sync
from sailor_runtime.training.checkpoint.place import CheckpointPlace


class CheckpointFolder(CheckpointPlace):
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
        for name in self._left(self._list(), run):
            self._remove(name)
        self.partial(step).mkdir()
        (self.partial(step) / OWNER).write_text(run or "")

    def writer(self, step: int) -> FileSystemWriter:
        return FileSystemWriter(self.partial(step))

    def reader(self, name: str) -> FileSystemReader:
        return FileSystemReader(self.directory / name)

    def location(self, name: str) -> str:
        return str(self.directory / name)

    def written(self, step: int, rank: int) -> list[FileSum]:
        """Return the files that this rank has written; rank 0 also writes the metadata."""
        own = sorted(self.partial(step).glob(f"__{rank}_*"))
        return [sum_file(path) for path in [*own, *([self.partial(step) / METADATA] if rank == 0 else [])]]

    def publish(
        self, step: int, description: Mapping[str, Any], sums: list[FileSum], damaged: Collection[str] = ()
    ) -> str:
        """Give a complete checkpoint its name, then point `latest` at it; each is one atomic rename.

        Then remove this run's checkpoints that are too old, and known damaged ones, which must not seem good. What this
        run has not written is never removed: if it has the name, it gets another.
        """
        run = description.get("run")
        temporary, final = self.partial(step), self.directory / f"step-{step}"
        (temporary / DESCRIPTION).write_text(encode(description, sums))
        for path in temporary.iterdir():
            sync(path)
        sync(temporary)
        if final.exists():
            self._clear(final, run)
        temporary.rename(final)
        staged = self.directory / f"{LATEST}.new"
        staged.write_text(final.name)
        sync(staged)
        os.replace(staged, self.directory / LATEST)
        sync(self.directory)
        for name in self._surplus(run, final.name, damaged, self._keep):
            self._remove(name)
        return final.name

    def _clear(self, final: Path, run: str | None) -> None:
        """Free the name of a checkpoint: remove what this run has saved there, rename anything else."""
        if final.is_dir() and self._is_own(self._list(), final.name, run):
            self._remove(final.name)
            return
        number = 1
        while (aside := final.with_name(f"{final.name}.{number}.replaced")).exists():
            number += 1
        final.rename(aside)

    def _remove(self, name: str) -> None:
        """Remove a checkpoint; if that is interrupted, the next save continues with it."""
        removed = self.directory / f".{name}.removed.partial"
        (self.directory / name).rename(removed)
        shutil.rmtree(removed)

    def _list(self) -> Listing:
        """Return what is there; a folder that can't be listed has no files."""
        latest: str | None = None
        with contextlib.suppress(FileNotFoundError):
            latest = (self.directory / LATEST).read_text(errors="replace").strip()
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        files = {path.name: _files(path) for path in paths if step_of(path.name) >= 0 and path.is_dir()}
        return Listing(latest=latest, files=files)

    def _read(self, name: str) -> bytes:
        return (self.directory / name).read_bytes()

    def _sum(self, name: str, file: str) -> FileSum:
        return sum_file(self.directory / name / file)

    def check(self) -> None:
        """Raise OSError if nothing can be written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.directory):
            pass


def _files(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))
    except PermissionError:
        return frozenset()


def sum_file(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileSum(name=path.name, size=path.stat().st_size, sha256=digest)
