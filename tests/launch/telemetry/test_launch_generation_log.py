"""Events in a run's folder are parsed once, and what others did to the file is noticed."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from factories.documents import document
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.telemetry import generation_log
from sailor_cloud.launch.telemetry.events import parse_line
from sailor_cloud.launch.telemetry.generation_log import (
    EventRecord,
    events_damage,
    events_file,
    read_events,
    recorded_generations,
)
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal, read


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder.create("tiny-20261121-051313-a1b2", root=tmp_path)
    EventRecord(made).append("n0", [step(1), step(2)])
    return made


def step(number: int) -> dict[str, object]:
    return {"event": "step", "generation": 1, "step": number, "loss": 1.0, "iteration_s": 6.0}


def steps(folder: RunFolder) -> list[int]:
    return [event["step"] for event in read_events(folder)]


def test_only_new_lines_are_parsed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert steps(folder) == [1, 2]
    parsed: list[bytes] = []
    parse = generation_log.parse_line
    monkeypatch.setattr(generation_log, "parse_line", lambda line, node: parsed.append(line) or parse(line, node=node))
    EventRecord(folder).append("n0", [step(3)])
    assert steps(folder) == [1, 2, 3]
    assert len(parsed) == 1


def test_a_line_counts_once_it_is_whole(folder: RunFolder) -> None:
    path = events_file(folder)
    text = path.read_text()
    path.write_text(text[:-10])
    assert steps(folder) == [1]
    path.write_text(text)
    assert steps(folder) == [1, 2]


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_file_that_was_replaced_is_read_from_its_beginning(folder: RunFolder, length: int) -> None:
    assert steps(folder) == [1, 2]
    text = events_file(folder).read_text().replace('"step": ', '"step": 1')
    events_file(folder).write_text("".join(text.splitlines(keepends=True)[:1] * length))
    assert steps(folder) == [11] * length


def test_a_list_of_events_belongs_to_its_caller(folder: RunFolder) -> None:
    read_events(folder).clear()
    assert steps(folder) == [1, 2]


def test_events_of_a_long_file_are_not_kept(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation_log, "_MOST_BYTES", 10)
    assert steps(folder) == steps(folder) == [1, 2]
    assert events_file(folder) not in generation_log._READ


def test_a_missing_file_has_no_events(folder: RunFolder) -> None:
    assert steps(folder) == [1, 2]
    events_file(folder).unlink()
    assert steps(folder) == []


TRAFFIC = {"event": "traffic", "generation": 1, "rank": 0, "step": 2, "sent": {"n1": 5}}
CHECKPOINT = {"event": "checkpoint", "generation": 1, "step": 2, "path": "gs://b/step-2", "written": [[1, 5]]}


TOKENS = {**step(4 * 10**12), "iterations": 10**12, "iteration_s": 1e-11}


@pytest.mark.parametrize(
    "event", [step(3), TOKENS, {**step(3), "loss": float("nan")}, {**step(3), "loss": None}, TRAFFIC]
)
def test_events_as_agents_write_them_are_read(event: dict[str, Any]) -> None:
    assert parse_line(json.dumps(event).encode(), node="n0") is not None


@pytest.mark.parametrize(
    "event",
    [
        {**step(3), "seq": "x"},
        {**step(3), "seq": True},
        {**step(3), "ts": 1e300},
        {**step(3), "step": "3"},
        {**step(3), "iteration_s": "6.0"},
        {**step(3), "iteration_s": float("nan")},
        {**step(3), "iteration_s": 1e308},
        {**step(3), "iteration_s": -1.0},
        {**step(3), "iterations": 2**63},
        {**step(3), "iterations": 0},
        {**TRAFFIC, "sent": [1]},
        {**TRAFFIC, "sent": {"n1": "5"}},
        {**TRAFFIC, "sent": {"n1": -5}},
        {**TRAFFIC, "rank": "0"},
        {**CHECKPOINT, "written": [[1]]},
        {**CHECKPOINT, "path": 3},
        {"event": "preflight", "devices": [3], "links": []},
        {"event": "preflight", "devices": [], "links": [{"src_node": "n0", "dst_node": "n1", "bytes_per_s": "fast"}]},
    ],
    ids=str,
)
def test_an_event_of_wrong_types_is_damage(folder: RunFolder, event: dict[str, Any]) -> None:
    with events_file(folder).open("a") as file:
        file.write(json.dumps({**event, "node": "n0"}) + "\n")
    assert steps(folder) == [1, 2]
    EventRecord(folder)
    (why,) = events_damage(folder, ())
    assert why.startswith(f"1 line of {events_file(folder)} can't be read")


@pytest.mark.parametrize("line", [b"[" * 100_000, b'{"event": 3}', b"\xff"])
def test_a_line_that_is_no_event_is_damage(folder: RunFolder, line: bytes) -> None:
    with events_file(folder).open("ab") as file:
        file.write(line + b"\n")
    assert steps(folder) == [1, 2]
    assert len(events_damage(folder, ())) == 1


@pytest.mark.parametrize("seconds", [float("nan"), "1", -1.0, 1e308])
def test_a_journaled_iteration_takes_a_time(folder: RunFolder, seconds: object) -> None:
    journal = Journal.of(folder, FixedClock(datetime(2026, 11, 21, tzinfo=UTC)))
    journal.append(Event.CALIBRATED, iteration_s=seconds)
    assert read(folder.journal_file) == ()


def test_a_generation_that_has_not_trained_may_have_no_event(folder: RunFolder) -> None:
    folder.write_document(document())
    events_file(folder).unlink()
    journal = Journal.of(folder, FixedClock(datetime(2026, 11, 21, tzinfo=UTC)))
    journal.append(Event.GENERATION_STARTED, generation=1)
    assert events_damage(folder, recorded_generations(folder)) == ()
    journal.append(Event.GENERATION_ENDED, generation=1, step=0)
    assert events_damage(folder, recorded_generations(folder)) == ()
    journal.append(Event.CHECKPOINT_SAVED, step=2, path="/step-2")
    (why,) = events_damage(folder, recorded_generations(folder))
    assert why == f"{events_file(folder)} holds no event; traffic is charged as planned"


@pytest.mark.parametrize("own_place", [False, True])
def test_only_steps_since_a_generation_s_begin_are_missed(tmp_path: Path, own_place: bool) -> None:
    folder = RunFolder.create("tiny-20261121-051313-a1b2", root=tmp_path)
    planned = document()
    if own_place:
        checkpoint = planned.job.checkpoint.model_copy(update={"to": "/saved"})
        planned = replace(planned, job=planned.job.model_copy(update={"checkpoint": checkpoint}))
    folder.write_document(planned)
    journal = Journal.of(folder, FixedClock(datetime(2026, 11, 21, tzinfo=UTC)))
    first = 41 if own_place else 1
    saved = {**CHECKPOINT, "step": first, "path": "/step"}
    # The controller died before it could journal the checkpoint.
    EventRecord(folder).append("n0", [step(first), step(first + 1), saved])
    journal.append(Event.GENERATION_STARTED, generation=1)
    journal.append(Event.GENERATION_STARTED, generation=2)
    EventRecord(folder).append("n0", [{**step(number), "generation": 2} for number in (first + 1, first + 3)])
    journal.append(Event.GENERATION_ENDED, generation=2, step=first + 3)
    assert [leg.monitor.steps_unseen for leg in recorded_generations(folder)] == [0, 1]
