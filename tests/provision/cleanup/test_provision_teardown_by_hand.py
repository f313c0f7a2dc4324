"""What a teardown does step by step, on paper: no Terraform runs, and the cloud is a list in memory.

Kinds, places and what confirms what are the real ones of Google Cloud.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from factories.cloud_plans import gcp_document
from factories.cloud_runs import PROJECT, small_document
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import ProvisionError, RequestError
from sailor_cloud.launch.down import take_down
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.bookkeeping import NODE, node_intent, open_node
from sailor_cloud.provision.cleanup import leftovers, teardown
from sailor_cloud.provision.cleanup.teardown import TeardownResult, destroy
from sailor_cloud.provision.damage import restore_ledger
from sailor_cloud.provision.errors.rules import Backoff
from sailor_cloud.provision.live_resources import (
    FOLDER,
    HOLDS_OBJECTS,
    CloudSweep,
    LiveResource,
    Scope,
    Scopes,
    SearchedPlace,
    of_provider,
)
from sailor_cloud.provision.rendering.root import BACKEND_FILE, placed_nodes, root_of
from sailor_cloud.provision.scopes import check_own, scopes_for_journal, scopes_of
from sailor_cloud.provision.terraform.driver import Diagnostic, TerraformCommandError
from sailor_cloud.provision.terraform.progress import Interrupt, ProvisionInterrupted
from sailor_cloud.run.appended import kept_lines
from sailor_cloud.run.folder import RunFolder, resource_name, resource_prefix
from sailor_cloud.run.journal import Draft, Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import Phase, ResourceState, fold

GCP = Provider("gcp")
BEGUN = datetime(2026, 11, 24, 10, tzinfo=UTC)
NOW = BEGUN + timedelta(hours=2)
RUN = "tiny-20261124-100000-a1b2"
BUCKET = resource_name(RUN, "data")
LOCKED = Diagnostic(
    summary="Error acquiring the state lock", detail="  ID:        0a1b2c3d-0000-4000-8000-000000000000\n", address=""
)
THROTTLED = Diagnostic(summary="googleapi: Error 403: Rate Limit Exceeded, rateLimitExceeded", detail="", address="")
BROKEN = Diagnostic(summary="something that nobody knows", detail="", address="")


def live(kind: str, name: str, **more: Any) -> LiveResource:
    return LiveResource(provider=GCP, region="us-central1", type=kind, name=name, run_id=RUN, project=PROJECT, **more)


def node(name: str) -> LiveResource:
    return live("google_compute_instance", f"sc-{name}", node=name, zone="us-central1-a")


@dataclass(slots=True)
class Paper:
    """A cloud, and Terraform beside it, which has destroyed what `failures` does not keep it from."""

    alive: list[LiveResource] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    stuck: set[str] = field(default_factory=set)
    told: list[str] = field(default_factory=list)
    failures: list[Any] = field(default_factory=list)
    pauses: list[float] = field(default_factory=list)
    refuses: tuple[str, ...] = ()
    unsure: tuple[LiveResource, ...] = ()
    drivers: list[tuple[str, Any, float]] = field(default_factory=list)
    begun: list[str] = field(default_factory=list)

    def sweep(
        self, scopes: Scopes, *, run_id: str | None = None, other_kinds: Iterable[str] | None = None
    ) -> CloudSweep:
        asked = []
        for name, bought in providers.all_providers():
            kinds = (
                bought.non_compute_kinds if other_kinds is None else bought.non_compute_kinds & frozenset(other_kinds)
            )
            for look in bought.searches(of_provider(scopes, name), run_id=run_id, other_kinds=kinds):
                places = ((scope, kind) for scope in look.scopes for kind in look.kinds)
                asked += [
                    SearchedPlace(scope=scope, kind=kind, problem=self.silent.get(kind, "")) for scope, kind in places
                ]
        known = {one.kind for one in asked}
        found = tuple(one for one in self.alive if one.type in known and one.type not in self.silent)
        return CloudSweep(found=found, searched=tuple(asked), unconfirmed=self.unsure)

    def here(self, folder: RunFolder) -> CloudSweep:
        return CloudSweep(found=tuple(one for one in self.alive if one.type == FOLDER))

    def remove(self, found: Iterable[LiveResource], *, folder: RunFolder | None = None) -> tuple[str, ...]:
        names = {one.name for one in found}
        self.told.append(f"remove {' '.join(sorted(names))}")
        self.alive = [one for one in self.alive if one.name not in names - self.stuck]
        return self.refuses

    def driver(self, folder: RunFolder, root: Any, **options: Any) -> Any:
        def destroy(target: str | None, *, refresh: bool) -> None:
            self.told.append(f"{root.path.name} {target or 'all'}{' refreshed' if refresh else ''}")
            failure = self.failures.pop(0) if self.failures else None
            if isinstance(failure, Exception):
                raise failure
            if failure is not None:
                raise TerraformCommandError(str(failure), (failure,))
            free = [one for one in self.alive if one.name not in self.stuck]
            mine = [one for one in free if target is None or one.type == "google_compute_instance"]
            kept = BUCKET if f"forget {root.path.name}" in self.told or root.path.name != "gcp-data" else ""
            self.alive = [one for one in self.alive if one not in mine or one.name == kept]

        self.drivers.append((root.path.name, options["binary"], options["timeout_s"]))
        return SimpleNamespace(
            init=lambda: self.begun.append(root.path.name),
            destroy=destroy,
            state_list=lambda: (f"google_storage_bucket.run[{BUCKET!r}]",),
            forget=lambda address: self.told.append(f"forget {root.path.name}"),
            force_unlock=lambda lock: self.told.append(f"unlock {lock}"),
        )


@dataclass(slots=True)
class Run:
    """A run that has bought two nodes, a network and a firewall in one region."""

    folder: RunFolder
    document: PlanDocument
    paper: Paper
    clock: FixedClock = field(default_factory=lambda: FixedClock(NOW))

    def journal(self, at: datetime = BEGUN) -> Journal:
        return Journal.of(self.folder, FixedClock(at))

    def bought(self, *, created: bool = True, charged: bool = True) -> Run:
        journal = self.journal()
        journal.append(Event.RUN_CREATED, job="tiny", run=self.folder.run_id)
        expires = (BEGUN + timedelta(hours=9)).isoformat()
        journal.append(Event.PROVISION_STARTED, expires_at=expires, **scopes_for_journal(scopes_of(self.document)))
        place = {"provider": GCP, "region": "us-central1", "stack": "gcp"}
        kinds = ("google_compute_network", "google_compute_firewall")
        drafts = [node_intent(placed) for placed in placed_nodes(self.document)]
        drafts += [Draft(event=Event.CREATE_INTENDED, resource=kind, key=f"gcp/{kind}", data=place) for kind in kinds]
        journal.append_all(drafts)
        if created:
            journal.append_all([Draft(event=Event.CREATED, resource=draft.resource, key=draft.key) for draft in drafts])
            for placed in placed_nodes(self.document) if charged else ():
                ledger = Ledger.of(self.folder, FixedClock(BEGUN))
                open_node(ledger, placed.node.id, node_intent(placed).data, since=BEGUN)
            self.paper.alive = [node("n0"), node("n1"), live("google_compute_network", "sc-net")]
            self.paper.alive.append(live("google_compute_firewall", "sc-ssh"))
        return self

    def roots(self, *stacks: str) -> Run:
        for stack in stacks:
            root = root_of(self.folder, GCP, "us-central1", stack=stack)
            root.path.mkdir(parents=True)
            (root.path / "terraform.tfvars.json").write_text('{"network": null}')
            root.state_file.write_text("{}")
        return self

    def down(self, **options: Any) -> TeardownResult:
        settings = {"clock": self.clock, "terraform": "a binary", "pause": self.paper.pauses.append, **options}
        return destroy(self.folder, **settings)

    def state(self) -> Any:
        return fold(self.journal().entries())

    def last(self) -> Any:
        return self.journal().entries()[-1]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    return made(tmp_path, monkeypatch, small_document(GCP))


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, document: PlanDocument) -> Run:
    paper, folder = Paper(), RunFolder.create(RUN, root=tmp_path)
    folder.write_document(document)
    monkeypatch.setattr(leftovers, "sweep_scopes", paper.sweep)
    monkeypatch.setattr(leftovers, "sweep_this_machine", paper.here)
    monkeypatch.setattr(leftovers, "remove_from", paper.remove)
    monkeypatch.setattr(teardown, "open_driver", paper.driver)
    monkeypatch.setattr(teardown.processes, "terraform_of", lambda run_id: [])
    return Run(folder=folder, document=document, paper=paper)


def test_nodes_go_first_then_the_rest_and_all_is_confirmed_with_its_time(run: Run) -> None:
    run.bought().roots("gcp", "gcp-data")
    told = run.down()
    assert run.paper.told == ["gcp module.cluster.google_compute_instance.node", "gcp all", "gcp-data all"]
    assert (told.clean, told.problems, told.remaining, told.kept) == (True, (), (), ())
    assert {row.name: row.gone_at for row in told.resources} == dict.fromkeys(
        ("n0", "n1", "gcp/google_compute_network", "gcp/google_compute_firewall"), NOW
    )
    assert {row.confirmed_by for row in told.resources} == {"sweep by tag"}
    assert {place.asked_at for place in told.asked} == {NOW}
    assert run.state().phase is Phase.GONE
    ledger = Ledger.of(run.folder, run.clock)
    assert ledger.usd_per_hour() == 0
    assert {line.quantity for line in ledger.lines()} == {2.0}
    assert run.paper.pauses == []


def test_each_step_is_written_down_in_its_order(run: Run) -> None:
    run.bought().roots("gcp", "gcp-data")
    run.folder.keep_reserve()
    run.down()
    names = ["n0", "n1", "gcp/google_compute_network", "gcp/google_compute_firewall"]
    assert [(entry.event, entry.key) for entry in run.journal().entries()][-10:] == [
        (Event.TEARDOWN_STARTED, ""),
        *((Event.DESTROY_INTENDED, name) for name in names),
        *((Event.GONE, name) for name in names),
        (Event.TORN_DOWN, ""),
    ]
    assert run.paper.begun == ["gcp", "gcp", "gcp-data"]
    assert run.paper.drivers == [(name, "a binary", 1800.0) for name in run.paper.begun]
    assert run.folder.terraform_config_file.is_file()
    assert not (run.folder.path / "reserve").exists()


def test_a_state_that_is_kept_elsewhere_is_destroyed_too(run: Run) -> None:
    run.bought().roots("gcp")
    (base,) = run.folder.terraform_dirs()
    (state,) = base.rglob("terraform.tfstate")
    state.rename(state.with_name(BACKEND_FILE))
    assert run.down().clean
    assert run.paper.told == ["gcp all"]


def test_an_interrupt_between_the_steps_ends_the_teardown_without_a_word_of_gone(run: Run) -> None:
    run.bought()
    stop = Interrupt()
    stop.request()
    with pytest.raises(ProvisionInterrupted):
        run.down(interrupt=stop)
    assert run.last().event is Event.DESTROY_INTENDED
    assert run.paper.told == []


def test_regions_with_a_network_of_others_go_before_it_and_links_before_both(run: Run) -> None:
    aws, order = Provider("aws"), []
    for stack, region, network in (
        ("aws", "us-east-1", '{"network": null}'),
        ("aws", "us-west-2", '{"network": "of another"}'),
        ("aws-links", "us-east-1--us-west-2", "{}"),
        ("aws-capacity", "us-east-1", "{}"),
        ("aws-data", "us-east-1", "{}"),
    ):
        root = root_of(run.folder, aws, region, stack=stack)
        root.path.mkdir(parents=True)
        (root.path / "terraform.tfvars.json").write_text(network)
        root.state_file.write_text("{}")

    def driver(folder: RunFolder, root: Any, **options: Any) -> Any:
        def destroy(target: str | None, *, refresh: bool) -> None:
            order.append((root.stack, root.region, target))

        return SimpleNamespace(init=lambda: None, destroy=destroy, state_list=tuple)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(teardown, "open_driver", driver)
        run.down()
    machines = providers.of("aws").machines
    assert sorted(order[:2]) == [("aws", "us-east-1", machines), ("aws", "us-west-2", machines)]
    assert order[2:] == [
        ("aws-links", "us-east-1--us-west-2", None),
        ("aws", "us-west-2", None),
        ("aws", "us-east-1", None),
        ("aws-capacity", "us-east-1", None),
        ("aws-data", "us-east-1", None),
    ]


def test_a_torn_down_run_is_torn_down_again_if_a_search_is_in_doubt(run: Run) -> None:
    run.bought().roots("gcp")
    run.down()
    run.paper.silent = {"google_compute_disk": "disks can't be listed"}
    assert not run.down().clean
    assert run.last().event is Event.TEARDOWN_FAILED
    run.paper.silent = {}
    assert run.down().clean
    run.paper.unsure = (live("job", "7", silent="its machine does not answer"),)
    told = run.down()
    assert told.problems == ("not confirmed as gone: job 7: its machine does not answer",)
    assert [entry.event for entry in run.journal().entries()].count(Event.TEARDOWN_STARTED) == 4


def test_a_torn_down_run_without_known_places_is_in_doubt(run: Run) -> None:
    run.folder.plan_file.unlink()
    run.journal().append(Event.RUN_CREATED, job="tiny")
    run.journal().append(Event.TORN_DOWN)
    assert not run.down().clean
    assert run.last().event is Event.TEARDOWN_FAILED


def test_a_damaged_journal_is_reported_and_what_may_come_late_is_waited_for(run: Run) -> None:
    run.bought().roots("gcp")
    lines = run.folder.journal_file.read_text().splitlines(keepends=True)
    run.folder.journal_file.write_text("".join([*lines[:2], *lines[3:]]))
    with run.folder.ledger_file.open("a") as ledger:
        ledger.write("garbage\n")
    run.paper.stuck, run.paper.refuses = {"sc-net"}, ("sc-net can't be deleted: no",)
    harm = f"{run.folder.journal_file} lacks entry 3"
    told = run.down(backoff=Backoff(first_s=1.0, factor=3.0, attempts=4))
    assert told.problems == (
        f"{harm}; every possible place is searched instead",
        f"1 lines of {run.folder.ledger_file} can't be read: more may have been spent than the ledger says",
        "sc-net can't be deleted: no",
    )
    (damaged,) = [entry for entry in run.journal().entries() if entry.event is Event.JOURNAL_DAMAGED]
    assert damaged.data == {"why": harm}
    assert run.paper.pauses == [10.0, 1.0, 3.0, 9.0]


def test_a_journal_that_can_not_be_written_to_keeps_no_node_alive(run: Run) -> None:
    run.bought()
    run.folder.journal_file.unlink()
    run.folder.journal_file.mkdir()
    run.down()
    assert run.paper.alive == []
    assert len(kept_lines(run.folder.journal_file)) >= 4


def test_where_no_place_is_known_what_is_stuck_here_is_not_waited_for(run: Run) -> None:
    run.folder.plan_file.unlink()
    run.journal().append(Event.RUN_CREATED, job="tiny")
    run.paper.alive, run.paper.stuck = [live(FOLDER, "n0", node="n0")], {"n0"}
    run.paper.refuses = ("n0 can't be deleted: no",)
    told = run.down()
    assert told.problems == ("the price of node n0 is unknown; the ledger lacks it", *run.paper.refuses)
    assert run.paper.pauses == []


def test_system_errors_during_a_deletion_are_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.bought()

    def refuse(found: Iterable[LiveResource], *, folder: RunFolder | None = None) -> tuple[str, ...]:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(leftovers, "remove_from", refuse)
    assert run.down(backoff=Backoff(attempts=1)).problems == ("No space left on device",)


def test_a_folder_that_a_node_has_left_here_is_no_node_that_runs(run: Run) -> None:
    run.bought()
    run.clock = FixedClock(BEGUN + timedelta(hours=30))
    run.journal().append(Event.GONE, resource=NODE, key="n1")
    run.paper.alive = [live(FOLDER, "n0", node="n0"), live(FOLDER, "n1", node="n1")]
    assert run.down().clean
    of_n1 = [entry.event for entry in run.journal().entries() if entry.key == "n1"]
    assert of_n1 == [Event.CREATE_INTENDED, Event.CREATED, Event.GONE]
    (n0,) = {line.quantity for line in Ledger.of(run.folder, run.clock).lines() if line.what.startswith("n0")}
    assert n0 == 9.0


def test_a_node_that_its_controller_had_no_time_to_write_down_is_paid_for(run: Run) -> None:
    run.bought(created=False)
    run.paper.alive = [node("n0")]
    assert run.down().problems == ()
    lines = Ledger.of(run.folder, run.clock).lines()
    assert {line.what.partition(":")[0] for line in lines} == {"n0"}
    assert {line.quantity for line in lines} == {2.0}


def test_only_what_was_paid_for_is_missed_in_a_ledger(run: Run) -> None:
    run.bought(created=False)
    run.journal().append(Event.CREATED, resource="google_compute_network", key="gcp/google_compute_network")
    assert run.down().problems == ()


def test_nodes_that_have_ended_by_themselves_were_paid_for(run: Run) -> None:
    run.bought(charged=False)
    run.paper.alive = []
    run.down()
    assert {line.quantity for line in Ledger.of(run.folder, run.clock).lines()} == {2.0}


def test_capacity_is_paid_for_if_it_was_bought_until_it_is_given_back(run: Run) -> None:
    """By the hour, 3.5 USD, two hours; or a whole block for 40 USD."""
    run.bought().roots("gcp")
    kind = "google_compute_network"

    def bought(name: str, usd: float | None, *, created: bool = False) -> None:
        told = {"what": f"capacity {name}", "part": "compute", "price_source": "list", "price_as_of": "2026-11-01"}
        place = {"provider": GCP, "region": "us-central1", "stack": "gcp", "capacity": name}
        prices = {"usd": usd, "usd_per_hour": 3.5}
        run.journal().append(Event.CREATE_INTENDED, resource=kind, key=f"gcp/{name}", **told, **place, **prices)
        if created:
            run.journal().append(Event.CREATED, resource=kind, key=f"gcp/{name}")

    bought("hourly", None, created=True)
    bought("block", 40.0)
    bought("never", 50.0)
    run.paper.alive.append(live(kind, "r-1", title=resource_name(RUN, "block")))
    assert run.down().clean
    ledger = Ledger.of(run.folder, run.clock)
    lines = {line.what: (line.quantity, line.usd) for line in ledger.lines() if line.what.startswith("capacity")}
    assert lines == {"capacity hourly": (2.0, 7.0), "capacity block": (1.0, 40.0)}
    assert ledger.usd_per_hour() == 0


def test_a_single_root_is_destroyed_in_one_go(run: Run) -> None:
    run.bought().roots("gcp")
    assert run.down().clean
    assert run.paper.told == ["gcp all"]


def test_a_torn_down_run_is_only_searched_again(run: Run) -> None:
    run.bought().roots("gcp")
    run.down()
    entries, run.paper.told = len(run.journal().entries()), []
    assert run.down().clean
    assert (len(run.journal().entries()), run.paper.told) == (entries, [])
    run.paper.alive = [node("n1")]
    again = run.down()
    assert again.clean
    assert "gcp all" in run.paper.told
    assert run.state().phase is Phase.GONE


def test_without_terraforms_states_all_goes_by_tag(run: Run) -> None:
    run.bought()
    told = run.down()
    assert run.paper.told == ["remove sc-n0 sc-n1 sc-net sc-ssh"]
    assert told.clean


def test_requested_resources_may_appear_late_and_are_awaited(run: Run) -> None:
    run.bought(created=False)
    assert run.down().clean
    assert run.paper.pauses == [10.0]
    assert Ledger.of(run.folder, run.clock).lines() == ()


def test_a_node_that_no_longer_ran_had_ended_at_its_expiry_at_the_latest(run: Run) -> None:
    run.bought()
    run.clock = FixedClock(BEGUN + timedelta(hours=30))
    run.paper.alive = [node("n1")]
    assert run.down().clean
    quantities = {line.what.partition(":")[0]: line.quantity for line in Ledger.of(run.folder, run.clock).lines()}
    assert quantities == {"n0": 9.0, "n1": 30.0}


@pytest.mark.parametrize("lost", [False, True], ids=["not closed", "lost"])
def test_the_journal_alone_tells_until_when_a_node_ran_beyond_its_expiry(run: Run, lost: bool) -> None:
    run.bought()
    opened = run.folder.ledger_file.read_bytes()
    run.clock = FixedClock(BEGUN + timedelta(hours=30))
    run.paper.alive = [node("n1")]
    assert run.down().clean
    run.folder.ledger_file.write_bytes(b"" if lost else opened)
    ledger = Ledger.of(run.folder, FixedClock(BEGUN + timedelta(hours=40)))
    restore_ledger(run.folder, ledger)
    quantities = {line.what.partition(":")[0]: line.quantity for line in ledger.lines()}
    assert quantities == {"n0": 9.0, "n1": 30.0}


def test_a_node_beyond_its_expiry_is_charged_after_a_teardown_that_was_killed_once_it_was_deleted(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.bought().roots("gcp")
    run.clock = FixedClock(BEGUN + timedelta(hours=30))
    with monkeypatch.context() as killed:
        killed.setattr(teardown._Teardown, "_confirm", lambda *arguments: sys.exit("killed"))
        with pytest.raises(SystemExit):
            run.down()
    assert not any(one.node for one in run.paper.alive)
    run.clock = FixedClock(BEGUN + timedelta(hours=40))
    assert run.down().clean
    assert {line.quantity for line in Ledger.of(run.folder, run.clock).lines()} == {30.0}


def test_a_kind_that_was_not_answered_for_is_not_confirmed(run: Run) -> None:
    run.bought().roots("gcp")
    run.paper.silent = {"google_compute_instance": "instances can't be listed"}
    told = run.down()
    assert not told.clean
    assert told.problems.count("instances can't be listed") == 1
    assert {row.name for row in told.resources if row.gone_at is None} == {"n0", "n1"}
    assert (run.last().event, run.state().phase) == (Event.TEARDOWN_FAILED, Phase.TEARDOWN_FAILED)
    assert run.last().data["message"].startswith("not confirmed as gone: node n0; node n1; instances can't be")
    assert {place.problem for place in told.asked} == {"", "instances can't be listed"}
    assert Ledger.of(run.folder, run.clock).usd_per_hour() > 0
    run.paper.silent = {}
    assert run.down().clean
    assert run.state().phase is Phase.GONE


def test_a_failed_removal_is_retried_and_then_reported_as_still_there(run: Run) -> None:
    run.bought()
    run.paper.stuck, run.paper.refuses = {"sc-n1"}, ("sc-n1 can't be deleted: no",)
    told = run.down()
    assert run.paper.pauses == [5.0, 10.0, 20.0, 40.0, 60.0]
    assert told.problems == ("sc-n1 can't be deleted: no",)
    assert [row.name for row in told.remaining] == ["sc-n1"]
    assert [(row.name, row.found) for row in told.resources if row.gone_at is None] == [("n1", True)]
    assert run.last().data["message"] == "still there: google_compute_instance sc-n1"
    assert len(run.paper.pauses) == len(run.paper.told) - 1 > 2
    assert run.paper.pauses == sorted(run.paper.pauses)


def test_a_stale_lock_is_broken_and_the_second_attempt_reads_everything_again(run: Run) -> None:
    run.bought().roots("gcp")
    run.paper.failures = [LOCKED]
    told = run.down()
    assert told.clean
    assert told.problems == ()
    assert run.paper.told == ["gcp all", "unlock 0a1b2c3d-0000-4000-8000-000000000000", "gcp all refreshed"]


def test_a_cloud_that_throttles_is_asked_for_less_after_a_pause(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.bought().roots("gcp")
    paces: list[int | None] = []
    driver = run.paper.driver

    def noted(folder: RunFolder, root: Any, **options: Any) -> Any:
        paces.append(options["pace"])
        return driver(folder, root, **options)

    monkeypatch.setattr(teardown, "open_driver", noted)
    run.paper.failures = [THROTTLED, THROTTLED]
    told = run.down()
    assert (told.clean, told.problems) == (True, ())
    assert len(run.paper.pauses) == 2
    assert paces[0].max_concurrent == 50  # type: ignore[union-attr] # a quarter of 200


def test_a_cloud_that_keeps_throttling_is_abandoned(run: Run) -> None:
    run.bought().roots("gcp")
    run.paper.failures = [THROTTLED] * 9
    told = run.down(backoff=Backoff(first_s=1.0, attempts=3))
    assert (told.problems, told.clean) == ((str(THROTTLED),), True)
    assert run.paper.pauses == [1.0, 2.0]


def test_a_failure_that_names_no_fault_is_tried_twice_at_the_same_pace(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.bought().roots("gcp")
    paces: list[Any] = []
    driver = run.paper.driver
    monkeypatch.setattr(
        teardown, "open_driver", lambda *args, **options: (paces.append(options["pace"]), driver(*args, **options))[1]
    )
    run.paper.failures = [TerraformCommandError("it broke", ()), BROKEN, BROKEN]
    assert run.down().problems == (str(BROKEN),)
    assert run.paper.told[:3] == ["gcp all", "gcp all refreshed", "remove sc-n0 sc-n1 sc-net sc-ssh"]
    assert paces[0].max_concurrent == 200
    assert run.paper.pauses == []


def test_a_lock_that_can_not_be_broken_or_names_nobody_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.bought().roots("gcp")
    driver = run.paper.driver

    def locked(*args: Any, **options: Any) -> Any:
        made = driver(*args, **options)

        def refuse(lock: str) -> None:
            raise TerraformCommandError(f"{lock[:4]} is held", ())

        made.force_unlock = refuse
        return made

    monkeypatch.setattr(teardown, "open_driver", locked)
    run.paper.failures = [LOCKED]
    assert run.down().problems == ("0a1b is held",)
    run.journal().append(Event.CREATED, resource=NODE, key="n0")
    run.paper.failures = [Diagnostic(summary=LOCKED.summary, detail="", address="")]
    assert run.down().problems == ()


def test_data_roots_stay_while_a_cluster_is_not_destroyed(run: Run) -> None:
    """The watchdog stands there, and still deletes what nobody else could."""
    run.bought().roots("gcp", "gcp-data")
    run.paper.failures = [BROKEN, BROKEN, BROKEN, BROKEN]
    told = run.down()
    assert "gcp-data all" not in run.paper.told
    assert run.paper.told[0] == "gcp module.cluster.google_compute_instance.node"
    assert [told for told in told.problems if "nobody knows" in told] == [str(BROKEN)]
    assert run.paper.told.count("gcp all") + run.paper.told.count("gcp all refreshed") == 2
    assert run.paper.told[-1].startswith("remove ")
    assert told.clean


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), ProvisionError("no Terraform")])
def test_without_terraform_all_is_removed_by_tag_and_that_is_reported_once(run: Run, failure: Exception) -> None:
    run.bought().roots("gcp", "gcp-data")
    run.paper.failures = [failure] * 4
    told = run.down()
    why = "No space left on device" if isinstance(failure, OSError) else "no Terraform"
    assert told.problems == (f"{why}; what it had created is removed by tag",)
    assert told.clean


def test_resources_missing_from_the_journal_are_found_journaled_and_removed(run: Run) -> None:
    run.bought()
    run.paper.alive += [node("n7"), live("google_compute_disk", "d1", node="n0"), live("google_compute_router", "r1")]
    told = run.down()
    assert told.clean
    names = {row.name for row in told.resources}
    assert {"n7", "r1"} <= names
    # A disk goes with its node.
    assert "d1" not in names
    assert told.problems == ("the price of node n7 is unknown; the ledger lacks it",)


def test_a_resource_reported_as_gone_and_found_counts_as_existing(run: Run) -> None:
    run.bought()
    run.journal().append(Event.GONE, resource=NODE, key="n0")
    told = run.down()
    assert told.clean
    again = [entry.event for entry in run.journal().entries() if entry.key == "n0"]
    assert again[-4:] == [Event.GONE, Event.CREATED, Event.DESTROY_INTENDED, Event.GONE]


def test_a_terraform_that_does_not_end_is_reported(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.bought()
    other = SimpleNamespace(pid=4711)
    asked: list[dict[str, float]] = []

    def patient(find: Callable[[], Any], **options: float) -> list[Any]:
        asked.append(options)
        return find()  # type: ignore[no-any-return]

    monkeypatch.setattr(teardown.processes, "terraform_of", lambda run_id: [other] if run_id == RUN else [])
    monkeypatch.setattr(teardown.processes, "await_exit", patient)
    assert run.down(timeout_s=99.0).problems == ("Terraform of an earlier command does not end: [4711]",)
    assert asked == [{"patience_s": 20.0, "grace_s": 99.0}]


def test_a_lost_ledger_is_reported_and_rebuilt_from_the_journal(run: Run) -> None:
    run.bought(charged=False)
    told = run.down()
    (problem,) = told.problems
    assert problem == f"{run.folder.ledger_file} contains no node; nodes are charged at the prices of their purchase"
    assert {line.quantity for line in Ledger.of(run.folder, run.clock).lines()} == {2.0}


def test_a_ledger_that_can_not_be_written_to_keeps_no_node_alive(run: Run) -> None:
    run.bought(charged=False)
    run.folder.ledger_file.mkdir()
    assert run.down().clean
    assert run.paper.alive == []
    assert len(kept_lines(run.folder.ledger_file)) >= 4


def with_bucket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, saved: bool = True, detail: str = HOLDS_OBJECTS
) -> Run:
    run = made(tmp_path, monkeypatch, gcp_document()).bought().roots("gcp", "gcp-data")
    place = {"provider": GCP, "region": "us-central1", "stack": "gcp-data"}
    kind = "google_storage_bucket"
    run.journal().append(Event.CREATE_INTENDED, resource=kind, key=f"gcp-data/{kind}.run[{BUCKET!r}]", **place)
    run.journal().append(Event.CREATED, resource=kind, key=f"gcp-data/{kind}.run[{BUCKET!r}]")
    run.paper.alive.append(live(kind, BUCKET, detail=detail))
    if saved:
        run.journal().append(Event.CHECKPOINT_SAVED, path=f"gs://{BUCKET}/checkpoints/step-10")
    return run


def test_a_bucket_with_unfetched_checkpoints_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_bucket(tmp_path, monkeypatch)
    told = run.down()
    assert "forget gcp-data" in run.paper.told
    assert [one.name for one in run.paper.alive] == [BUCKET]
    (kept,) = told.kept
    assert (kept.name, kept.type, BUCKET in kept.delete_command) == (BUCKET, "google_storage_bucket", True)
    assert told.clean
    assert run.state().phase is Phase.GONE


def test_a_bucket_is_deleted_once_its_checkpoints_are_fetched_after_the_nodes_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_bucket(tmp_path, monkeypatch)
    there: list[list[str]] = []

    def fetch() -> None:
        there.append([one.name for one in run.paper.alive])
        run.journal().append(Event.RESULTS_FETCHED, bucket=BUCKET)

    told = run.down(before_data=fetch)
    assert there == [[BUCKET]]
    assert "forget gcp-data" not in run.paper.told
    assert (run.paper.alive, told.kept, told.clean) == ([], (), True)


def test_a_resource_without_a_region_is_gone_if_every_place_of_the_run_has_answered(run: Run) -> None:
    row = ResourceState(resource="aws_vpc", key="aws-us-east-1/aws_vpc.run")
    places = [Scope(provider="aws", kind="region", name=name) for name in ("us-east-1", "us-west-2")]

    def confirmed(*doubts: str, silent: str = "") -> str | None:
        known = leftovers.Places(scopes=frozenset(places), other_kinds=None, doubts=doubts)
        asked = tuple(SearchedPlace(scope=one, kind="aws_vpc", problem=silent * (one is places[1])) for one in places)
        swept = CloudSweep(found=(), searched=asked)
        return leftovers.Leftovers(folder=run.folder, places=known).confirmed_by(row, swept, frozenset())

    assert confirmed() == "sweep by tag"
    assert confirmed(silent="no answer") is None
    assert confirmed("nothing says where the run bought") is None
    assert leftovers.provider_of(row) == "aws"
    # Nobody knows whose it is: everybody must have answered.
    row = ResourceState(resource="unheard_of", key="x")
    assert [confirmed(), confirmed(silent="no answer"), confirmed("no place")] == ["sweep by tag", None, None]


def test_a_copied_or_renamed_folder_is_no_run_of_its_own(run: Run) -> None:
    """Its resources bear the name of the run that bought them: a look by the folder's name would find none."""
    run.bought().roots("gcp")
    run.journal().append(Event.RUN_CREATED, job="tiny", run=run.folder.run_id)
    variables = run.folder.terraform_dirs()[0] / "terraform.tfvars.json"
    (named,) = run.folder.path.rglob(variables.name)
    named.write_text(json.dumps({"name": resource_prefix(run.folder.run_id)}))
    check_own(run.folder)
    run.folder.public_key_file.write_text(f"ssh-ed25519 AAAA {run.folder.run_id}\n")
    for name, *lost in (
        ("tiny-copy", "terraform", "ssh_key.pub"),
        ("tiny-renamed", "journal.jsonl", "ssh_key.pub"),
        ("tiny-key", "terraform", "journal.jsonl"),
    ):
        copied = copy_of(run, name, *lost)
        with pytest.raises(RequestError, match=f"{name} is a copy of the run .*, or that run renamed; give the folder"):
            take_down(copied, clock=run.clock)
    # The controller has made the run's own folder again after the rename.
    shutil.rmtree(run.folder.path)
    run.folder.logs_dir.mkdir(parents=True)
    with pytest.raises(RequestError, match=f"has made {run.folder.path} since; move that folder away"):
        take_down(copied, clock=run.clock)


