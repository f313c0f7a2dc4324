"""The journal of a run: what was intended and what came of it, written before anybody is asked to do it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.run.appended import AppendedFile
from sailor_cloud.run.folder import RunFolder


class Event(StrEnum):
    """Every event that a journal can hold."""

    RUN_CREATED = "run_created"
    RUN_RESUMED = "run_resumed"
    PROVISION_STARTED = "provision_started"
    CREATE_INTENDED = "create_intended"
    CREATED = "created"
    CREATE_FAILED = "create_failed"
    PROVISIONED = "provisioned"
    DEPLOY_STARTED = "deploy_started"
    PREFLIGHT = "preflight"
    LINKS_SLOW = "links_slow"
    CALIBRATED = "calibrated"
    GENERATION_STARTED = "generation_started"
    CHECKPOINT_SAVED = "checkpoint_saved"
    GENERATION_ENDED = "generation_ended"
    NODES_LOST = "nodes_lost"
    NO_CAPACITY = "no_capacity"
    REPLANNED = "replanned"
    NOTIFIED = "notified"
    RESULTS_FETCHED = "results_fetched"
    TRAINING_FINISHED = "training_finished"
    TRAINING_FAILED = "training_failed"
    INTERRUPTED = "interrupted"
    TEARDOWN_STARTED = "teardown_started"
    DESTROY_INTENDED = "destroy_intended"
    GONE = "gone"
    KEPT = "kept"
    TEARDOWN_FAILED = "teardown_failed"
    TORN_DOWN = "torn_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a journal. `resource` is the type and `key` the name of what the event is about."""

    seq: int
    ts: datetime
    event: Event
    resource: str = ""
    key: str = ""
    data: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        raw = {"seq": self.seq, "ts": self.ts.isoformat(), "event": self.event.value}
        return json.dumps({**raw, "resource": self.resource, "key": self.key, "data": self.data}, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """An entry that is not written yet."""

    event: Event
    resource: str = ""
    key: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


class Journal:
    """Appends entries; each is on disk before `append` returns. Safe to use from several threads."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.path = path
        self._clock = clock
        self._mutex = threading.Lock()
        self._seq = max((entry.seq for entry in read(path)), default=0)
        close_torn_line(path)

    @classmethod
    def of(cls, folder: RunFolder, clock: Clock) -> Journal:
        return cls(folder.journal_file, clock)

    def append(self, event: Event, *, resource: str = "", key: str = "", **data: Any) -> Entry:
        return self.append_all([Draft(event=event, resource=resource, key=key, data=data)])[0]

    def append_all(self, drafts: Sequence[Draft]) -> tuple[Entry, ...]:
        """Append several entries at once, with one wait for the disk; a crash may leave the first of them only."""
        with self._mutex:
            now = self._clock.now()
            entries = tuple(
                Entry(seq=seq, ts=now, event=draft.event, resource=draft.resource, key=draft.key, data=dict(draft.data))
                for seq, draft in enumerate(drafts, start=self._seq + 1)
            )
            if entries:
                append_line(self.path, "\n".join(entry.to_json() for entry in entries))
                self._seq = entries[-1].seq
            return entries

    def entries(self) -> tuple[Entry, ...]:
        return read(self.path)


def read(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a journal.

    A line that is no entry was cut off by a crash and is left out: teardown must work with what is left of a journal.
    """
    with _MUTEX:
        known = _READ.pop(path, None) or _Known(AppendedFile(path))
        _READ[path] = known
        while len(_READ) > _MOST_KNOWN:
            del _READ[next(iter(_READ))]
        lines, anew = known.file.new_lines()
        if lines or anew:
            parsed = (_entry(line) for line in lines)
            fresh = tuple(entry for entry in parsed if entry is not None)
            known.entries = fresh if anew else (*known.entries, *fresh)
        cut_off = _entry(known.file.torn)
        return known.entries if cut_off is None else (*known.entries, cut_off)


@dataclass(slots=True)
class _Known:
    """A journal as far as this process has read it."""

    file: AppendedFile
    entries: tuple[Entry, ...] = ()


# A controller asks for its journal at every turn; only what was appended since is read again.
_READ: dict[Path, _Known] = {}
_MOST_KNOWN = 8
_MUTEX = threading.Lock()


def append_line(path: Path, line: str) -> None:
    """Append one line to a file of mode 0600 and wait until it is on disk."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(handle, "ab") as file:
        file.write((line + "\n").encode())
        file.flush()
        os.fsync(handle)


def close_torn_line(path: Path) -> None:
    """End a line that a crash cut off, so that what is appended next begins its own."""
    if path.is_file() and (content := path.read_bytes()) and not content.endswith(b"\n"):
        append_line(path, "")


def _entry(line: bytes) -> Entry | None:
    try:
        raw = json.loads(line)
        return Entry(
            seq=raw["seq"],
            ts=datetime.fromisoformat(raw["ts"]),
            event=Event(raw["event"]),
            resource=raw["resource"],
            key=raw["key"],
            data=raw["data"],
        )
    except (ValueError, KeyError, TypeError):
        return None
