"""The pace of a run in `status RUN`."""

from __future__ import annotations

from datetime import UTC, datetime
from io import StringIO

import pytest
from rich.console import Console

from sailor_cloud.report.run.status_text import run_report
from sailor_cloud.run.progress import RunStatus
from sailor_cloud.run.state import Phase, ResourceState, RunState, fold

NOW = datetime(2026, 11, 21, tzinfo=UTC)


def shown(state: RunState | None = None, **fields: object) -> str:
    status = RunStatus(
        run_id="run-1",
        job="job",
        state=state or fold([]),
        controller=None,
        loss=2.0,
        spent_usd=0.0,
        budget_usd=None,
        measured_at=NOW,
        **{"step": 5, "steps": 10, **fields},  # type: ignore[arg-type]
    )
    console = Console(file=StringIO(), width=120)
    console.print(run_report(status, now=NOW))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_measured_and_planned_iterations_stand_side_by_side_with_where_the_last_one_went():
    parts = {"compute": 0.3, "transfer": 0.0, "bubble": 0.1, "sync": 0.1}
    text = shown(iteration_s=0.4, planned_iteration_s=0.32, parts=parts)
    assert "iteration 0.400 s measured, 0.320 s planned;" in text
    assert "rank 0's last: compute 60 %, transfer 0 %, bubble 20 %, all-reduce 20 %" in text


def test_before_the_pace_has_settled_nothing_is_said_of_it():
    assert "measured" not in shown(planned_iteration_s=0.32)


@pytest.mark.parametrize(
    ("phase", "outcome", "fields", "told"),
    [
        (Phase.GONE, "failed", {}, "failed, gone 5/10"),
        (Phase.GONE, "completed", {"step": 0}, "completed, gone - "),
        (Phase.GONE, None, {"step": 0}, "gone 0/10"),
        (Phase.TRAINING, None, {"step": 0, "steps": None}, "training - "),
        (Phase.TEARDOWN_FAILED, "completed", {}, "teardown failed 5/10"),
    ],
)
def test_a_run_that_is_gone_says_how_it_ended_and_a_silent_command_names_no_step(
    phase: Phase, outcome: str | None, fields: dict[str, object], told: str
) -> None:
    assert told in " ".join(shown(RunState(phase=phase, outcome=outcome), **fields).split())


@pytest.mark.parametrize(
    ("phase", "resumes"), [(Phase.TRAINING, True), (Phase.FAILED, False), (Phase.TEARDOWN_FAILED, False)]
)
def test_only_a_run_that_can_be_resumed_is_recommended_for_it(phase: Phase, resumes: bool) -> None:
    alive = ResourceState(resource="node", key="n0", created_at=NOW)
    report = " ".join(shown(RunState(phase=phase, resources=(alive,))).split())
    assert "'sailor-cloud down run-1' tears it down" in report
    assert ("sailor-cloud resume run-1" in report) == resumes
    assert ("so its step is that of the last look" in report) == (phase is Phase.TRAINING)


def test_a_run_before_its_first_step_is_checking() -> None:
    report = " ".join(shown(RunState(phase=Phase.TRAINING), step=0, checking=True).split())
    assert "run-1 checking 0/10" in report
    assert "before the first step" in report
