"""Copies a command's complete checkpoints from its local folder to the run's place for them, and back to every node.

Each file or folder at the top of the folder is one checkpoint. It is complete once nothing writes to it any more. Every
node with a part lists a folder's files in `.sailor/NAME.RANK.json`, written after them. A node that sees a change first
writes a `.begun` mark. A checkpoint is not brought back while such a node has not ended, or while a file differs from
its list. Copies of one that never ended are removed before the next start.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import time
import uuid
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sailor_runtime.object_store import Store, StoreError, is_url

MARKS = ".sailor"
# A save may pause between two files, so a folder must be unchanged for longer than a file.
_QUIET_FOLDER_S, _QUIET_FILE_S = 5.0, 1.0
# A command that has handled SIGTERM continues for at least this time.
_HANDLED_S = 0.2
_UNFINISHED = (".tmp", ".partial", ".incomplete", ".part")
_MARK = re.compile(r"(.+)\.(\d+)\.(json|begun)")
_STAGED = ".staged-"
_LINKS = "links"
# Of a file of safetensors; its reader accepts no longer one.
_LONGEST_HEADER = 100_000_000

# By path below the checkpoint, "" for one that is a file: size and time of change.
Files = dict[str, tuple[int, int]]


class Folder:
    """A folder that all nodes reach, with the interface of `Store`; files appear atomically."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.mkdir(parents=True, exist_ok=True)

    def names(self, folder: str = "") -> list[str]:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            return sorted(os.listdir(self._path / folder))
        return []

    def read(self, name: str) -> bytes:
        return (self._path / name).read_bytes()

    def write(self, name: str, content: bytes) -> None:
        self._put(name, lambda staged: staged.write_bytes(content))

    def upload(self, path: Path, name: str) -> None:
        self._put(name, lambda staged: shutil.copyfile(path, staged))

    def checksum(self, name: str, into: Path) -> tuple[int, str]:
        shutil.copyfile(self._path / name, into)
        return into.stat().st_size, ""

    def remove(self, name: str) -> None:
        path = self._path / name
        path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            # The folder of marks stays, since other nodes may be about to write there.
            while path.parent not in (self._path, self._path / MARKS):
                path = path.parent
                path.rmdir()

    def _put(self, name: str, write: Callable[[Path], Any]) -> None:
        path = self._path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        staged = self._path / MARKS / f"{_STAGED}{uuid.uuid4().hex}"
        staged.parent.mkdir(exist_ok=True)
        write(staged)
        os.replace(staged, path)


def open_store(directory: str) -> Store | Folder:
    """Return the place of a run's checkpoints. Raises StoreError or OSError if it is unreachable."""
    return Store(directory) if is_url(directory) else Folder(Path(directory))


@dataclass(slots=True)
class _Seen:
    files: Files
    since: float
    changed_at: float


