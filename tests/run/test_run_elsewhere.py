"""A copy of a run's folder, on this machine or another one, while the run's controller works in the original."""

from __future__ import annotations

import json
import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from factories.documents import document
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.spend.run_costs import run_costs
from sailor_cloud.launch.watch.status import run_status
from sailor_cloud.provision.cleanup import reap
from sailor_cloud.run import elsewhere
from sailor_cloud.run.folder import RunFolder, RunLockedError
from sailor_cloud.run.journal import Event, Journal

CLOCK = FixedClock(datetime(2026, 11, 21, 5, 20, tzinfo=UTC))
RUN = "tiny-20261121-051313-a1b2"


@pytest.fixture
def original(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(RUN, root=tmp_path / "home" / "runs")
    folder.write_document(document())
    Journal.of(folder, CLOCK).append(Event.RUN_CREATED, run=RUN, job="tiny", **elsewhere.workplace(folder))
    return folder


@pytest.fixture
def copy(original: RunFolder, tmp_path: Path) -> RunFolder:
    shutil.copytree(original.path.parent, tmp_path / "other" / "runs")
    return RunFolder.open(RUN, root=tmp_path / "other" / "runs")


def test_nothing_ends_a_run_in_a_copy_while_its_controller_works(original: RunFolder, copy: RunFolder) -> None:
    with original.lock():
        message = rf"process {os.getpid()} .* it works in {original.path}, and {copy.path} is a copy"
        with pytest.raises(RunLockedError, match=message):
            take_down(copy, clock=CLOCK)
        shown = run_status(copy, clock=CLOCK).controller
        assert shown is not None
        assert shown.pid == os.getpid()
        assert reap._of_this_machine(copy, CLOCK, None) == (f"process {os.getpid()} works on it", True)
    assert elsewhere.holder(copy) is None
    assert take_down(copy, clock=CLOCK).clean


def test_a_copy_that_lacks_an_entry_is_not_called_damaged_while_the_controller_works(
    original: RunFolder, copy: RunFolder
) -> None:
    (first,) = copy.journal_file.read_text().splitlines()
    copy.journal_file.write_text(f"{first}\n{json.dumps({**json.loads(first), 'seq': 3})}\n")
    with original.lock():
        assert run_costs(copy, clock=CLOCK).damage == ()
    assert [each.file for each in run_costs(copy, clock=CLOCK).damage] == ["journal"]


def test_no_signal_is_advised_where_the_lock_names_no_process(original: RunFolder, copy: RunFolder) -> None:
    with original.lock():
        original.lock_file.write_text("")
        with pytest.raises(RunLockedError, match="a process that its lock file does not name") as refused:
            elsewhere.refuse_copy(copy)
    assert "kill" not in str(refused.value)


def test_a_moved_folder_is_the_run_itself(original: RunFolder, tmp_path: Path) -> None:
    moved = RunFolder(run_id=RUN, path=tmp_path / "moved" / "runs" / RUN)
    moved.path.parent.mkdir(parents=True)
    original.path.rename(moved.path)
    assert take_down(moved, clock=CLOCK).clean


def test_another_name_of_the_same_folder_is_no_copy(original: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(original.path.parent, target_is_directory=True)
    same = RunFolder.open(RUN, root=tmp_path / "linked")
    assert take_down(same, clock=CLOCK).clean


def test_the_newest_controller_counts(original: RunFolder, copy: RunFolder) -> None:
    Journal.of(copy, CLOCK).append(Event.RUN_RESUMED, **elsewhere.workplace(copy))
    with original.lock():
        elsewhere.refuse_copy(copy)
        assert elsewhere.holder(copy) is None


def test_a_run_of_another_machine_is_ended_with_a_warning_and_left_alone_by_reap(
    copy: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert elsewhere.warning(copy) == ""
    (tmp_path / "machine-id").write_text("another\n")
    monkeypatch.setattr(elsewhere, "_MACHINE_ID", tmp_path / "machine-id")
    notes: list[str] = []
    assert reap._judged(RUN, copy, (), CLOCK, None) == (
        reap.Leftover(
            run_id=RUN,
            folder=copy,
            resources=(),
            owner="",
            why="may be a live run of another machine, without an expiry",
        ),
        True,
    )
    assert take_down(copy, clock=CLOCK, say=notes.append).clean
    assert "if its controller still works there, end it first" in notes[0]


def test_reap_on_a_renamed_machine_judges_a_run_by_its_lock_and_its_end(
    original: RunFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "machine-id").write_text("another\n")
    monkeypatch.setattr(elsewhere, "_MACHINE_ID", tmp_path / "machine-id")
    long_ago = timedelta(seconds=1)
    with original.lock():
        assert reap._judged(RUN, original, (), CLOCK, long_ago)[1], "a controller works on it"
    Journal.of(original, CLOCK).append(Event.TORN_DOWN)
    leftover, live = reap._judged(RUN, original, (), CLOCK, None)
    assert (leftover.why, live) == ("was torn down, and this is left", False)


@pytest.mark.parametrize("place", [7, None, "\0", "/nowhere", ["/tmp"]])
def test_a_damaged_place_is_none(copy: RunFolder, place: object) -> None:
    Journal.of(copy, CLOCK).append(Event.RUN_RESUMED, **{**elsewhere.workplace(copy), "works_in": place})
    elsewhere.refuse_copy(copy)
    assert elsewhere.holder(copy) is None
