"""Keeps plans and agent events of every generation in the run folder, for later processes."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO

from sailor_cloud.durable import naming
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.telemetry.events import AgentEvent, parse_line
from sailor_cloud.launch.telemetry.monitor import Monitor, Saved
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.run.appended import close_torn_line
from sailor_cloud.run.folder import RunFolder, private_dir
from sailor_cloud.run.journal import Entry, Event, read
from sailor_cloud.units import counted


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGeneration:
    """One generation: its plan and its events. `job.training.steps` are the steps that were left."""

    generation: int
    document: PlanDocument
    monitor: Monitor


def events_file(folder: RunFolder) -> Path:
    return folder.events_file


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
            with naming(self._path), os.fdopen(handle, "a", encoding="utf-8") as file:
                file.writelines(json.dumps({**event, "node": node}) + "\n" for event in fresh)
        for event in fresh:
            self._note(node, event)
        return fresh

    def _note(self, node: str, event: AgentEvent) -> None:
        self._newest[node] = max(self._newest.get(node, 0), int(event.get("seq", 0)))


def read_events(folder: RunFolder) -> list[AgentEvent]:
    """Return all recorded events, each with its `node`."""
    return list(_read(folder).events)


def _read(folder: RunFolder) -> _Known:
    path = events_file(folder)
    if not path.is_file():
        return _Known()
    with _MUTEX, path.open("rb") as file:
        known = _READ.pop(path, None) or _Known()
        if not known.continues(file):
            known = _Known()
        file.seek(known.size)
        # The controller's death may have cut off the last line.
        whole, newline, _ = file.read().rpartition(b"\n")
        lines = [line for line in whole.splitlines() if line]
        parsed = (parse_line(line, node="run") for line in lines)
        events = [event for event in parsed if event is not None and isinstance(event.get("node"), str)]
        known.events += events
        known.unread += len(lines) - len(events)
        known.size += len(whole) + len(newline)
        known.end = (known.end + whole + newline)[-_COMPARED_BYTES:]
        if known.size <= _MOST_BYTES:
            _READ[path] = known
            while len(_READ) > _MOST_KNOWN:
                del _READ[next(iter(_READ))]
        return known


@dataclass(slots=True)
class _Known:
    """The events of a file as far as this process has read it: its first `size` bytes, the last of which are `end`."""

    size: int = 0
    end: bytes = b""
    unread: int = 0
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


def plan_mismatch(folder: RunFolder) -> str:
    """Return an error text if a plan is not the journaled one: all purchases and spend depend on it."""
    for entry in read(folder.journal_file):
        number = entry.data.get("generation") if entry.event is Event.GENERATION_STARTED else None
        path = folder.plan_file if number is None else plan_file(folder, int(number))
        if "plan_sha256" in entry.data and sha256_of(path) != entry.data["plan_sha256"]:
            return f"{path} is not the plan with which the run began"
    return ""


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
    events, journaled = read_events(folder), _journaled(read(folder.journal_file))
    found: list[RecordedGeneration] = []
    for generation in generations(folder):
        try:
            document = read_plan(folder, generation)
        except RequestError:
            continue
        monitor = new_monitor(document, generation)
        for event in events:
            monitor.apply(event["node"], event)
        begun = _begun_at_least(document, monitor, found)
        monitor.journaled = tuple(
            replace(saved, step=max(saved.step, begun)) if saved.begins else saved
            for saved in journaled.get(generation, ())
        )
        found.append(RecordedGeneration(generation=generation, document=document, monitor=monitor))
    return tuple(found)


def _begun_at_least(document: PlanDocument, monitor: Monitor, earlier: Sequence[RecordedGeneration]) -> int:
    """Return the step with which a generation began at least, by the events: the journal may lack a checkpoint."""
    saved = [leg.monitor.checkpoint_step or 0 for leg in earlier]
    if document.job.checkpoint.to is not None and monitor.first_step is not None:
        # The place may have had checkpoints before the run.
        saved.append(monitor.first_step - 1)
    return max(saved, default=0)


def _journaled(entries: Iterable[Entry]) -> dict[int, tuple[Saved, ...]]:
    """Return where each generation was, by the journal: the step that it began with, its checkpoints and its end."""
    found: dict[int, list[Saved]] = {}
    generation, newest = 0, 0
    for entry in entries:
        if entry.event is Event.GENERATION_STARTED:
            generation = entry.data.get("generation", 0)
            found[generation] = [Saved(step=newest, begins=True)]
        elif entry.event in (Event.CHECKPOINT_SAVED, Event.GENERATION_ENDED) and generation in found:
            step, path = entry.data.get("step"), entry.data.get("path")
            if isinstance(step, int):
                at = entry.ts.timestamp()
                found[generation].append(Saved(step=step, at=at, path=path if isinstance(path, str) else ""))
                newest = step if path else newest
    return {number: tuple(saved) for number, saved in found.items()}


def events_damage(folder: RunFolder, recorded: tuple[RecordedGeneration, ...]) -> tuple[str, ...]:
    """Return what is wrong with a run's events: lines that can't be read, and steps that only the journal has."""
    path, known = events_file(folder), _read(folder)
    charged = "what they lack of traffic is charged as measured before, else as planned"
    lacking = any(leg.monitor.steps_unseen or leg.monitor.lost_checkpoints for leg in recorded)
    # A generation is journaled before its agents start, so one without steps may have no event.
    if lacking and not known.events:
        return (f"{path} holds no event; traffic is charged as planned",)
    if known.unread:
        return (f"{counted(known.unread, 'line')} of {path} can't be read; {charged}",)
    if lacking:
        unseen = sum(leg.monitor.steps_unseen for leg in recorded)
        return (f"{path} lacks {counted(unseen, 'step')} that the journal has; {charged}",)
    return ()


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
