"""The user's code: packed when a run begins, kept in its folder, and unpacked on every node under its hash."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.job import Job
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.units import counted

# Every node gets the code over the user's own connection; data and weights belong in a bucket.
MOST_BYTES = 100 * 2**20
MOST_FILES = 20_000
IGNORE_FILES = (".sailorignore", ".gitignore")
_NEVER = (".git/", "__pycache__/", "*.pyc", ".venv/", ".terraform/")
_KEPT = "code.tar.gz"
_MOST_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """A gzipped tar of a working folder and the SHA-256 of its content."""

    sha256: str
    content: bytes


def pack(job: Job, base: Path) -> Code | None:
    """Return a job's code, or None if the job names no folder; the same files give the same bytes.

    Leaves out files that `.sailorignore` names, or `.gitignore` if there is none. Raises RequestError for a folder that
    is missing or too large.
    """
    found = _shipped(job, base)
    if found is None:
        return None
    root, files, _ = found
    digest, raw = hashlib.sha256(), io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for path in files:
            entry = archive.gettarinfo(path, path.relative_to(root).as_posix())
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            data = path.read_bytes() if entry.isreg() else b""
            digest.update(f"{entry.name}\0{entry.mode}\0{entry.linkname}\0{len(data)}\0".encode() + data)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data) if entry.isreg() else None)
    return Code(sha256=digest.hexdigest(), content=gzip.compress(raw.getvalue(), compresslevel=6, mtime=0))


def described(job: Job, base: Path) -> str | None:
    """Describe which files of the job's folder nodes get and which are ignored. Raises as `pack` does."""
    found = _shipped(job, base)
    if found is None:
        return None
    root, files, left_out = found
    size = sum(path.lstat().st_size for path in files) / 2**20
    large = f" ({size:.1f} MiB)" if size >= 0.1 else ""
    text = f"every node gets {counted(len(files), 'file')} of {root}{large}"
    shown = [f"{path.relative_to(root)}{'/' * path.is_dir()}" for path in left_out[:_MOST_SHOWN]]
    more = [f"{len(left_out) - _MOST_SHOWN} more"] if len(left_out) > _MOST_SHOWN else []
    return f"{text}; its ignore files leave out {', '.join(shown + more)}" if shown else text


def _shipped(job: Job, base: Path) -> tuple[Path, list[Path], list[Path]] | None:
    """Return a job's folder, its files to ship, and its ignored files."""
    if job.shipped_folder is None:
        return None
    root = base.absolute() / Path(job.shipped_folder).expanduser()
    if not root.is_dir():
        what = "is no folder" if root.exists() else "is not there"
        raise RequestError([Problem(path="workdir", message=f"is {job.shipped_folder!r}, and {root} {what}")])
    left_out: list[Path] = []
    files = sorted(_files(root, left_out), key=lambda path: path.relative_to(root).as_posix())
    _check_size(root, files)
    return root, files, left_out


def store_code(code: Code | None, folder: RunFolder) -> None:
    """Keep the code in the run's folder, so that a controller that takes over runs the same code."""
    if code is not None:
        path = folder.path / _KEPT
        path.write_bytes(code.content)
        path.chmod(0o600)
        folder.write_text("code.sha256", code.sha256)


def stored_code(folder: RunFolder) -> Code | None:
    path = folder.path / _KEPT
    if not path.is_file():
        return None
    return Code(sha256=(folder.path / "code.sha256").read_text().strip(), content=path.read_bytes())


def _files(root: Path, left_out: list[Path]) -> Iterator[Path]:
    """Yield the files and links of a folder to ship; an ignore file applies to its folder and those below."""

    def below(folder: Path, rules: tuple[tuple[Path, GitIgnoreSpec], ...]) -> Iterator[Path]:
        found = _rules(folder)
        rules = rules if found is None else (*rules, (folder, found))
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path, is_folder = Path(entry.path), entry.is_dir(follow_symlinks=False)
            if _ignored(path, is_folder, rules):
                if not _ignored(path, is_folder, rules[:1]):
                    left_out.append(path)
                continue
            if is_folder:
                yield from below(path, rules)
            elif entry.is_file(follow_symlinks=False) or entry.is_symlink():
                yield path

    yield from below(root, ((root, GitIgnoreSpec.from_lines(_NEVER)),))


def _rules(folder: Path) -> GitIgnoreSpec | None:
    for name in IGNORE_FILES:
        if (folder / name).is_file():
            return GitIgnoreSpec.from_lines((folder / name).read_text(errors="replace").splitlines())
    return None


def _ignored(path: Path, is_folder: bool, rules: tuple[tuple[Path, GitIgnoreSpec], ...]) -> bool:
    """Whether the innermost rule that matches a path ignores it."""
    ignored = False
    for folder, spec in rules:
        name = path.relative_to(folder).as_posix() + ("/" if is_folder else "")
        stated = spec.check_file(name).include
        ignored = ignored if stated is None else stated
    return ignored


def _check_size(root: Path, files: list[Path]) -> None:
    sizes = {path: path.lstat().st_size for path in files}
    total = sum(sizes.values())
    if total <= MOST_BYTES and len(files) <= MOST_FILES:
        return
    largest = sorted(sizes, key=lambda path: -sizes[path])[:3]
    listed = ", ".join(f"{path.relative_to(root)} ({sizes[path] / 2**20:.0f} MiB)" for path in largest)
    raise RequestError(
        [
            Problem(
                path="workdir",
                message=f"{root} has {total / 2**20:.0f} MiB in {len(files)} files; nodes get at most "
                f"{MOST_BYTES // 2**20} MiB in {MOST_FILES} files",
                hint=f"the largest are {listed}; leave files out with {IGNORE_FILES[0]}, and keep data in a bucket",
            )
        ]
    )