@dataclass(slots=True)
class Checkpoints:
    """The checkpoints of one node; `attempt` identifies a start on all nodes."""

    folder: Path
    store: Store | Folder
    rank: int
    attempt: str
    _kept: dict[str, Files] = field(default_factory=dict)
    _mine: set[str] = field(default_factory=set)
    _seen: dict[str, _Seen] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set)
    # The first node's links to checkpoints, such as `latest.pt`: their targets by name.
    _links: dict[str, str] = field(default_factory=dict)
    # Inodes of entries whose name says that they are being saved, and of renamed ones that are not copied yet.
    _staged: set[int] = field(default_factory=set)
    _renamed: set[int] = field(default_factory=set)
    # Files that were restored here and that other nodes have saved.
    _others: dict[str, Files] = field(default_factory=dict)

    def restore(self) -> list[str]:
        """Make the local folder equal to the complete checkpoints; return their names, newest last.

        Raises StoreError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.rank == 0:
            self._remove_torn()
        complete = self.complete()
        for name in os.listdir(self.folder):
            if name not in complete:
                _remove(self.folder / name)
        found = [name for name, files in complete.items() if self._copied_in(name, files)]
        self._kept = {name: _files(self.folder / name) for name in found}
        for name, files in self._kept.items():
            mine = self._saved_before(name)
            self._others[name] = {path: found for path, found in files.items() if path not in mine}
        self._links = self._links_kept()
        for name, target in self._links.items():
            if name not in complete and self._leads_to_copied(target, self._links):
                (self.folder / name).symlink_to(target)
        return found

    def _remove_torn(self) -> None:
        """Remove checkpoints that earlier attempts have begun and not ended, and partly copied files."""
        for mark in self.store.names(MARKS):
            match = _matched(mark)
            if mark.startswith(_STAGED):
                self.store.remove(f"{MARKS}/{mark}")
            elif match and match[3] == "begun" and self._read(mark).get("attempt") != self.attempt:
                self._remove(match[1])

    def _remove(self, name: str) -> None:
        """Remove all nodes' copies of a checkpoint; if interrupted, it counts as begun and not ended."""
        marks = [mark for mark in self.store.names(MARKS) if (match := _matched(mark)) and match[1] == name]
        files = {path for mark in marks for path in self._part(mark).get("files", ())}
        self._begin(name, files)
        for path in sorted(files):
            self.store.remove(f"{name}/{path}" if path else name)
        for mark in marks:
            if mark != f"{name}.{self.rank}.begun":
                self.store.remove(f"{MARKS}/{mark}")
        self._end(name)

    def _read(self, mark: str) -> dict[str, Any]:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return dict(json.loads(self.store.read(f"{MARKS}/{mark}")))
        return {}

    def _part(self, mark: str) -> dict[str, Any]:
        """Return the content of a node's mark. Raises StoreError if it names a file outside of its checkpoint.

        Whoever can write to the place could otherwise overwrite any file of each node, and of the controller's machine.
        """
        part = self._read(mark)
        for path in part.get("files", ()):
            _check_inside(path, mark)
        return part

    def _links_kept(self) -> dict[str, str]:
        """Return the targets of the kept links by name. Raises StoreError if one leads out of the folder."""
        links = self._read(_LINKS)
        for name, target in links.items():
            _check_name(name, _LINKS)
            _check_inside(target, _LINKS)
        return links

    def _saved_before(self, name: str) -> Files:
        return dict(self._part(f"{name}.{self.rank}.json").get("files", {}))

    def _copied_in(self, name: str, files: Files) -> bool:
        target = self.folder / name
        here = _files(target) if target.exists() else {}
        for path in here.keys() - files.keys():
            _remove(target / path)
        for path, (size, changed) in files.items():
            if here.get(path) == (size, changed):
                continue
            local = target / path if path else target
            local.parent.mkdir(parents=True, exist_ok=True)
            partial = local.with_name(f".{local.name}.partial")
            try:
                whole = self.store.checksum(f"{name}/{path}" if path else name, into=partial)[0] == size
            except FileNotFoundError:
                whole = False
            if not whole:
                partial.unlink(missing_ok=True)
                _remove(target)
                return False
            os.utime(partial, ns=(changed, changed))
            os.replace(partial, local)
        return True

    def complete(self) -> dict[str, Files]:
        """Return the complete checkpoints and their files, the oldest first."""
        ended: dict[str, dict[int, dict[str, Any]]] = {}
        begun: set[tuple[str, int]] = set()
        for mark in self.store.names(MARKS):
            match = _matched(mark)
            if match is None:
                continue
            name, rank = match[1], int(match[2])
            if match[3] == "begun":
                begun.add((name, rank))
                continue
            if part := self._part(mark):
                ended.setdefault(name, {})[rank] = part
        for name, _ in begun:
            ended.pop(name, None)
        found: dict[str, Files] = {}
        for name in sorted(ended, key=lambda name: (max(part["at"] for part in ended[name].values()), name)):
            files: Files = {}
            for part in sorted(ended[name].values(), key=lambda part: part["at"]):
                files |= {path: (size, changed) for path, (size, changed) in part["files"].items()}
            if not _unfinished(files):
                found[name] = files
        return found

    def poll(
        self, written: Iterable[str], *, over: bool = False, clean: bool = True, stop_requested_at: float | None = None
    ) -> list[dict[str, Any]]:
        """Copy newly complete checkpoints; return an event for each. `written`: files that are open for writing.

        `over`: the command has ended. What it left is then complete in three cases: it ended well (`clean`); it handled
        the request to stop, because it wrote after it (`stop_requested_at`, in seconds since the epoch); or the format
        shows it.
        """
        now = time.monotonic()
        open_below = {Path(path).relative_to(self.folder).parts[0] for path in written if _below(path, self.folder)}
        saved = []
        inodes = _inodes(self.folder)
        names = sorted(name for name in inodes if not name.startswith(".") and not name.endswith(_UNFINISHED))
        self._renamed = {inodes[name] for name in names} & (self._renamed | self._staged)
        self._staged = {inodes[name] for name in inodes.keys() - names}
        self._begin_changed(names)
        for name in names:
            files = _files(self.folder / name)
            seen = self._seen.get(name)
            if seen is None or seen.files != files:
                newest = max((changed for _, changed in files.values()), default=0) / 1e9
                seen = self._seen[name] = _Seen(files=files, since=now, changed_at=newest)
            if not files or self._kept.get(name) == files or (_unfinished(files) and self.rank == 0):
                continue
            if name in open_below:
                seen.since = now
            quiet_s = _QUIET_FILE_S if "" in files else _QUIET_FOLDER_S
            quiet = now - seen.since >= quiet_s
            handled = stop_requested_at is not None and seen.changed_at >= stop_requested_at + _HANDLED_S
            renamed = inodes[name] in self._renamed and name not in open_below
            if quiet or renamed or (over and (clean or handled or self._is_known_complete(name, files))):
                # A copy may have taken long.
                self._begin_changed(names)
                saved.append(self._copied(name, files))
                self._renamed.discard(inodes[name])
        links = {name: target for name in names if (target := _target(self.folder, name)) is not None}
        self._drop_removed(set(names) - links.keys())
        self._keep_links(links)
        return saved

    def _keep_links(self, links: dict[str, str]) -> None:
        """Keep the first node's links; one to a checkpoint that is not copied yet keeps its target of before."""
        copied = {name: target for name, target in links.items() if self._leads_to_copied(target, links)}
        wanted = {name: target for name, target in self._links.items() if name in links} | copied
        if self.rank == 0 and wanted != self._links:
            self._links = wanted
            self.store.write(f"{MARKS}/{_LINKS}", json.dumps(wanted, sort_keys=True).encode())

    def _leads_to_copied(self, target: str, links: Mapping[str, str]) -> bool:
        """Return whether a target is in a copied checkpoint, perhaps by way of other links."""
        top = target.partition("/")[0]
        for _ in links:
            top = links.get(top, top).partition("/")[0]
        return top in self._kept

    def _is_known_complete(self, name: str, files: Files) -> bool:
        """Return whether a known format shows that the checkpoint is complete.

        In a folder saved again under the same name, the last file may be an old one.
        """
        if "" in files:
            return _is_whole_file(self.folder / name)
        if name in self._kept:
            return False
        if self.rank == 0:
            return (_is_trainers(files) or _is_sharded(files)) and not _unfinished(files)
        # Shards count only once the first node has the last file, which is written after all of them.
        rest = (path for path in files if not path.endswith(".distcp"))
        return _is_sharded(files) and all(_is_whole_file(self.folder / name / path) for path in rest)

    def _begin_changed(self, names: list[str]) -> None:
        """Mark each new or changed folder: this node has an unfinished part of it.

        A checkpoint that only this node has saved stays complete in the store until it is copied again.
        """
        for name in names:
            files = _files(self.folder / name)
            if not files or self._kept.get(name) == files:
                self._end(name)
            elif "" not in files and name not in self._begun and (name not in self._kept or self._is_shared(name)):
                self._begin(name, ())

    def _begin(self, name: str, files: Iterable[str]) -> None:
        mark = json.dumps({"attempt": self.attempt, "files": sorted(files)}).encode()
        self.store.write(f"{MARKS}/{name}.{self.rank}.begun", mark)
        self._begun.add(name)

    def _is_shared(self, name: str) -> bool:
        marks = (_matched(mark) for mark in self.store.names(MARKS))
        return any(mark is not None and mark[1] == name and int(mark[2]) != self.rank for mark in marks)

    def _end(self, name: str) -> None:
        if name in self._begun:
            self.store.remove(f"{MARKS}/{name}.{self.rank}.begun")
            self._begun.remove(name)

    def _copied(self, name: str, files: Files) -> dict[str, Any]:
        """Copy this node's part of a checkpoint. Files that it no longer has are removed."""
        before, others, folder = self._kept.get(name, {}), self._others.get(name, {}), files
        files = {path: found for path, found in files.items() if others.get(path) != found}
        if "" not in files:
            self._begin(name, files.keys() | before.keys() - others.keys())
        for path, found in files.items():
            if before.get(path) != found:
                self.store.upload(
                    self.folder / name / path if path else self.folder / name, f"{name}/{path}" if path else name
                )
        for path in before.keys() - files.keys() - others.keys():
            self.store.remove(f"{name}/{path}" if path else name)
        mark = json.dumps({"at": time.time(), "files": files}).encode()
        self.store.write(f"{MARKS}/{name}.{self.rank}.json", mark)
        self._end(name)
        self._kept[name] = folder
        self._mine.add(name)
        size = sum(size for size, _ in files.values())
        changed_at = max((changed for _, changed in files.values()), default=0) / 1e9
        return {"name": name, "files": len(files), "bytes": size, "changed_at": changed_at}

    def _drop_removed(self, names: set[str]) -> None:
        """Remove what the command has removed, as long as something is left; the first node removes all parts."""
        for name in self._begun - names:
            self._end(name)
        for name in self._kept.keys() - names:
            if not self._kept.keys() & names:
                continue
            if self.rank == 0:
                self._remove(name)
            elif name in self._mine:
                self.store.remove(f"{MARKS}/{name}.{self.rank}.json")
                for path in self._kept[name].keys() - self._others.pop(name, {}).keys():
                    self.store.remove(f"{name}/{path}" if path else name)
            else:
                continue
            del self._kept[name]


