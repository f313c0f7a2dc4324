from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from factories.documents import document
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.watch.status import run_status
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal


def test_a_run_is_checking_until_its_ranks_have_timed_an_iteration(tmp_path: Path) -> None:
    clock = FixedClock(datetime(2026, 11, 21, tzinfo=UTC))
    folder = RunFolder.create("run-1", root=tmp_path)
    folder.write_text("plan.json", document().to_json())
    journal = Journal.of(folder, clock)
    found = []
    for event, data in (
        (Event.RUN_CREATED, {}),
        (Event.GENERATION_STARTED, {"generation": 1}),
        (Event.CALIBRATED, {"iteration_s": 0.5}),
    ):
        journal.append(event, **data)
        found.append(run_status(folder, clock=clock).checking)
    assert found == [False, True, False]
