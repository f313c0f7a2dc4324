"""What is common to checkpoints in folders and in buckets: which of them count, and what is wrong with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch.distributed.checkpoint import FileSystemReader

from sailor_runtime.object_store import StoreError
from sailor_runtime.training.checkpoint.manifest import LATEST, FileSum, checked_sums, decode, step_of


class CheckpointPlace(ABC):
    """Checkpoints of one or more runs; `latest` names the newest."""

    @abstractmethod
    def location(self, name: str) -> str:
        """Return the path or URL of a name in this place."""

    @abstractmethod
    def reader(self, name: str) -> FileSystemReader: ...

    @abstractmethod
    def _names(self) -> list[str]:
        """Return the names of all checkpoints, also of those that `latest` does not name yet."""

    @abstractmethod
    def _latest(self) -> str | None:
        """Return the content of `latest`, None if there is no such file."""

    @abstractmethod
    def _description(self, name: str) -> bytes:
        """Return the content of a checkpoint's `sailor.json`."""

    @abstractmethod
    def _sum(self, name: str, file: str) -> FileSum: ...

    def newest_first(self) -> list[str]:
        """Return the checkpoints that count: the one that `latest` names, then older ones.

        If there are none, `latest` is of no use and all count. Their checksums then tell which are complete.
        """
        names = sorted(self._names(), key=step_of, reverse=True)
        newest = step_of(self._latest() or "")
        return [name for name in names if step_of(name) <= newest] or names

    def latest_fault(self) -> str | None:
        """Return what is wrong with `latest`, None if it names a checkpoint or nothing was saved here."""
        latest, names = self._latest(), self._names()
        where = self.location(LATEST)
        if latest is None:
            return f"{where} is missing" if names else None
        if step_of(latest) < 0:
            return f"{where} does not name a checkpoint"
        return None if latest in names else f"{where} names {latest}, which is missing"

    def describe(self, name: str) -> dict[str, Any]:
        """Return a checkpoint's description. Raises OSError or ValueError if it is not as written."""
        fields = decode(self._description(name))
        checked_sums(fields, name)
        return fields

    def damage(self, name: str, share: int, shares: int) -> str | None:
        """Return what is wrong with every `shares`-th file from `share` on, None if they are as written."""
        try:
            sums = checked_sums(decode(self._description(name)), name)
            for each in sums[share::shares]:
                if self._sum(name, each.name) != each:
                    return f"{self.location(name)}/{each.name} is not what was written"
            unchecked = self._files_of_tensors(name) - {each.name for each in sums} if share == 0 else set()
        except (OSError, ValueError) as error:
            return f"{self.location(name)}: {error}"
        return f"{self.location(name)}/{min(unchecked)} has no checksum" if unchecked else None

    def _files_of_tensors(self, name: str) -> set[str]:
        """Return the names of the files that hold a checkpoint's tensors. Raises ValueError if unreadable."""
        try:
            places = self.reader(name).read_metadata().storage_data
            return {place.relative_path for place in places.values()}
        except (OSError, StoreError):
            raise
        # Reading a damaged pickle may raise anything.
        except Exception as error:
            raise ValueError(f"its metadata can't be read: {error}") from error

    def _own(self, run: str | None) -> list[str]:
        """Return the checkpoints that count and that no other run has written, newest first."""
        return [name for name in self.newest_first() if not self._is_of_another(name, run)]

    def _left_by(self, run: str | None) -> list[str]:
        """Return the checkpoints that don't count and that this run has written; not what can't be read."""
        counting = self.newest_first()
        others = [name for name in self._names() if name not in counting]
        return [name for name in others if not self._is_of_another(name, run, unreadable=True)]

    def _is_of_another(self, name: str, run: str | None, *, unreadable: bool = False) -> bool:
        """Whether another run has written a checkpoint; `unreadable` is the answer if nothing tells."""
        try:
            return bool(decode(self._description(name)).get("run", run) != run)
        except (OSError, ValueError):
            return unreadable
