"""A disk that fills up ends the run with one clear error, and keeps no node alive. A sample of `make chaos`."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from factories.quick_runs import QuickRun, planned, quick_run, trained
from factories.simulated_runs import simulated_run
from factories.storage_faults import forget, unwritable
from sailor_cloud.launch.controller import _failed_write
from sailor_cloud.provision import processes
from sailor_cloud.run.appended import kept_lines
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.state import fold


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickRun]:
    with quick_run(tmp_path / "home", monkeypatch) as started:
        yield started
    forget()


@pytest.mark.slow
def test_a_disk_that_fills_up_during_the_training_ends_the_run_and_its_nodes(run: QuickRun) -> None:
    run.start(planned(steps=100_000))
    folder = run.wait_for(trained(3), "training")
    with unwritable(run.home):
        outcome = run.end()
    assert (outcome.ending, outcome.exit_code) == (Ending.FAILED, 1)
    assert "No space left on device: /" in outcome.message
    assert outcome.message.endswith("; free space there, then start the job again")
    assert outcome.receipt.clean, outcome.receipt.problems
    assert any("journal.jsonl" in problem for problem in outcome.receipt.problems)
    assert any('"event": "torn_down"' in line for line in kept_lines(folder.journal_file))
    assert processes.on_nodes(folder.run_id) == ()


def test_a_run_does_not_begin_on_a_full_disk(run: QuickRun) -> None:
    with unwritable(run.home, after=7):
        run.start(planned(steps=3))
        with pytest.raises(OSError, match="No space left on device"):
            run.end()
    (begun,) = RunFolder.list(root=run.home / "runs")
    assert not (begun.path / "terraform").exists()


@pytest.mark.parametrize("after", [10, 60, 150, 300])
def test_a_controller_whose_writes_fail_from_some_moment_on_leaves_nothing(after: int, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with unwritable(tmp_path / "runs", after=after):
        folder = simulated_run(tmp_path)
    assert fold(read(folder.journal_file)).live == ()
    forget()


def test_a_full_disk_without_a_file_s_name_has_no_there() -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    assert _failed_write(full) == (
        "No space left on device; free space on this machine's disks, then start the job again"
    )
