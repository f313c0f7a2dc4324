"""What goes wrong while a run continues, on real local nodes with ranks that need no torch."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from factories.quick_runs import CLOCK, QuickRun, hurry, journal, planned, quick_run, steps_of, trained
from factories.runs import assert_nothing_is_left
from factories.webhooks import listener
from sailor_cloud.catalog import Services
from sailor_cloud.errors import DataError, MissingPriceError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.down import take_down
from sailor_cloud.launch.fleet import agents
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.telemetry.notify import TOKEN_VARIABLE, URL_VARIABLE
from sailor_cloud.provision import processes
from sailor_cloud.provision.providers.local.spec import VmInfo
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.history import past_run
from sailor_cloud.run.journal import read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.state import fold

pytestmark = pytest.mark.slow

LONG = 100_000


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[QuickRun]:
    with quick_run(tmp_path, monkeypatch) as started:
        yield started


def on_node(folder: RunFolder, node: str, word: str) -> list[processes.Process]:
    return [process for process in processes.of_node(folder.run_id, node) if word in process.command]


def kill_node(folder: RunFolder, node: str) -> None:
    """End a node as a provider does that takes it away: everything on it at once."""
    info = VmInfo.read(folder.node_dir(node))
    assert info is not None
    os.kill(info.pid, signal.SIGKILL)
    processes.end(lambda: processes.of_node(folder.run_id, node), grace_s=0.0)


def test_a_rank_that_fails_before_its_first_step_ends_the_run_with_its_last_words(run: QuickRun) -> None:
    run.start(planned(steps=LONG))
    folder = run.wait_for(lambda folder: (folder.node_dir("n1") / "inbox").is_dir(), "an agent")
    (folder.node_dir("n1") / "fail_at").write_text("1")
    outcome = run.end()
    assert (outcome.ending, outcome.exit_code) == (Ending.FAILED, 1)
    assert "rank 1 on node n1 ended with exit code 1" in outcome.message
    assert "RuntimeError: the job's own mistake" in outcome.message
    assert (folder.logs_dir / "n1" / "g1-rank1.log").is_file()
    assert len(journal(folder, "generation_started")) == 1
    assert_nothing_is_left(folder.path)


def test_prices_that_fail_under_way_end_the_run_and_keep_no_node(
    run: QuickRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(context: RunContext) -> float:
        raise MissingPriceError("no price of traffic from here to there")

    run.start(planned(steps=LONG))
    folder = run.wait_for(trained(3), "training")
    monkeypatch.setattr(RunContext, "used_usd", property(missing))
    outcome = run.end()
    assert (outcome.ending, outcome.message) == (Ending.FAILED, "no price of traffic from here to there")
    assert "tearing down; what is spent can't be computed: no price of traffic from here to there" in run.notes.text
    assert_nothing_is_left(folder.path)


def test_prices_that_can_not_be_read_end_a_run_before_it_buys(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(prices: UsagePrices) -> Services:
        raise DataError("services.csv can't be read")

    monkeypatch.setattr(UsagePrices, "services", property(unreadable))
    run.start(planned(steps=LONG))
    with pytest.raises(DataError, match=r"services\.csv can't be read"):
        run.end()
    [folder] = RunFolder.list(root=run.home / "runs")
    assert not journal(folder, "create_intended")


def test_a_failure_that_comes_back_at_the_same_step_is_tried_once_more_only(run: QuickRun) -> None:
    run.start(planned(steps=LONG))
    folder = run.wait_for(trained(3), "training")
    (folder.node_dir("n1") / "fail_at").write_text("60")
    outcome = run.end()
    assert outcome.ending is Ending.FAILED
    assert "failed 2 times without progress" in outcome.message
    assert "the job's own mistake" in outcome.message
    assert len(journal(folder, "generation_started")) == 2
    assert_nothing_is_left(folder.path)


def test_a_rank_that_dies_once_costs_no_more_than_the_steps_since_the_checkpoint(run: QuickRun) -> None:
    run.start(planned(steps=60, every_s=0.5))
    folder = run.wait_for(trained(20), "training")
    (rank,) = on_node(folder, "n1", "--spec")
    os.kill(rank.pid, signal.SIGKILL)
    assert run.end().ending is Ending.COMPLETED
    second = [event["step"] for event in steps_of(folder) if event["generation"] == 2]
    assert second == list(range(second[0], 61))
    assert second[0] > 5
    assert_nothing_is_left(folder.path)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """What a webhook with a token is told of a run, once that has ended; notices may overtake each other."""
    with listener() as (url, got):
        monkeypatch.setenv(URL_VARIABLE, url)
        monkeypatch.setenv(TOKEN_VARIABLE, "t0ken")

        def notices() -> list[str]:
            assert {(token, body["run"]) for token, body in got} == {("Bearer t0ken", got[0][1]["run"])}
            assert all(body["text"] for _, body in got)
            return sorted(body["event"] for _, body in got)

        yield notices


def test_a_lost_node_is_replaced_and_training_continues_from_the_checkpoint(
    run: QuickRun, told: Callable[[], list[str]]
) -> None:
    run.start(planned(steps=80, every_s=0.5))
    folder = run.wait_for(trained(20), "training")
    kill_node(folder, "n1")
    outcome = run.end()
    assert told() == ["finished", "preempted", "started"]
    assert outcome.ending is Ending.COMPLETED, outcome.message
    (lost,) = journal(folder, "nodes_lost")
    assert lost["data"]["nodes"] == ["n1"]
    (choice,) = journal(folder, "replanned")
    assert choice["data"]["choice"] == "replace"
    assert choice["data"]["lost"] == ["n1"]
    assert len(choice["data"]["bought"]) == 1
    names = {resource.name for resource in outcome.receipt.resources}
    assert names == {"n0", "n1", *choice["data"]["bought"]}
    assert len({line.key for line in outcome.receipt.lines}) == 3
    second = [event["step"] for event in steps_of(folder) if event["generation"] == 2]
    assert second[-1] == 80
    assert second[0] > 5
    assert_nothing_is_left(folder.path)


@pytest.mark.parametrize(
    ("mistake", "attempts"),
    [
        ("CUDA error: uncorrectable ECC error encountered", 2),
        # A program's kernel may cause this one too, so the node gets a second chance.
        ("CUDA error: unspecified launch failure", 3),
    ],
)
def test_a_node_with_a_broken_device_is_replaced(run: QuickRun, mistake: str, attempts: int) -> None:
    run.start(planned(steps=60))
    folder = run.wait_for(trained(3), "training")
    (folder.node_dir("n1") / "mistake").write_text(mistake)
    (folder.node_dir("n1") / "fail_at").write_text("40")
    outcome = run.end()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    (lost,) = journal(folder, "nodes_lost")
    assert lost["data"]["nodes"] == ["n1"]
    assert mistake in lost["data"]["why"]
    (choice,) = journal(folder, "replanned")
    assert choice["data"]["lost"] == ["n1"]
    assert len(journal(folder, "generation_started")) == attempts
    assert_nothing_is_left(folder.path)


def test_a_node_about_to_be_preempted_saves_a_checkpoint(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    with metadata_server() as (address, taken):

        def watching(link: agents.AgentLink) -> list[str]:
            return ["--provider", "gcp", "--metadata-address", address] if link.node.id == "n1" else []

        monkeypatch.setattr(agents.AgentLink, "_cloud_options", watching)
        run.start(planned(steps=400))
        folder = run.wait_for(trained(20), "training")
        taken.set()
        run.wait_for(lambda folder: any(event["generation"] == 2 for event in steps_of(folder)), "another generation")
        hurry(folder)
        assert run.end().ending is Ending.COMPLETED
    first = [event["step"] for event in steps_of(folder) if event["generation"] == 1]
    second = [event["step"] for event in steps_of(folder) if event["generation"] == 2]
    assert second[0] == first[-1] + 1, "nothing is done twice"
    assert "the provider or scheduler takes back node n1" in run.notes.text
    assert_nothing_is_left(folder.path)


@contextmanager
def metadata_server() -> Iterator[tuple[str, threading.Event]]:
    """Answers as the metadata server of Compute Engine does; once the event is set, the instance is preempted."""
    taken = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"TRUE" if taken.is_set() else b"FALSE"
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", taken
        finally:
            server.shutdown()
            thread.join()


def test_a_broken_connection_is_reopened_and_nothing_is_lost(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    links: list[agents.AgentLink] = []
    ensure = agents.AgentLink.ensure_agent

    async def kept(self: agents.AgentLink) -> None:
        links.append(self)
        await ensure(self)

    monkeypatch.setattr(agents.AgentLink, "ensure_agent", kept)
    run.start(planned(steps=60))
    folder = run.wait_for(trained(10), "training")
    for link in links:
        assert link.connection._connection is not None
        link.connection._connection.abort()
    assert run.end().ending is Ending.COMPLETED
    assert [event["step"] for event in steps_of(folder)] == list(range(1, 61))
    assert len(journal(folder, "generation_started")) == 1
    assert_nothing_is_left(folder.path)


def test_an_agent_that_never_says_hello_ends_the_run(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "RANK_MODULE", "--nonsense")
    run.start(planned(steps=10))
    outcome = run.end()
    assert (outcome.ending, outcome.exit_code) == (Ending.FAILED, 1)
    assert "sailor_runtime.agent" in outcome.message or "-m ..." in outcome.message
    assert "expected one argument" in outcome.message
    assert run.folder is not None
    assert_nothing_is_left(run.folder.path)


def test_an_agent_that_dies_is_started_again(run: QuickRun) -> None:
    run.start(planned(steps=60, every_s=0.5))
    folder = run.wait_for(trained(20), "training")
    for process in on_node(folder, "n0", "sailor_runtime.agent"):
        os.kill(process.pid, signal.SIGKILL)
    assert run.end().ending is Ending.COMPLETED
    assert len(journal(folder, "generation_started")) == 2
    assert_nothing_is_left(folder.path)


def test_a_refused_generation_ends_the_run_with_the_reason(run: QuickRun, monkeypatch: pytest.MonkeyPatch) -> None:
    send = agents.AgentLink.command

    async def spoiled(self: agents.AgentLink, name: str, *, generation: int, plan_hash: str, **details: object) -> None:
        await send(self, name, generation=generation, plan_hash="another plan", **details)

    monkeypatch.setattr(agents.AgentLink, "command", spoiled)
    run.start(planned(steps=10))
    outcome = run.end()
    assert outcome.ending is Ending.FAILED
    assert "refused the generation: command has plan_hash 'another plan'" in outcome.message
    assert run.folder is not None
    assert_nothing_is_left(run.folder.path)


def test_event_lines_that_make_no_sense_are_left_out(run: QuickRun) -> None:
    run.start(planned(steps=60))
    folder = run.wait_for(trained(10), "training")
    with (folder.node_dir("n0") / "agent.jsonl").open("ab") as events:
        events.write(b'{"event": "step", "genera\n[1, 2]\n\xff\xfe\n{"event": "step", "generation": 1}\n')
    assert run.end().ending is Ending.COMPLETED
    assert [event["step"] for event in steps_of(folder)] == list(range(1, 61))
    assert_nothing_is_left(folder.path)


def test_the_budget_ends_a_run_with_a_checkpoint_and_is_kept(run: QuickRun, told: Callable[[], list[str]]) -> None:
    # Two nodes at 1000 USD/h use up 40 USD in 72 s, of which the reserve of a minute is kept back.
    run.start(planned(steps=LONG, budget_usd=40.0, usd_per_hour=1000.0))
    outcome = run.end()
    assert (outcome.ending, outcome.exit_code) == (Ending.BUDGET, 4)
    assert run.folder is not None
    assert outcome.receipt.spent_usd <= 40.0
    last = max(event["step"] for event in steps_of(run.folder))
    assert int((run.folder.checkpoints_dir / "latest").read_text()) == last
    assert f"step {last} of {LONG} is saved in {run.folder.checkpoints_dir}" in outcome.message
    assert [entry["data"]["notice"] for entry in journal(run.folder, "notified")] == [
        "budget-50",
        "budget-80",
        "budget-100",
    ]
    assert told() == ["budget-100", "budget-50", "budget-80", "failed", "started"]
    assert_nothing_is_left(run.folder.path)


def test_a_later_run_continues_from_the_checkpoints_that_its_job_names(run: QuickRun, tmp_path: Path) -> None:
    base = planned(steps=30)
    kept = base.job.checkpoint.model_copy(update={"to": str(tmp_path)})
    first = replace(base, job=base.job.model_copy(update={"checkpoint": kept}))
    (tmp_path / "latest").write_text("12")
    run.start(first)
    assert run.end().ending is Ending.COMPLETED
    assert run.folder is not None
    assert [event["step"] for event in steps_of(run.folder)] == list(range(13, 31))
    assert (tmp_path / "latest").read_text() == "30"


def test_an_interruption_of_the_teardown_leaves_a_completed_run_completed(run: QuickRun) -> None:
    run.start(planned(steps=3))
    folder = run.wait_for(lambda folder: bool(journal(folder, "training_finished")), "its teardown")
    run.interrupt()
    outcome = run.end()
    assert (outcome.ending, outcome.exit_code) == (Ending.COMPLETED, 0)
    past = past_run(folder)
    assert past is not None
    assert past.outcome == fold(read(folder.journal_file)).outcome == "completed"
    # Without its journal, the run keeps its outcome, its steps and its end.
    folder.journal_file.unlink()
    assert take_down(folder, clock=CLOCK).outcome == "completed"
    assert past_run(folder) == past


def test_two_runs_at_once_do_not_see_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with quick_run(tmp_path, monkeypatch) as first, quick_run(tmp_path, monkeypatch) as second:
        first.start(planned(steps=60))
        second.start(planned(steps=LONG))
        assert first.end().ending is Ending.COMPLETED
        folder = second.wait_for(trained(1), "training")
        assert first.folder is not None
        assert_nothing_is_left(first.folder.path)
        second.interrupt()
        outcome = second.end()
        assert (outcome.ending, outcome.exit_code) == (Ending.INTERRUPTED, 130)
        assert_nothing_is_left(folder.path)
        receipt = json.loads(folder.receipt_file.read_text())
        assert {row["name"] for row in receipt["resources"]} == {"n0", "n1"}