def step_of(name: str) -> int | None:
    """Return the step in a checkpoint's name: the number after such a word, else the last separate number.

    DeepSpeed leaves `zero_to_fp32.py` next to its checkpoints, which is not step 32.
    """
    named = re.findall(r"(?:step|checkpoint|iter|count)[-_=]*(\d+)", name)
    numbers = named[:1] or re.findall(r"(?<![A-Za-z\d])\d+", name)[-1:]
    return int(numbers[0]) if numbers else None


def _matched(mark: str) -> re.Match[str] | None:
    """Return the parts of a mark's name; None for another file. Raises StoreError if it is no checkpoint's."""
    match = _MARK.fullmatch(mark)
    if match is not None:
        _check_name(match[1], mark)
    return match


def _check_name(name: str, mark: str) -> None:
    if "/" in name or name in (os.curdir, os.pardir):
        raise StoreError(f"{MARKS}/{mark} names the checkpoint {name!r}, which is not in the folder of checkpoints")


def _check_inside(path: object, mark: str) -> None:
    """Raise StoreError unless a path of a mark stays in its folder; "" is the checkpoint itself."""
    if not isinstance(path, str) or (path and {"", os.curdir, os.pardir} & set(path.split("/"))):
        raise StoreError(f"{MARKS}/{mark} names {path!r}, which is not in its folder")


