"""Objects under a URL such as gs://bucket/run or s3://bucket/run, through fsspec.

If installed (extra `stores`), the package obstore serves gs:// and s3://, with the credentials of the node's
environment or its instance role. Without it fsspec looks for gcsfs or s3fs.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")

PATIENCE_VARIABLE = "SAILOR_STORE_PATIENCE_S"
_PATIENCE_S = 120.0
_LONGEST_PAUSE_S = 15.0
_CHUNK_BYTES = 32 * 2**20
_OBSTORE_PROTOCOLS = ("gs", "s3")
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT", "AWS_ENDPOINT_URL_S3", "STORAGE_EMULATOR_HOST")


class StoreError(Exception):
    """A store failed for the whole time that a request may take."""


def is_url(place: str) -> bool:
    return "://" in place


def leave(code: int) -> NoReturn:
    """End this process immediately: obstore's threads (0.12.1) silently abort some interpreters during shutdown."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Store:
    """The objects below one URL; each call is repeated with growing pauses before it fails.

    A store may be unreachable for `patience_s` seconds (from SAILOR_STORE_PATIENCE_S, default 120). Objects appear
    atomically. Raises StoreError if a call finally fails, FileNotFoundError for missing objects.
    """

    def __init__(self, url: str, patience_s: float | None = None) -> None:
        self.url = url.rstrip("/")
        given = os.environ.get(PATIENCE_VARIABLE)
        self._patience_s = patience_s if patience_s is not None else float(given) if given else _PATIENCE_S
        self._files = _file_system(self.url)

    def names(self, folder: str = "") -> list[str]:
        """Return the names directly below a folder, sorted; empty if there is no such folder."""

        def listed() -> list[str]:
            self._files.invalidate_cache()
            with contextlib.suppress(FileNotFoundError):
                return sorted(
                    {str(name).rstrip("/").rsplit("/", 1)[-1] for name in self._files.ls(place, detail=False)}
                )
            return []

        place = self._place(folder)
        return self._with_retries(f"list {place}", listed)

    def read(self, name: str) -> bytes:
        place = self._place(name)
        return self._with_retries(f"read {place}", lambda: bytes(self._files.cat_file(place)))

    def write(self, name: str, content: bytes) -> None:
        place = self._place(name)
        self._with_retries(f"write {place}", lambda: self._files.pipe_file(place, content), writes=True)

    def upload(self, path: Path, name: str) -> None:
        place = self._place(name)
        self._with_retries(f"write {place}", lambda: self._files.put_file(str(path), place), writes=True)

    def checksum(self, name: str, into: Path | None = None) -> tuple[int, str]:
        """Return size and SHA-256 of an object, read in parts; `into` gets the content."""
        place, digest = self._place(name), hashlib.sha256()
        size = int(self._with_retries(f"read {place}", lambda: self._files.info(place)["size"]))
        with contextlib.ExitStack() as stack:
            copy = None if into is None else stack.enter_context(into.open("wb"))
            for start in range(0, size, _CHUNK_BYTES):
                part = self.part(name, start, min(size, start + _CHUNK_BYTES))
                digest.update(part)
                if copy is not None:
                    copy.write(part)
        return size, digest.hexdigest()

    def part(self, name: str, start: int, end: int) -> bytes:
        """Return bytes [start, end) of an object."""
        place = self._place(name)
        return self._with_retries(f"read {place}", lambda: bytes(self._files.cat_file(place, start=start, end=end)))

    def remove(self, name: str) -> None:
        """Remove an object; a missing one is no error."""

        def removed() -> None:
            with contextlib.suppress(FileNotFoundError):
                self._files.rm_file(place)

        place = self._place(name)
        self._with_retries(f"remove {place}", removed)

    def _place(self, name: str) -> str:
        return f"{self.url}/{name}" if name else self.url

    def _with_retries(self, what: str, action: Callable[[], _T], *, writes: bool = False) -> _T:
        deadline, pause_s = time.monotonic() + self._patience_s, 0.25
        while True:
            try:
                return action()
            except FileNotFoundError as error:
                if writes:
                    raise StoreError(f"can't {what}: no such bucket") from error
                raise
            # Every backend has its own errors, without a common type.
            except Exception as error:
                if isinstance(error, PermissionError) or time.monotonic() + pause_s > deadline:
                    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                    raise StoreError(f"can't {what}: {reason}") from error
            time.sleep(pause_s)
            pause_s = min(2.0 * pause_s, _LONGEST_PAUSE_S)


def _file_system(url: str) -> Any:
    """Return the file system for a URL. Raises StoreError if no installed package serves it."""
    protocol = url.split("://", 1)[0]
    try:
        import fsspec

        if protocol in _OBSTORE_PROTOCOLS:
            with contextlib.suppress(ImportError):
                return _obstore(protocol)
        return fsspec.filesystem(protocol)
    except (ImportError, ValueError) as error:
        raise StoreError(f"no package on this node serves {url}; install 'sailor-cloud[stores]'") from error


def _obstore(protocol: str) -> Any:
    from obstore.fsspec import FsspecStore

    return FsspecStore(
        protocol,
        client_options={
            "connect_timeout": timedelta(seconds=10),
            "timeout": timedelta(seconds=120),
            # Only an endpoint that was named without encryption is used without it.
            "allow_http": any(os.environ.get(name, "").startswith("http://") for name in _ENDPOINTS),
        },
        retry_config={"max_retries": 2, "retry_timeout": timedelta(seconds=30)},
        # One file system per process: its connections don't survive a fork.
        skip_instance_cache=True,
    )


def cache() -> Path:
    """Return this node's folder for content fetched from stores."""
    return Path(os.environ.get("SAILOR_RUNTIME_CACHE") or tempfile.gettempdir(), "fetched")


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Make a folder, and hold it as the only process of this node that works in it."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def local_copy(place: str, folder: Path) -> Path:
    """Return a local file with the content of `place`: itself, or a URL's content, fetched once per node."""
    if not is_url(place):
        return Path(place)
    base, _, name = place.rpartition("/")
    target = folder / hashlib.sha256(place.encode()).hexdigest()[:16] / name
    with exclusive(target.parent):
        if not target.exists():
            partial = target.with_name(f".{name}.partial")
            Store(base).checksum(name, into=partial)
            partial.rename(target)
    return target
