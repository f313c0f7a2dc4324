"""Events in a run's folder are parsed once, and what others did to the file is noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from sailor_cloud.launch.telemetry import generation_log
from sailor_cloud.launch.telemetry.generation_log import EventRecord, events_file, read_events
from sailor_cloud.run.folder import RunFolder


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
