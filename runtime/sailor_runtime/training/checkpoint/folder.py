"""The folder of a run's checkpoints: complete ones have a name and checksums, and `latest` names the newest."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter

from sailor_runtime.training.checkpoint.durable import sync
from sailor_runtime.training.checkpoint.manifest import DESCRIPTION, LATEST, METADATA, FileSum, encode, step_of
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
        for name in self._left_by(run):
            shutil.rmtree(self.directory / name)
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
        return [sum_file(path) for path in [*own, *([self.partial(step) / METADATA] if rank == 0 else [])]]

    def publish(
        self, step: int, description: Mapping[str, Any], sums: list[FileSum], damaged: Collection[str] = ()
    ) -> str:
        """Give a complete checkpoint its name, then point `latest` at it; each is one atomic rename.

        Then remove this run's checkpoints that are too old, and known damaged ones, which must not seem good.
        """
        temporary, final = self.partial(step), self.directory / f"step-{step}"
        (temporary / DESCRIPTION).write_text(encode(description, sums))
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
        for name in self._own(description.get("run"))[self._keep :]:
            shutil.rmtree(self.directory / name)
        return final.name

    def _names(self) -> list[str]:
        if not self.directory.is_dir():
            return []
        return [path.name for path in self.directory.iterdir() if path.is_dir() and step_of(path.name) >= 0]

    def _latest(self) -> str | None:
        try:
            return (self.directory / LATEST).read_text(errors="replace").strip()
        except FileNotFoundError:
            return None

    def _description(self, name: str) -> bytes:
        return (self.directory / name / DESCRIPTION).read_bytes()

    def _sum(self, name: str, file: str) -> FileSum:
        return sum_file(self.directory / name / file)

    def check(self) -> None:
        """Raise OSError if nothing can be written."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=self.directory):
            pass


def sum_file(path: Path) -> FileSum:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileSum(name=path.name, size=path.stat().st_size, sha256=digest)