def _unfinished(files: Files) -> bool:
    """Whether a known format lacks the file that it writes last."""
    if _is_trainers(files) and not _has_name(files, "trainer_state.json"):
        return True
    shards, ended = (
        {path.rpartition("/")[0] for path in files if path.endswith(end)} for end in (".distcp", ".metadata")
    )
    return bool(shards - ended)


def _is_trainers(files: Files) -> bool:
    """Whether a folder is one of Hugging Face's Trainer, as its first process leaves it."""
    return _has_name(files, "training_args.bin") and (_has_name(files, "optimizer") or _has_name(files, "rng_state"))


def _is_sharded(files: Files) -> bool:
    """Whether a folder has shards of torch.distributed.checkpoint."""
    return any(path.endswith(".distcp") for path in files)


def _has_name(files: Files, start: str) -> bool:
    return any(path.rpartition("/")[2].startswith(start) for path in files)


def _is_whole_file(path: Path) -> bool:
    """Whether a file is complete: of torch.save (a zip archive, its directory last) or of safetensors."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        if zipfile.is_zipfile(path):
            return True
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            if 0 < size <= _LONGEST_HEADER:
                tensors = [each for name, each in json.loads(file.read(size)).items() if name != "__metadata__"]
                return 8 + size + max(int(each["data_offsets"][1]) for each in tensors) == path.stat().st_size
    return False


def _files(path: Path) -> Files:
    """Return the files of a checkpoint; temporary files count, so that it does not seem unchanged."""
    if path.is_symlink():
        return {}
    with contextlib.suppress(FileNotFoundError):
        if path.is_file():
            found = path.stat()
            return {"": (found.st_size, found.st_mtime_ns)}
        files: Files = {}
        for folder, _, names in os.walk(path):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    found = os.stat(os.path.join(folder, name))
                    files[os.path.relpath(os.path.join(folder, name), path)] = (found.st_size, found.st_mtime_ns)
        return files
    return {}


def _target(folder: Path, name: str) -> str | None:
    """Return the target of a link to another entry of the folder; None for other links and anything else."""
    try:
        aim = folder / os.readlink(folder / name)
    except OSError:
        return None
    # An absolute target may name the folder without the links on the way to it.
    real = folder.resolve()
    target = os.path.relpath(aim, real if aim.is_relative_to(real) else folder)
    return None if target in (os.curdir, name) or target.partition("/")[0] == os.pardir else target


def _inodes(folder: Path) -> dict[str, int]:
    """Return the inode of each name in a folder."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as found:
        return {entry.name: entry.inode() for entry in found}
    return {}


def _below(path: str, folder: Path) -> bool:
    return path.startswith(f"{folder}/")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


__all__ = ["Checkpoints", "StoreError", "open_store", "step_of"]
