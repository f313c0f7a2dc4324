"""The files of a place for checkpoints that hold no tensors, such as `sailor.json` of each checkpoint and `latest`.

Needs no torch.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

DESCRIPTION = "sailor.json"
LATEST = "latest"
# In each checkpoint: the run that writes it. It tells whose an interrupted save is.
OWNER = ".sailor-run"
# torch's list of tensors, and of the files that hold them.
METADATA = ".metadata"
_STEP_FOLDER = re.compile(r"step-(\d+)")
# The checksum of all other fields; older versions wrote none.
_OWN_CHECKSUM = "description_sha256"
# The fields that loading needs. A checksum covers them, too.
_NUMBERS = ("step", "updates", "loss_scale", "good_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSum:
    """The expected size and checksum of a file."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What one look at a place has found: the content of `latest`, and the names of the files in each `step-N`."""

    latest: str | None
    files: Mapping[str, Collection[str]]

    def checkpoints(self) -> list[str]:
        """Return the checkpoints, newest first: those with a description, and the one that `latest` names."""
        found = [name for name, files in self.files.items() if DESCRIPTION in files or name == self.latest]
        return sorted(found, key=step_of, reverse=True)

    def counting(self) -> list[str]:
        """Return the checkpoints that count: the one that `latest` names, then older ones.

        If there are none, `latest` is of no use and all count. Their checksums then tell which are complete.
        """
        names, newest = self.checkpoints(), step_of(self.latest or "")
        return [name for name in names if step_of(name) <= newest] or names


def newest_whole(
    names: Iterable[str], latest: str | None, description: Callable[[str], bytes]
) -> tuple[str, list[FileSum]]:
    """Return the newest checkpoint with a whole description, by the rule of Listing.counting, and its files.

    Reads only the descriptions that it needs. Raises ValueError if there is none.
    """
    steps = sorted((name for name in names if step_of(name) >= 0), key=step_of, reverse=True)
    newest = step_of(latest or "")
    faults: list[str] = []
    for group in ([n for n in steps if step_of(n) <= newest], [n for n in steps if step_of(n) > newest]):
        for name in group:
            try:
                return name, checked_sums(decode(description(name)), name)
            except (FileNotFoundError, NotADirectoryError):
                # Another tool's, unless `latest` names it.
                faults += [f"{name} has no {DESCRIPTION}"] if name == latest else []
            except ValueError as error:
                faults.append(str(error))
        if faults:
            break
    raise ValueError(faults[0] if faults else f"no step-N has a {DESCRIPTION}")


def encode(description: Mapping[str, Any], sums: Sequence[FileSum]) -> str:
    """Return the text of a checkpoint's `sailor.json`."""
    files = {each.name: {"size": each.size, "sha256": each.sha256} for each in sums}
    # A round trip through JSON gives the fields that a reader finds.
    fields = json.loads(json.dumps({**description, "files": files}))
    return json.dumps({**fields, _OWN_CHECKSUM: _checksum(fields)})


def decode(text: bytes) -> dict[str, Any]:
    """Return the fields of a `sailor.json`. Raises ValueError if it is no JSON object."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{DESCRIPTION} is no JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError(f"{DESCRIPTION} is no JSON object")
    return fields


def checked_sums(fields: Mapping[str, Any], name: str) -> list[FileSum]:
    """Return the files of the checkpoint `name`, sorted. Raises ValueError if its description is not as written."""
    if _OWN_CHECKSUM in fields:
        others = {key: value for key, value in fields.items() if key != _OWN_CHECKSUM}
        if fields[_OWN_CHECKSUM] != _checksum(others):
            raise ValueError(f"{DESCRIPTION} is not what was written")
    else:
        for key in _NUMBERS:
            if not isinstance(fields.get(key), int | float):
                raise ValueError(f"{DESCRIPTION} has no number {key!r}")
        if "run" not in fields:
            raise ValueError(f"{DESCRIPTION} has no 'run'")
    if fields.get("step") != step_of(name):
        raise ValueError(f"{DESCRIPTION} is of step {fields.get('step')!r}")
    files = fields.get("files")
    if not isinstance(files, dict) or METADATA not in files:
        raise ValueError(f"{DESCRIPTION} has no checksum of {METADATA}")
    return [_sum(file, files[file]) for file in sorted(files)]


def _sum(file: str, found: Any) -> FileSum:
    if PurePosixPath(file).name != file:
        raise ValueError(f"{DESCRIPTION} names {file!r}, which is not in its folder")
    try:
        return FileSum(name=file, size=int(found["size"]), sha256=str(found["sha256"]))
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{DESCRIPTION} has no checksum of {file}") from error


def _checksum(fields: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def step_of(name: str) -> int:
    """Return the step in a checkpoint's name, -1 for any other name."""
    match = _STEP_FOLDER.fullmatch(name)
    return int(match[1]) if match else -1
