"""A run whose controller was killed: the agents continue, `resume` takes over, `down` or the TTL ends it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from factories.local_runs import wait_until
from factories.quick_runs import CLOCK, QuickRun, hurry, journal, killed_run, planned, quick_run, steps_of, trained
from factories.runs import assert_nothing_is_left, processes_of, read_lines
from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.start import resume_run
from sailor_cloud.provision import processes
from sailor_cloud.provision.outcomes import applied_or_raise
from sailor_cloud.provision.providers.local.spec import VmInfo
from sailor_cloud.provision.provisioner import apply
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.state import fold
from sailor_cloud.workload import decoder

pytestmark = pytest.mark.slow


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickRun]:
    with quick_run(tmp_path, monkeypatch) as started:
        yield started


def has(event: str) -> Callable[[RunFolder], bool]:
    return lambda folder: bool(journal(folder, event))


def steps_on_node(folder: RunFolder) -> list[int]:
    return [e["step"] for e in read_lines(folder.node_dir("n0") / "agent.jsonl") if e["event"] == "step"]


def test_training_continues_without_a_controller_and_resume_takes_it_over(run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, trained(20), "--steps", "150")
    seen = max(steps_on_node(folder))
    wait_until(lambda: max(steps_on_node(folder)) >= seen + 20, "the ranks to continue alone")
    run.start(planned(steps=150), resume=True)
    run.wait_for(lambda folder: "took over generation 1" in run.notes.text, "the takeover")
    hurry(folder)
    outcome = run.end()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert "took over generation 1" in run.notes.text
    assert [event["step"] for event in steps_of(folder)] == list(range(1, 151)), "every step once, none twice"
    assert len(journal(folder, "generation_started")) == 1
    assert_nothing_is_left(folder.path)


def test_resume_releases_nodes_that_a_killed_controller_had_bought_to_grow(run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, trained(20), "--steps", "100000")
    document = folder.read_document()
    assert document.plan is not None
    added = replace(document.plan.nodes[0], id="n2")
    grown = replace(document, plan=replace(document.plan, nodes=(*document.plan.nodes, added)))
    expires_at = fold(read(folder.journal_file)).expires_at
    assert expires_at is not None
    assert len(applied_or_raise(apply(folder, grown, clock=CLOCK, expires_at=expires_at)).nodes) == 3
    run.start(planned(steps=100_000), resume=True)
    run.wait_for(lambda folder: "n2" in {entry["key"] for entry in journal(folder, "gone")}, "the release")
    assert "took over generation 1" in run.notes.text
    assert VmInfo.read(folder.node_dir("n2")) is None
    assert len(journal(folder, "generation_started")) == 1
    run.interrupt()
    assert run.end().ending is Ending.INTERRUPTED
    assert_nothing_is_left(folder.path)


def test_resume_finds_a_run_that_ended_alone_and_tears_it_down(run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, trained(5), "--steps", "40")
    wait_until(lambda: steps_on_node(folder)[-1] == 40, "the end of training")
    time.sleep(0.5)
    run.start(planned(steps=40), resume=True)
    assert run.end().ending is Ending.COMPLETED
    assert [event["step"] for event in steps_of(folder)] == list(range(1, 41))
    assert_nothing_is_left(folder.path)


def test_resume_restarts_from_the_checkpoint_when_a_node_was_lost_meanwhile(run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, trained(30), "--steps", "80", "--every", "0.5")
    for process in processes.of_node(folder.run_id, "n1"):
        os.kill(process.pid, signal.SIGKILL)
    run.start(planned(steps=80, every_s=0.5), resume=True)
    outcome = run.end()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert len(journal(folder, "nodes_lost")) == 1
    second = [event["step"] for event in steps_of(folder) if event["generation"] == 2]
    assert second[0] > 5
    assert second[-1] == 80
    assert_nothing_is_left(folder.path)


def test_resume_continues_after_a_controller_that_was_killed_while_it_stopped_the_ranks(run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, trained(20), "--steps", "60")
    for node in folder.nodes_dir.iterdir():
        spec = json.loads((node / "generations/1/spec.json").read_text())
        stop = {"command": "stop", "generation": 1, "plan_hash": spec["plan_hash"]}
        write_atomically(node / "inbox" / "0001-000009-stop.json", json.dumps(stop))
    run.start(planned(steps=60), resume=True)
    outcome = run.end()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert "an earlier controller had asked the ranks to stop; continuing from step" in run.notes.text
    assert [event["step"] for event in steps_of(folder)] == list(range(1, 61)), "every step once, none twice"
    assert [entry["data"]["end"] for entry in journal(folder, "generation_ended")] == ["stopped", "finished"]
    assert_nothing_is_left(folder.path)


@pytest.mark.parametrize("moment", ["run_created", "provision_started", "created"])
def test_resume_continues_where_provisioning_was_cut_off(moment: str, run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, has(moment), "--steps", "30")
    run.start(planned(steps=30), resume=True)
    outcome = run.end()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert_nothing_is_left(folder.path)


@pytest.mark.parametrize(
    "moment",
    [
        pytest.param(has("provision_started"), id="before apply"),
        pytest.param(trained(3), id="during training"),
        pytest.param(has("destroy_intended"), id="during destroy"),
    ],
)
def test_down_ends_a_run_whose_controller_was_killed(moment: Callable[[RunFolder], bool], run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, moment, "--steps", "10")
    assert take_down(folder, clock=CLOCK).clean
    assert_nothing_is_left(folder.path)
    assert take_down(folder, clock=CLOCK).clean


def test_nodes_end_themselves_at_the_ttl_and_down_charges_no_more_than_until_then(run: QuickRun) -> None:
    run.folder = folder = killed_run(run.home, trained(5), "--ttl", "15")
    wait_until(lambda: not processes_of(folder.run_id), "the end of all nodes, which else live for 10 minutes")
    receipt = take_down(folder, clock=CLOCK)
    assert receipt.clean
    assert all(line.quantity <= 60 / 3600 + 1e-9 for line in receipt.lines if line.unit == "h")
    assert_nothing_is_left(folder.path)


def test_a_run_that_is_over_can_not_be_resumed(run: QuickRun) -> None:
    document = planned(steps=3)
    run.start(document)
    run.end()
    assert run.folder is not None
    with pytest.raises(RequestError, match="is gone; there is nothing to continue with"):
        resume_run(run.folder, decoder=decoder(document.job.model), observer=run.notes, clock=CLOCK)
