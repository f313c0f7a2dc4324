"""Keeps plans and agent events of every generation in the run folder, for later processes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.telemetry.monitor import Monitor
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.run.appended import close_torn_line
from sailor_cloud.run.folder import RunFolder, private_dir
from sailor_cloud.run.journal import Event, read

logger = logging.getLogger(__name__)

AgentEvent = dict[str, Any]

# Fields that an event of a kind must have; other fields have defaults.
_NEEDED = {
    "step": ("step", "loss", "iteration_s"),
    "verified": ("steps", "max_abs_difference", "tolerance"),
    "calibrated": ("iteration_s", "iterations"),
    "preflight": ("devices", "links"),
    "checkpoint": ("step", "path"),
    "traffic": ("rank", "step", "sent"),
    "rank_dead": ("rank",),
    "rank_hung": ("rank",),
    "stopped": ("reason",),
    "data": ("unigram_entropy",),
}


def parse_line(line: bytes, *, node: str) -> AgentEvent | None:
    """Return the event of a line, or None if the line is no event.

    A line may be lost when a disk is full or a node loses power; that must not end a run.
    """
    try:
        event = json.loads(line)
    except ValueError:
        logger.warning("node %s: an event line of %d bytes is not JSON", node, len(line))
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        logger.warning("node %s: an event line of %d bytes names no event", node, len(line))
        return None
    missing = [name for name in _NEEDED.get(event["event"], ()) if name not in event]
    if missing:
        logger.warning("node %s: event %s lacks %s", node, event["event"], ", ".join(missing))
        return None
    return event


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGeneration:
    """One generation: its plan and its events. `job.training.steps` are the steps that were left."""

    generation: int
    document: PlanDocument
    monitor: Monitor


def events_file(folder: RunFolder) -> Path:
    return folder.logs_dir / "events.jsonl"


class EventRecord:
    """Appends agent events to the run's own file; duplicates are left out."""

    def __init__(self, folder: RunFolder) -> None:
        self._path = events_file(folder)
        self._newest: dict[str, int] = {}
        close_torn_line(self._path)
        for event in read_events(folder):
            self._note(event["node"], event)

    def append(self, node: str, events: list[AgentEvent]) -> list[AgentEvent]:
        """Append events of one node and return those that are new."""
        fresh = [event for event in events if event.get("seq", 0) > self._newest.get(node, 0) or "seq" not in event]
        if fresh:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(handle, "a", encoding="utf-8") as file:
                file.writelines(json.dumps({**event, "node": node}) + "\n" for event in fresh)
        for event in fresh:
            self._note(node, event)
        return fresh

    def _note(self, node: str, event: AgentEvent) -> None:
        self._newest[node] = max(self._newest.get(node, 0), int(event.get("seq", 0)))


def read_events(folder: RunFolder) -> list[AgentEvent]:
    """Return all recorded events, each with its `node`."""
    path = events_file(folder)
    if not path.is_file():
        return []
    with _MUTEX, path.open("rb") as file:
        known = _READ.pop(path, None) or _Known()
        if not known.continues(file):
            known = _Known()
        file.seek(known.size)
        # The controller's death may have cut off the last line.
        whole, newline, _ = file.read().rpartition(b"\n")
        events = (parse_line(line, node="run") for line in whole.splitlines() if line)
        known.events += [event for event in events if event is not None and isinstance(event.get("node"), str)]
        known.size += len(whole) + len(newline)
        known.end = (known.end + whole + newline)[-_COMPARED_BYTES:]
        if known.size <= _MOST_BYTES:
            _READ[path] = known
            while len(_READ) > _MOST_KNOWN:
                del _READ[next(iter(_READ))]
        return list(known.events)


@dataclass(slots=True)
class _Known:
    """The events of a file as far as this process has read it: its first `size` bytes, the last of which are `end`."""

    size: int = 0
    end: bytes = b""
    events: list[AgentEvent] = field(default_factory=list)

    def continues(self, file: BinaryIO) -> bool:
        """Return whether a file still begins with what was read, as far as its length and `end` tell."""
        file.seek(self.size - len(self.end))
        return file.read(len(self.end)) == self.end


# A controller needs the events of earlier generations often; only new lines are read again.
_READ: dict[Path, _Known] = {}
_MOST_KNOWN = 4
# Events take some five times as much memory as their lines; those of longer files are not kept.
_MOST_BYTES = 8_000_000
_COMPARED_BYTES = 1_000
_MUTEX = threading.Lock()


def plan_file(folder: RunFolder, generation: int) -> Path:
    return folder.path / "generations" / f"{generation}.json"


def write_plan(folder: RunFolder, generation: int, document: PlanDocument) -> str:
    """Keep the plan of one generation, and return its SHA-256."""
    private_dir(plan_file(folder, generation).parent)
    return sha256_of(folder.write_text(f"generations/{generation}.json", document.to_json()))


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content; empty if there is no file."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def read_plan(folder: RunFolder, generation: int) -> PlanDocument:
    """Return the plan of a generation; the first one's is the run's own. Raises RequestError."""
    path = plan_file(folder, generation)
    return folder.read_document(path if path.is_file() else None)


def generations(folder: RunFolder) -> tuple[int, ...]:
    """Return the numbers of the generations that were started according to the journal."""
    started = {
        int(entry.data["generation"])
        for entry in read(folder.journal_file)
        if entry.event is Event.GENERATION_STARTED and "generation" in entry.data
    }
    return tuple(sorted(started))


def new_monitor(document: PlanDocument, generation: int) -> Monitor:
    training = document.job.training
    if document.job.model is None:
        # A command reports its tokens with its steps, or they are unknown.
        return Monitor(generation=generation, tokens_per_iteration=0)
    return Monitor(generation=generation, tokens_per_iteration=training.global_batch_size * training.sequence_length)


def recorded_generations(folder: RunFolder) -> tuple[RecordedGeneration, ...]:
    """Return all recorded generations, in order."""
    events = read_events(folder)
    found = []
    for generation in generations(folder):
        try:
            document = read_plan(folder, generation)
        except RequestError:
            continue
        monitor = new_monitor(document, generation)
        for event in events:
            monitor.apply(event["node"], event)
        found.append(RecordedGeneration(generation=generation, document=document, monitor=monitor))
    return tuple(found)


def last_monitor(found: tuple[RecordedGeneration, ...], document: PlanDocument) -> Monitor:
    """Return the state of the newest generation that has trained, else of the newest."""
    trained = [leg.monitor for leg in found if leg.monitor.steps_done]
    if trained:
        return trained[-1]
    return found[-1].monitor if found else new_monitor(document, 1)


def journaled_calibration_s(folder: RunFolder) -> float | None:
    """Return the calibrated prediction in the run's journal."""
    found = [entry.data["iteration_s"] for entry in read(folder.journal_file) if entry.event is Event.CALIBRATED]
    return float(found[-1]) if found else None
