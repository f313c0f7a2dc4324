"""The checkpoints of a run in a bucket: objects appear atomically, and a checkpoint counts once `latest` names it."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystemBase

from sailor_runtime.manifest import DESCRIPTION, LATEST, OWNER, FileSum, Listing, encode, step_of
from sailor_runtime.object_store import Store
from sailor_runtime.training.checkpoint.folder import sum_file
from sailor_runtime.training.checkpoint.place import CheckpointPlace


class CheckpointStore(CheckpointPlace):
    """See CheckpointFolder. Objects can't be renamed, so a checkpoint is written to its final place.

    Its description is written last and removed first; without one it is no checkpoint.
    """

    def __init__(self, url: str, keep: int) -> None:
        self._store = Store(url)
        self._keep = max(1, keep)
        self._written: _Objects | None = None

    def location(self, name: str) -> str:
        return f"{self._store.url}/{name}"

    def begin(self, step: int, run: str | None = None) -> None:
        """Prepare for a new checkpoint of a run; remains of its interrupted saves are removed.

        Raises FileExistsError if something that this run has not written has the name: it would be overwritten.
        """
        found, new = self._list(), f"step-{step}"
        if new in found.files and not self._is_own(found, new, run):
            raise FileExistsError(f"{self.location(new)} is not of this run and is not replaced; move or remove it")
        for name in {*self._left(found, run), *({new} & found.files.keys())}:
            self._remove(name)
        self._store.write(f"{new}/{OWNER}", (run or "").encode())

    def writer(self, step: int) -> FileSystemWriter:
        self._written = _Objects(self._store)
        writer = FileSystemWriter("")
        writer.fs, writer.path = self._written, f"step-{step}"
        return writer

    def reader(self, name: str) -> FileSystemReader:
        reader = _Reader("")
        reader.fs, reader.path = _Objects(self._store), name
        return reader

    def written(self, step: int, rank: int) -> list[FileSum]:
        """Return the files that this rank has written."""
        assert self._written is not None
        return self._written.sums

    def publish(
        self, step: int, description: Mapping[str, Any], sums: list[FileSum], damaged: Collection[str] = ()
    ) -> str:
        """Complete a checkpoint, then point `latest` at it; see CheckpointFolder."""
        name = f"step-{step}"
        self._store.write(f"{name}/{DESCRIPTION}", encode(description, sums).encode())
        self._store.write(LATEST, name.encode())
        for surplus in self._surplus(description.get("run"), name, damaged, self._keep):
            self._remove(surplus)
        return name

    def _list(self) -> Listing:
        """Return what is there, by one request, one for `latest`, and one for each checkpoint."""
        latest: str | None = None
        with contextlib.suppress(FileNotFoundError):
            latest = self._store.read(LATEST).decode(errors="replace").strip()
        names = [name for name in self._store.names() if step_of(name) >= 0]
        files = {name: frozenset(self._store.names(name)) for name in names}
        # A store may list a folder without objects.
        return Listing(latest=latest, files={name: found for name, found in files.items() if found})

    def _read(self, name: str) -> bytes:
        return self._store.read(name)

    def _sum(self, name: str, file: str) -> FileSum:
        size, sha256 = self._store.checksum(f"{name}/{file}")
        return FileSum(name=file, size=size, sha256=sha256)

    def _remove(self, name: str) -> None:
        self._store.remove(f"{name}/{DESCRIPTION}")
        # The owner last: it tells the next save that remains are its own.
        for file in sorted(self._store.names(name), key=lambda file: file == OWNER):
            self._store.remove(f"{name}/{file}")

    def check(self) -> None:
        """Raise StoreError if nothing can be written."""
        self._store.write(".writable", b"")


class _Object:
    """An object to read from: whole, or a part of it in one request, which is repeated within the store's patience."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._whole: io.BytesIO | None = None

    def part(self, offset: int, length: int) -> io.BytesIO:
        return io.BytesIO(self._store.part(self._name, offset, offset + length))

    def __getattr__(self, name: str) -> Any:
        """Offer the whole content to further reads: torch reads its metadata, which is small."""
        if self._whole is None:
            self._whole = io.BytesIO(self._store.read(self._name))
        return getattr(self._whole, name)


class _Reader(FileSystemReader):
    """Reads a tensor in one request; torch reads its file twenty times, each of which would be a request."""

    def _slice_file(self, file: Any, sinfo: Any) -> Any:
        return file.part(sinfo.offset, sinfo.length)


class _Objects(FileSystemBase):
    """The file system interface of torch.distributed.checkpoint, on a store.

    Files are first written on the node, so that an upload can be repeated and the checksum is that of the intended
    content. They have no name there, so that a killed rank leaves nothing behind.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._renamed: dict[str, int] = {}
        self.sums: list[FileSum] = []

    @contextlib.contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        name = str(path)
        if mode == "rb":
            yield _Object(self._store, name)
            return
        with tempfile.TemporaryFile() as file:
            # torch may close the file that it got.
            kept = os.dup(file.fileno())
            try:
                yield file
            except BaseException:
                os.close(kept)
                raise
        if name.endswith(".tmp"):
            self._renamed[name] = kept
        else:
            self._put(kept, name)

    def _put(self, kept: int, name: str) -> None:
        local = Path(f"/proc/self/fd/{kept}")
        try:
            found = sum_file(local)
            self._store.upload(local, name)
        finally:
            os.close(kept)
        self.sums.append(FileSum(name=name.rsplit("/", 1)[-1], size=found.size, sha256=found.sha256))

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        self._put(self._renamed.pop(str(path)), str(new_path))

    def concat_path(self, path: str | os.PathLike[str], suffix: str) -> str:
        return f"{path}/{suffix}"

    def init_path(self, path: str | os.PathLike[str]) -> str:
        return str(path)

    def mkdir(self, path: str | os.PathLike[str]) -> None:
        """Do nothing: a store has no folders."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True

    def exists(self, path: str | os.PathLike[str]) -> bool:
        folder, _, name = str(path).rpartition("/")
        return name in self._store.names(folder)

    def rm_file(self, path: str | os.PathLike[str]) -> None:
        self._store.remove(str(path))

    def ls(self, path: str | os.PathLike[str]) -> list[str]:
        return [f"{path}/{name}" for name in self._store.names(str(path))]
