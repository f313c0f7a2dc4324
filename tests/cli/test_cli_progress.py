"""How far something is: bars with a percentage on a terminal, plain lines in a pipe."""

from __future__ import annotations

import io
from datetime import UTC, datetime

from rich.console import Console

from sailor_cloud import api
from sailor_cloud.cli.terminal.bars import TeardownDisplay
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.provision.terraform.progress import Progress, Step
from sailor_cloud.report.run.live import LivePanel
from sailor_cloud.run.progress import ResourceNews, RunProgress

NOW = datetime(2026, 11, 21, tzinfo=UTC)
SMALL_JOB = """
name: small
model: {model_type: gpt2, vocab_size: 256, hidden_size: 64, num_hidden_layers: 2, num_attention_heads: 2}
training: {global_batch_size: 8, sequence_length: 32, steps: 10}
constraints: {budget_usd: 1.0}
resources:
  - {provider: local, zones: [local-a], accelerators: {CPU-fast: 1}}
"""


def screen(*, terminal: bool) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    return Console(file=stream, force_terminal=terminal, width=100, color_system=None), stream


def moment(key: str, step: Step) -> Progress:
    return Progress(
        action="delete", step=step, provider="gcp", region="r", resource="node", key=key, elapsed_s=0.0, message=""
    )


def tear_down(console: Console) -> None:
    with TeardownDisplay(console) as display:
        for key, step in (("n0", Step.STARTED), ("n1", Step.STARTED), ("n1", Step.DONE)):
            display.on_progress(moment(key, step))
        display.say("looking once more")


def test_a_teardown_is_lines_in_a_pipe_and_a_bar_below_them_on_a_terminal() -> None:
    console, plain = screen(terminal=False)
    tear_down(console)
    lines = ["n0: delete started", "n1: delete started", "n1: delete done", "looking once more"]
    assert plain.getvalue().splitlines() == lines
    console, drawn = screen(terminal=True)
    tear_down(console)
    assert "tearing down" in drawn.getvalue()
    assert " 50 %" in drawn.getvalue()
    assert all(line in drawn.getvalue() for line in lines)


def running(*, step: int, activity: str) -> RunProgress:
    return RunProgress(
        activity=activity,
        step=step,
        steps=200,
        loss=None,
        unigram_entropy=None,
        tokens_per_s=None,
        planned_iteration_s=0.5,
        calibrated_iteration_s=None,
        measured_iteration_s=None,
        spent_usd=0.0,
        budget_usd=None,
        expires_at=None,
        nodes=0,
        verification=None,
    )


def last_screen(step: int, activity: str, resources: tuple[ResourceNews, ...]) -> str:
    """Return what a live panel shows before it goes, after some news of resources."""
    console, drawn = screen(terminal=True)
    panel = LivePanel(console, FixedClock(NOW))
    panel.progress(running(step=step, activity=activity))
    for news in resources:
        panel.resource(news)
    panel.close()
    return drawn.getvalue()


def test_a_run_shows_which_share_of_its_nodes_are_there_and_then_of_its_steps() -> None:
    planned = tuple(
        ResourceNews(key=f"n{number}", state="create planned, 1.0000 USD/h", done=False) for number in range(4)
    )
    there = ResourceNews(key="n2", state="create done", done=True)
    creating = last_screen(0, "creating nodes", (*planned, there))
    assert " 25 %" in creating
    assert "n2: create done" in creating
    assert "n2: create planned" not in creating.rpartition("creating nodes")[2]
    assert " 75 %" in last_screen(150, "training", ())


def test_an_explanation_tells_how_many_of_its_searches_are_done() -> None:
    told: list[tuple[int, int]] = []
    found = api.explain(parse_job(SMALL_JOB), clock=FixedClock(NOW), progress=lambda done, of: told.append((done, of)))
    assert told == [(done, len(found.gains)) for done in range(len(found.gains))]
    assert len(told) >= 2
