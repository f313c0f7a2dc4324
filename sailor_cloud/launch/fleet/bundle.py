"""Packs the runtime for nodes, named by its content."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.resources import runtime_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A gzipped tar of the `sailor_runtime` package and the SHA-256 of its content."""

    sha256: str
    content: bytes


def pack_runtime(root: Path | None = None) -> Bundle:
    """Return the installed runtime as a bundle; the same files give the same bytes."""
    base = runtime_root() if root is None else root
    digest = hashlib.sha256()
    tar_bytes = io.BytesIO()
    with tarfile.open(fileobj=tar_bytes, mode="w") as archive:
        for path in sorted((base / "sailor_runtime").rglob("*.py")):
            name = path.relative_to(base).as_posix()
            data = path.read_bytes()
            digest.update(f"{name}\0{len(data)}\0".encode() + data)
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            entry.mode = 0o600
            archive.addfile(entry, io.BytesIO(data))
    return Bundle(sha256=digest.hexdigest(), content=gzip.compress(tar_bytes.getvalue(), mtime=0))
