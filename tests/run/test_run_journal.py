"""The journal of a run, and the state that it leads to."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sailor_cloud.clock import FixedClock
from sailor_cloud.run.journal import Event, Journal, damage, read
from sailor_cloud.run.state import Phase, fold

START = datetime(2026, 11, 21, 5, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> FixedClock:
    return FixedClock(START)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_entries_come_back_in_order_with_their_data(path: Path, clock: FixedClock) -> None:
    journal = Journal(path, clock)
    journal.append(Event.RUN_CREATED, job="tiny")
    clock.instant += timedelta(seconds=2)
    journal.append(Event.CREATE_INTENDED, resource="node", key="n0", zone="local-a")
    first, second = journal.entries()
    assert (first.seq, first.ts, first.event, first.data) == (1, START, Event.RUN_CREATED, {"job": "tiny"})
    assert (second.seq, second.ts - START, second.resource, second.key) == (2, timedelta(seconds=2), "node", "n0")


def test_every_line_has_the_fields_that_the_design_names(path: Path, clock: FixedClock) -> None:
    Journal(path, clock).append(Event.RUN_CREATED)
    assert list(json.loads(path.read_text())) == ["seq", "ts", "event", "resource", "key", "data"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_entry_is_on_disk_before_append_returns(
    path: Path, clock: FixedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    real = os.fsync

    def recording(handle: int) -> None:
        sizes.append(os.fstat(handle).st_size)
        real(handle)

    monkeypatch.setattr(os, "fsync", recording)
    Journal(path, clock).append(Event.RUN_CREATED)
    assert sizes == [path.stat().st_size]


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_line_that_a_crash_cut_off_is_left_out_and_does_not_spoil_the_next(
    path: Path, clock: FixedClock, cut: int
) -> None:
    journal = Journal(path, clock)
    journal.append(Event.RUN_CREATED)
    journal.append(Event.PROVISION_STARTED)
    path.write_bytes(path.read_bytes()[:-cut])
    assert [entry.event for entry in read(path)] == [Event.RUN_CREATED] + [Event.PROVISION_STARTED] * (cut == 1)
    Journal(path, clock).append(Event.TEARDOWN_STARTED)
    events = [entry.event for entry in read(path)]
    assert events[0] is Event.RUN_CREATED
    assert events[-1] is Event.TEARDOWN_STARTED


def test_a_journal_that_is_opened_again_continues_counting(path: Path, clock: FixedClock) -> None:
    Journal(path, clock).append(Event.RUN_CREATED)
    Journal(path, clock).append(Event.TEARDOWN_STARTED)
    assert [entry.seq for entry in read(path)] == [1, 2]


def test_threads_do_not_tear_each_others_lines(path: Path, clock: FixedClock) -> None:
    journal = Journal(path, clock)

    def write(number: int) -> None:
        for _ in range(20):
            journal.append(Event.CHECKPOINT_SAVED, key=str(number))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [entry.seq for entry in read(path)] == list(range(1, 81))


@pytest.mark.parametrize(
    ("field", "value"),
    [("resource", None), ("key", [1]), ("provider", {}), ("region", ["a"]), ("host", 5), ("generation", "two")],
)
def test_an_entry_that_names_something_by_no_word_is_damage(
    path: Path, clock: FixedClock, field: str, value: object
) -> None:
    journal = Journal(path, clock)
    for node in ("n0", "n1", "n2"):
        journal.append(Event.CREATED, resource="node", key=node, provider="gcp")
    lines = path.read_text().splitlines()
    raw = json.loads(lines[1])
    (raw if field in raw else raw["data"])[field] = value
    path.write_text("\n".join([lines[0], json.dumps(raw), lines[2], ""]))
    assert [entry.key for entry in read(path)] == ["n0", "n2"]
    assert damage(path) == f"{path} lacks entry 2"


def test_no_journal_is_no_entries(path: Path) -> None:
    assert read(path) == ()
    assert fold(()).phase is Phase.CREATED


def test_state_follows_a_run_from_creation_to_its_end(path: Path, clock: FixedClock) -> None:
    journal = Journal(path, clock)
    phases = []
    expires_at = START + timedelta(hours=1)
    for event, data in (
        (Event.RUN_CREATED, {}),
        (Event.PROVISION_STARTED, {"expires_at": expires_at.isoformat()}),
        (Event.CREATE_INTENDED, {"resource": "node", "key": "n0", "zone": "local-a"}),
        (Event.CREATED, {"resource": "node", "key": "n0"}),
        (Event.PROVISIONED, {}),
        (Event.DEPLOY_STARTED, {}),
        (Event.GENERATION_STARTED, {"generation": 1}),
        (Event.TRAINING_FINISHED, {"outcome": "completed"}),
        (Event.TEARDOWN_STARTED, {}),
        (Event.DESTROY_INTENDED, {"resource": "node", "key": "n0"}),
        (Event.GONE, {"resource": "node", "key": "n0", "confirmed_by": "sweep"}),
        (Event.TORN_DOWN, {}),
    ):
        clock.instant += timedelta(seconds=1)
        journal.append(event, **data)
        phases.append(fold(journal.entries()).phase)
    assert list(dict.fromkeys(phases)) == [
        Phase.CREATED,
        Phase.PROVISIONING,
        Phase.PROVISIONED,
        Phase.DEPLOYING,
        Phase.TRAINING,
        Phase.FINISHED,
        Phase.TEARING_DOWN,
        Phase.GONE,
    ]
    state = fold(journal.entries())
    assert (state.generation, state.outcome, state.expires_at) == (1, "completed", expires_at)
    assert state.created_at == START + timedelta(seconds=1)
    assert state.phase_since == state.updated_at == START + timedelta(seconds=12)
    node = state.resource("node", "n0")
    moments = (node.intended_at, node.created_at, node.destroy_intended_at, node.gone_at)
    assert moments == tuple(START + timedelta(seconds=s) for s in (3, 4, 10, 11))
    assert node.data == {"zone": "local-a", "confirmed_by": "sweep"}
    assert state.live == ()


def test_an_intended_resource_counts_as_alive(path: Path, clock: FixedClock) -> None:
    journal = Journal(path, clock)
    journal.append(Event.CREATE_INTENDED, resource="node", key="n0")
    journal.append(Event.CREATE_FAILED, resource="node", key="n0", reason="timeout")
    assert [resource.key for resource in fold(journal.entries()).live] == ["n0"]


def test_a_resource_requested_again_after_deletion_counts_as_alive(path: Path, clock: FixedClock) -> None:
    journal = Journal(path, clock)
    for event in (Event.CREATE_INTENDED, Event.CREATED, Event.GONE, Event.CREATE_INTENDED):
        journal.append(event, resource="node", key="n0")
    assert [resource.key for resource in fold(journal.entries()).live] == ["n0"]


def test_kept_resources_are_not_alive(path: Path, clock: FixedClock) -> None:
    journal = Journal(path, clock)
    journal.append(Event.CREATE_INTENDED, resource="bucket", key="b")
    journal.append(Event.KEPT, resource="bucket", key="b")
    assert fold(journal.entries()).live == ()
    with pytest.raises(KeyError):
        fold(journal.entries()).resource("bucket", "other")