def copy_of(run: Run, name: str, *lost: str) -> RunFolder:
    copied = RunFolder(run_id=name, path=run.folder.path.with_name(name))
    shutil.copytree(run.folder.path, copied.path)
    for one in lost:
        shutil.rmtree(copied.path / one, ignore_errors=True)
        (copied.path / one).unlink(missing_ok=True)
    return copied


def test_a_copy_that_has_lost_all_that_names_its_run_confirms_nothing(run: Run) -> None:
    """All places answer that nothing bears the copy's name, and the nodes live on under the run's own."""
    run.bought().roots("gcp")
    run.folder.public_key_file.write_text("ssh-ed25519 AAAA somebody@a-laptop\n")
    run.paper.alive = []
    copied = copy_of(run, "tiny-20261124-100000-ffff", "terraform", "journal.jsonl")
    told = Run(folder=copied, document=run.document, paper=run.paper).down()
    assert not told.clean
    (place,) = [place for place in told.asked if place.asked_at is None]
    assert place.problem == (
        f"{copied.journal_file} is missing, and nothing else in {copied.path} names its run: "
        "what was bought may have another name; 'sailor-cloud reap' lists what any run has"
    )
    copied.public_key_file.write_text(f"ssh-ed25519 AAAA {copied.run_id}\n")
    copied.journal_file.unlink()
    assert Run(folder=copied, document=run.document, paper=run.paper).down().clean


