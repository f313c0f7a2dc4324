"""The journal of a run: intents and their results, each intent written before the request."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from sailor_cloud.clock import Clock
from sailor_cloud.run.appended import AppendedFile, append_line, close_torn_line
from sailor_cloud.run.folder import RunFolder


class Event(StrEnum):
    """Every event of a journal."""

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
    JOB_SUBMITTED = "job_submitted"
    CHECKPOINT_SAVED = "checkpoint_saved"
    GENERATION_ENDED = "generation_ended"
    NODES_LOST = "nodes_lost"
    CLOCK_COMPARED = "clock_compared"
    FIRST_CONTACT = "first_contact"
    NO_CAPACITY = "no_capacity"
    REPLANNED = "replanned"
    NOTIFIED = "notified"
    RESULTS_FETCHED = "results_fetched"
    TRAINING_FINISHED = "training_finished"
    TRAINING_FAILED = "training_failed"
    INTERRUPTED = "interrupted"
    JOURNAL_DAMAGED = "journal_damaged"
    TEARDOWN_STARTED = "teardown_started"
    DESTROY_INTENDED = "destroy_intended"
    GONE = "gone"
    KEPT = "kept"
    TEARDOWN_FAILED = "teardown_failed"
    TORN_DOWN = "torn_down"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of a journal. `resource` is the type and `key` the name of the event's subject."""

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

    def __init__(self, path: Path, clock: Clock, *, or_keep: bool = False) -> None:
        self.path = path
        self._clock = clock
        self._or_keep = or_keep
        self._mutex = threading.Lock()
        self._seq = max((entry.seq for entry in read(path)), default=0)
        close_torn_line(path, or_keep=or_keep)

    @classmethod
    def of(cls, folder: RunFolder, clock: Clock, *, or_keep: bool = False) -> Journal:
        """Return a run's journal. `or_keep`: in a teardown, which continues even if nothing can be written."""
        return cls(folder.journal_file, clock, or_keep=or_keep)

    def append(self, event: Event, *, resource: str = "", key: str = "", **data: Any) -> Entry:
        return self.append_all([Draft(event=event, resource=resource, key=key, data=data)])[0]

    def append_all(self, drafts: Sequence[Draft]) -> tuple[Entry, ...]:
        """Append several entries with one wait for the disk; after a crash, only the first ones may exist."""
        with self._mutex:
            now = self._clock.now()
            entries = tuple(
                Entry(seq=seq, ts=now, event=draft.event, resource=draft.resource, key=draft.key, data=dict(draft.data))
                for seq, draft in enumerate(drafts, start=self._seq + 1)
            )
            if entries:
                append_line(self.path, "\n".join(entry.to_json() for entry in entries), or_keep=self._or_keep)
                self._seq = entries[-1].seq
            return entries

    def entries(self) -> tuple[Entry, ...]:
        return read(self.path)


def read(path: Path) -> tuple[Entry, ...]:
    """Return the entries of a journal.

    Invalid lines are left out as cut off by a crash: teardown must work with whatever remains of a journal.
    """
    with _MUTEX:
        known = _READ.pop(path, None) or _Known(AppendedFile(path))
        _READ[path] = known
        while len(_READ) > _MOST_KNOWN:
            del _READ[next(iter(_READ))]
        lines, rewritten = known.file.new_lines()
        if lines or rewritten:
            parsed = (_entry(line) for line in lines)
            fresh = tuple(entry for entry in parsed if entry is not None)
            known.entries = fresh if rewritten else (*known.entries, *fresh)
        cut_off = _entry(known.file.torn)
        return known.entries if cut_off is None else (*known.entries, cut_off)


@dataclass(slots=True)
class _Known:
    """A journal as far as this process has read it."""

    file: AppendedFile
    entries: tuple[Entry, ...] = ()


# A controller reads its journal constantly; only new lines are read again.
_READ: dict[Path, _Known] = {}
_MOST_KNOWN = 8
# Fields with words about a resource or a run; anything else in them is damage.
_WORDS = ("provider", "region", "zone", "stack", "cloud_id", "capacity", "instance_type", "market", "host", "outcome")
# No run has this many entries, and no iteration takes this many seconds; a larger number is damage.
_LARGEST = 10**9
_MUTEX = threading.Lock()


def damage(path: Path, *, cut: bool = True) -> str:
    """Return why a journal is not trustworthy as a whole; empty if it starts at entry 1 and lacks none.

    A crash cuts off at most the last line, which is damage only with `cut`. A controller that takes over ends that
    line, and gives its number to the next entry.
    """
    entries = read(path)
    if not entries:
        return f"{path} is missing" if not path.exists() else f"{path} holds no entry"
    for entry in entries:
        # A teardown writes this, because its own entries would hide the damage.
        if entry.event is Event.JOURNAL_DAMAGED:
            return str(entry.data.get("why", ""))
    numbers = {entry.seq for entry in entries}
    lost = next((number for number in range(1, max(numbers)) if number not in numbers), None)
    if lost is not None:
        return f"{path} lacks entry {lost}"
    with contextlib.suppress(OSError):
        torn = path.read_bytes().rpartition(b"\n")[2] if cut else b""
        if torn and _entry(torn) is None:
            return f"{path} is cut off after entry {max(numbers)}"
    return ""


def _entry(line: bytes) -> Entry | None:
    try:
        raw = json.loads(line)
        entry = Entry(
            seq=int(raw["seq"]),
            ts=datetime.fromisoformat(raw["ts"]),
            event=Event(raw["event"]),
            resource=raw["resource"],
            key=raw["key"],
            data=dict(raw["data"]),
        )
        words = [entry.resource, entry.key, *(word for name in _WORDS if (word := entry.data.get(name)) is not None)]
        if not all(isinstance(word, str) for word in words) or not isinstance(entry.data.get("generation", 0), int):
            return None
        if not 0.0 <= entry.data.get("iteration_s", 0.0) <= _LARGEST:
            return None
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None
    return entry if entry.ts.tzinfo is not None and 0 < entry.seq < _LARGEST else None
