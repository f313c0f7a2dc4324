"""Commands to the agent: JSON files that appear in `inbox/` by a rename and are read in the order of their names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any


class Name(StrEnum):
    START = "start"
    CHECKPOINT = "checkpoint"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command; `spec` is the path of the run spec inside the home folder, `node` this node's id in it."""

    name: Name
    generation: int
    plan_hash: str
    spec: str | None
    node: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreadable:
    """A file in the inbox that is not a command."""

    file: str
    reason: str


class Inbox:
    """Reads commands; each file is removed afterwards."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def take(self) -> Iterator[Command | Unreadable]:
        # Files whose names don't end in .json are still being written.
        for path in sorted(self._folder.glob("*.json")):
            if path.name.startswith("."):
                continue
            try:
                yield _parse(json.loads(path.read_text()))
            except (ValueError, OSError) as error:
                yield Unreadable(file=path.name, reason=str(error))
            finally:
                path.unlink(missing_ok=True)


def _parse(raw: Any) -> Command:
    if not isinstance(raw, dict):
        raise ValueError(f"a command must be an object, got {raw!r}")
    name, generation, plan_hash = raw.get("command"), raw.get("generation"), raw.get("plan_hash")
    if name not in set(Name):
        raise ValueError(f"unknown command {name!r}; known: {', '.join(Name)}")
    if not isinstance(generation, int) or isinstance(generation, bool) or not isinstance(plan_hash, str):
        raise ValueError(f"{name} needs a generation number and a plan_hash, got {generation!r} and {plan_hash!r}")
    spec, node = raw.get("spec"), raw.get("node")
    if name == Name.START and not isinstance(spec, str):
        raise ValueError(f"start needs the path of a spec, got {spec!r}")
    if node is not None and not isinstance(node, str):
        raise ValueError(f"node must be a string, got {node!r}")
    return Command(name=Name(name), generation=generation, plan_hash=plan_hash, spec=spec, node=node)