def test_prices_that_can_not_be_read_keep_no_node_alive(run: Run) -> None:
    run.bought().roots("gcp")
    data = {**run.state().resource(NODE, "n0").data, "services": ["x"], "usd_per_hour": "dear"}
    run.journal().append(Event.CREATE_INTENDED, resource=NODE, key="n0", **data)
    run.folder.ledger_file.unlink(missing_ok=True)
    told = run.down()
    assert (run.paper.alive, told.clean) == ([], True)
    assert any("the journal's entries on node n0 can't be charged" in problem for problem in told.problems)


def test_an_empty_bucket_goes_and_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_bucket(tmp_path, monkeypatch, saved=False, detail="")
    told = run.down(before_data=lambda: pytest.fail("there is nothing to fetch"))
    assert "forget gcp-data" not in run.paper.told
    assert (run.paper.alive, told.kept, told.clean) == ([], (), True)


def test_a_bucket_of_a_run_with_a_damaged_journal_is_left_to_a_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_bucket(tmp_path, monkeypatch, saved=False, detail="")
    lines = run.folder.journal_file.read_text().splitlines(keepends=True)
    run.folder.journal_file.write_text("".join([*lines[:2], *lines[3:]]))
    told = run.down()
    assert "forget gcp-data" in run.paper.told
    assert (run.paper.alive, told.kept, told.clean) == ([], (), True)


