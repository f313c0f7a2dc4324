"""What is common to checkpoints in folders and in buckets: which of them count, and what is wrong with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Any

from torch.distributed.checkpoint import FileSystemReader

from sailor_runtime.manifest import (
    DESCRIPTION,
    LATEST,
    OWNER,
    FileSum,
    Listing,
    checked_sums,
    decode,
    step_of,
)
from sailor_runtime.object_store import StoreError


class CheckpointPlace(ABC):
    """Checkpoints of one or more runs; `latest` names the newest."""

    @abstractmethod
    def location(self, name: str) -> str:
        """Return the path or URL of a name in this place."""

    @abstractmethod
    def reader(self, name: str) -> FileSystemReader: ...

    @abstractmethod
    def _list(self) -> Listing: ...

    @abstractmethod
    def _read(self, name: str) -> bytes:
        """Return the content of a file, named from this place."""

    @abstractmethod
    def _sum(self, name: str, file: str) -> FileSum: ...

    def newest_first(self) -> list[str]:
        """Return the checkpoints that count; see Listing."""
        return self._list().counting()

    def latest_fault(self) -> str | None:
        """Return what is wrong with `latest`, None if it names a checkpoint or nothing was saved here."""
        found = self._list()
        latest, names = found.latest, found.checkpoints()
        where = self.location(LATEST)
        if latest is None:
            return f"{where} is missing" if names else None
        if step_of(latest) < 0:
            return f"{where} does not name a checkpoint"
        return None if latest in names else f"{where} names {latest}, which is missing"

    def describe(self, name: str) -> dict[str, Any]:
        """Return a checkpoint's description. Raises OSError or ValueError if it is not as written."""
        fields = decode(self._read(f"{name}/{DESCRIPTION}"))
        checked_sums(fields, name)
        return fields

    def damage(self, name: str, share: int, shares: int) -> str | None:
        """Return what is wrong with every `shares`-th file from `share` on, None if they are as written."""
        try:
            sums = checked_sums(decode(self._read(f"{name}/{DESCRIPTION}")), name)
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

    def _left(self, found: Listing, run: str | None) -> list[str]:
        """Return what this run has left that does not count, such as an interrupted save."""
        counting = found.counting()
        return [name for name in found.files if name not in counting and self._is_own(found, name, run)]

    def _surplus(self, run: str | None, new: str, damaged: Collection[str], keep: int) -> list[str]:
        """Return what a run removes after it has saved `new`: its own damaged checkpoints and its oldest."""
        found = self._list()
        own = [name for name in found.files if self._is_own(found, name, run)]
        wrong = [name for name in own if name in damaged and name != new]
        good = [name for name in found.counting() if name in own and name not in wrong]
        return [*wrong, *good[keep:]]

    def _is_own(self, found: Listing, name: str, run: str | None) -> bool:
        """Whether a run has certainly written a checkpoint or an interrupted save."""
        files = found.files[name]
        if DESCRIPTION in files:
            try:
                return bool(decode(self._read(f"{name}/{DESCRIPTION}")).get("run") == run)
            except (OSError, ValueError):
                pass
        try:
            return OWNER in files and self._read(f"{name}/{OWNER}") == (run or "").encode()
        except OSError:
            return False