def test_settings_of_a_kept_bucket_are_gone_with_its_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = with_bucket(tmp_path, monkeypatch)
    place = {"provider": GCP, "region": "us-central1", "stack": "gcp-data"}
    kind = "google_storage_bucket_iam_member"
    run.journal().append(Event.CREATE_INTENDED, resource=kind, key=f"gcp-data/{kind}.run[{BUCKET!r}]", **place)
    run.folder.plan_file.unlink()
    told = run.down()
    # Nothing says what the bucket costs once the plan is lost.
    assert [(one.name, one.usd_per_month) for one in told.kept] == [(BUCKET, 0.0)]
    (member,) = [row for row in told.resources if row.type == kind]
    assert member.gone_at == NOW
    assert told.clean


def test_a_block_that_nobody_can_cancel_is_shown_with_its_end(run: Run) -> None:
    kind = "aws_ec2_capacity_block_reservation"
    run.bought().roots("gcp")
    run.journal().append(Event.CREATE_INTENDED, resource=kind, key="block", provider="aws", region="us-east-1")
    run.journal().append(Event.KEPT, resource=kind, key="block", name="cr-1", ends="2026-11-25T11:30:00+00:00")
    (kept,) = run.down().kept
    assert (kept.name, kept.ends_at, kept.delete_command) == (
        "cr-1",
        datetime(2026, 11, 25, 11, 30, tzinfo=UTC),
        "",
    )


def test_checkpoints_saved_without_a_controller_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Terraform would empty the bucket: it is left to a look, which sees whether there is anything in it."""
    run = with_bucket(tmp_path, monkeypatch, saved=False)
    told = run.down()
    assert "forget gcp-data" in run.paper.told
    assert ([one.name for one in run.paper.alive], [one.name for one in told.kept]) == ([BUCKET], [BUCKET])
    assert told.clean


def test_a_bucket_that_nobody_can_look_into_is_not_destroyed_with_what_may_be_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = with_bucket(tmp_path, monkeypatch, saved=False)
    run.paper.silent["google_storage_bucket"] = "403 storage.buckets.list"
    assert not run.down().clean
    assert "forget gcp-data" in run.paper.told
    assert [one.name for one in run.paper.alive] == [BUCKET]


def test_without_plan_and_places_nothing_is_confirmed(run: Run) -> None:
    run.folder.plan_file.unlink()
    run.journal().append(Event.RUN_CREATED, job="tiny")
    told = run.down()
    assert not told.clean
    (place,) = [place for place in told.asked if place.asked_at is None]
    assert "nothing says where the run bought" in place.problem
    assert run.last().event is Event.TEARDOWN_FAILED


def test_progress_is_reported_of_each_resource(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run.bought().roots("gcp")
    events: list[Any] = []
    resource = {"resource_type": "google_compute_instance", "resource_key": "n0", "resource_name": "node"}
    hook = {"action": "delete", "resource": resource, "elapsed_seconds": 3}
    driver = run.paper.driver

    def telling(folder: RunFolder, root: Any, **options: Any) -> Any:
        options["on_event"]({"type": "apply_complete", "hook": hook, "@message": "gone"})
        options["on_event"]({"type": "version"})
        return driver(folder, root, **options)

    monkeypatch.setattr(teardown, "open_driver", telling)
    run.down(on_progress=events.append)
    assert [(event.key, event.action) for event in events] == [("n0", "delete")]
