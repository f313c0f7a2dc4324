"""What is left of a run, kept, silent or confirmed as gone: each rule by hand, with the providers' real kinds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import gcp_document
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.document import CostKind
from sailor_cloud.provision import providers
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.cleanup import leftovers
from sailor_cloud.provision.cleanup.leftovers import Leftovers, Places, TeardownResult
from sailor_cloud.provision.live_resources import HOLDS_OBJECTS, CloudSweep, LiveResource, Scope, Scopes, SearchedPlace
from sailor_cloud.run.folder import RunFolder, resource_name
from sailor_cloud.run.journal import Entry, Event, Journal
from sailor_cloud.run.receipt import AskedPlace, KeptResource, ReceiptResource
from sailor_cloud.run.state import ResourceState, RunState, fold

AT = datetime(2026, 11, 24, 10, tzinfo=UTC)
RUN = "tiny-20261124-100000-a1b2"
BUCKET = resource_name(RUN, "data")
VM, DISK, NET = (f"google_compute_{kind}" for kind in ("instance", "disk", "network"))
STORE = "google_storage_bucket"
BLOCK = "aws_ec2_capacity_block_reservation"
PROJECT = Scope(provider="gcp", kind="project", name="my-project")
EAST, WEST = (Scope(provider="aws", kind="region", name=name) for name in ("us-east-1", "us-west-2"))
ACCOUNT = Scope(provider="aws", kind="account", name="")


def live(kind: str = VM, name: str = "sc-n0", **more: Any) -> LiveResource:
    made = LiveResource(provider="gcp", region="us-central1", type=kind, name=name, run_id=RUN, project="my-project")
    return replace(made, **more)


def row(kind: str = NODE, key: str = "n0", **data: Any) -> ResourceState:
    return ResourceState(resource=kind, key=key, intended_at=AT, data={"provider": "gcp", **data})


def entries(*told: tuple[Event, dict[str, Any]]) -> tuple[Entry, ...]:
    return tuple(Entry(seq=at, ts=AT, event=event, data=data) for at, (event, data) in enumerate(told, start=1))


SAVED = (Event.CHECKPOINT_SAVED, {"path": f"gs://{BUCKET}/checkpoints/step-10"})
SAVED_ELSEWHERE = (Event.CHECKPOINT_SAVED, {"path": f"gs://other/{BUCKET}"})
FETCHED = (Event.RESULTS_FETCHED, {"bucket": BUCKET})
FETCHED_ELSEWHERE = (Event.RESULTS_FETCHED, {"bucket": "other"})
NAMED_BY_THE_WAY = (Event.PREFLIGHT, {"bucket": BUCKET, "path": f"gs://{BUCKET}/x"})


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(RUN, root=tmp_path)


@pytest.mark.parametrize(
    ("told", "kept", "fetched"),
    [
        ([], False, False),
        ([SAVED], True, False),
        ([SAVED_ELSEWHERE], False, False),
        ([SAVED, FETCHED], False, True),
        ([FETCHED, SAVED], True, False),
        ([SAVED, FETCHED_ELSEWHERE], True, False),
        ([SAVED, NAMED_BY_THE_WAY], True, False),
        ([NAMED_BY_THE_WAY], False, False),
        ([FETCHED], False, True),
        ([FETCHED, SAVED_ELSEWHERE], False, True),
        ([FETCHED_ELSEWHERE], False, False),
    ],
)
def test_a_bucket_is_kept_from_a_checkpoint_in_it_until_it_is_fetched(
    told: list[tuple[Event, dict[str, Any]]], kept: bool, fetched: bool
) -> None:
    found = leftovers.kept_bucket(RUN, entries(*told))
    assert (found.name if found else None) == (BUCKET if kept else None)
    assert leftovers.is_fetched(RUN, entries(*told)) is fetched


def test_kept_resources_are_shown_with_price_and_end() -> None:
    assert leftovers.KeptBucket(name="b").row(STORE, 1.5) == KeptResource(
        type=STORE, name="b", usd_per_month=1.5, delete_command="gcloud storage rm --recursive gs://b"
    )
    block = KeptResource(type=BLOCK, name="cr-1", usd_per_month=0.0, delete_command="", ends_at=AT)
    assert leftovers.kept_block(BLOCK, "cr-1", "2026-11-24T10:00:00+00:00") == block
    assert leftovers.kept_block(BLOCK, "cr-1", "") == replace(block, ends_at=None)
    assert (leftovers.is_uncancellable(BLOCK), leftovers.is_uncancellable(VM)) == (True, False)
    assert (leftovers.is_bucket(STORE), leftovers.is_bucket("aws_s3_bucket"), leftovers.is_bucket(VM)) == (
        True,
        True,
        False,
    )


def test_checkpoints_cost_per_month_what_the_plan_says_stretched_to_a_month() -> None:
    """730 hours a month; 0.3 USD in two hours of training are 109.5 USD a month."""
    document = gcp_document()
    assert document.cost is not None
    assert document.prediction is not None
    line = document.cost.lines[0]
    lines = (
        replace(line, kind=CostKind.CHECKPOINT, unit="GiB-month", usd=0.1),
        replace(line, kind=CostKind.CHECKPOINT, unit="GiB-month", usd=0.2),
        replace(line, kind=CostKind.CHECKPOINT, unit="request", usd=7.0),
        replace(line, kind=CostKind.COMPUTE, unit="GiB-month", usd=9.0),
    )

    def monthly(duration_s: float | None) -> float:
        assert document.cost is not None
        assert document.prediction is not None
        return leftovers.usd_per_month(
            replace(
                document,
                cost=replace(document.cost, lines=lines),
                prediction=replace(document.prediction, duration_s=duration_s),
            )
        )

    assert monthly(7200.0) == pytest.approx(109.5)
    assert monthly(1800.0) == pytest.approx(438.0)
    assert monthly(0.0) == 0.0
    assert monthly(None) == 0.0
    assert leftovers.usd_per_month(replace(document, cost=None)) == 0.0
    assert leftovers.usd_per_month(replace(document, prediction=None)) == 0.0


def looked(folder: RunFolder, monkeypatch: pytest.MonkeyPatch, cloud: CloudSweep) -> CloudSweep:
    monkeypatch.setattr(leftovers, "sweep_scopes", lambda scopes, **how: cloud)
    monkeypatch.setattr(leftovers, "sweep_this_machine", lambda folder: CloudSweep(found=(live("folder", "here"),)))
    return Leftovers(folder=folder, places=Places(scopes=Scopes({PROJECT}), other_kinds=None, doubts=())).sweep()


def test_a_search_separates_what_stays_from_what_is_deleted(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    block = live(BLOCK, "cr-1", provider="aws")
    asked = (SearchedPlace(scope=PROJECT, kind=VM),)
    swept = looked(folder, monkeypatch, CloudSweep(found=(live(), block), searched=asked))
    assert [one.name for one in swept.found] == ["here", "sc-n0"]
    assert (swept.kept, swept.searched, swept.unconfirmed) == ((block,), asked, ())


@pytest.mark.parametrize("told", [{"host01"}, set(), ProvisionError("no squeue")], ids=str)
def test_nodes_on_machines_that_do_not_answer_may_still_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, told: set[str] | ProvisionError
) -> None:
    journal = Journal.of(folder, FixedClock(AT))
    for key, host in (("n0", "host01"), ("n1", "host02"), ("n2", None)):
        place = {"provider": "slurm", "region": "rack", "cloud_id": "job-7", **({"host": host} if host else {})}
        journal.append(Event.CREATE_INTENDED, resource=NODE, key=key, **place)
    journal.append(Event.CREATE_INTENDED, resource="slurm_job", key="j", provider="slurm", host="host01")
    journal.append(Event.CREATE_INTENDED, resource=NODE, key="n3", provider="slurm", host="host01")
    journal.append(Event.GONE, resource=NODE, key="n3")
    asked: list[set[str]] = []

    def silent(machines: Any) -> frozenset[str]:
        asked.append(set(machines))
        if isinstance(told, ProvisionError):
            raise told
        return frozenset(told)

    monkeypatch.setattr(providers.of("slurm"), "unresponsive_machines", silent)
    monkeypatch.setattr(
        providers.of("kubernetes"), "unresponsive_machines", lambda machines: pytest.fail("it has none of the nodes")
    )
    job = live("slurm_job", "job-7", provider="slurm", silent="queued somewhere")
    other, named = replace(job, name="job-8"), replace(job, node="n9")
    swept = looked(folder, monkeypatch, CloudSweep(found=(), unconfirmed=(job, other, named)))
    assert asked == [{"host01", "host02"}]
    mine = [one for one in swept.unconfirmed if one not in (job, other, named)]
    if not told:
        assert swept.unconfirmed == (job, other, named)
        return
    assert [(one.node, one.name, one.region, one.run_id, one.provider) for one in mine] == [
        ("n0", "job-7", "rack", RUN, "slurm"),
        *([("n1", "job-7", "rack", RUN, "slurm")] if isinstance(told, ProvisionError) else []),
    ]
    assert mine[0].type == providers.of("slurm").machine
    why = "no squeue" if isinstance(told, ProvisionError) else "machine host01 does not answer, so its processes may"
    assert mine[0].silent.startswith(why)
    # The journal tells which nodes the job's are.
    assert swept.unconfirmed == (*mine, other, named)


def test_a_job_that_names_no_nodes_has_those_that_the_journal_names(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal.of(folder, FixedClock(AT))
    for key in ("n0", "n1", "n2", "n3"):
        journal.append(Event.CREATE_INTENDED, resource=NODE, key=key, provider="slurm", region="rack")
    for key, job in (("n0", "7"), ("n1", "8"), ("n2", "7")):
        journal.append(Event.CREATED, resource=NODE, key=key, cloud_id=job)
    journal.append(Event.GONE, resource=NODE, key="n2")
    unnamed, other = (live("job", name, provider="slurm") for name in ("7", "9"))
    swept = looked(folder, monkeypatch, CloudSweep(found=(unnamed, replace(unnamed, name="6", node="n8"), other)))
    # Nobody has seen n3 run: it may be of any job.
    named = [(one.name, one.node) for one in swept.found if one.type == "job"]
    assert named == [("7", "n0"), ("7", "n2"), ("7", "n3"), ("6", "n8"), ("9", "n3")]


def confirms(
    folder: RunFolder,
    one: ResourceState,
    *asked: SearchedPlace,
    scopes: tuple[Scope, ...] = (PROJECT,),
    found: tuple[LiveResource, ...] = (),
    silent: tuple[LiveResource, ...] = (),
    cleared: tuple[tuple[str, str], ...] = (),
    doubts: tuple[str, ...] = (),
) -> str | None:
    known = Leftovers(folder=folder, places=Places(scopes=Scopes(scopes), other_kinds=None, doubts=doubts))
    return known.confirmed_by(one, CloudSweep(found=found, searched=asked, unconfirmed=silent), frozenset(cleared))


def asks(scope: Scope, *kinds: str, problem: str = "") -> tuple[SearchedPlace, ...]:
    return tuple(SearchedPlace(scope=scope, kind=kind, problem=problem) for kind in kinds)


def test_a_node_is_gone_where_its_own_place_was_asked_for_machines_and_has_answered(folder: RunFolder) -> None:
    node = row(region="us-central1")
    assert confirms(folder, node, *asks(PROJECT, VM)) == "sweep by tag"
    assert confirms(folder, node, *asks(PROJECT, VM, problem="403")) is None
    # Kinds that were asked for elsewhere say nothing of this place.
    other = replace(PROJECT, name="another")
    assert confirms(folder, node, *asks(other, VM)) is None
    assert confirms(folder, node, *asks(PROJECT, VM), *asks(other, VM), scopes=(PROJECT, other)) == "sweep by tag"
    assert confirms(folder, node, *asks(PROJECT, VM), scopes=(PROJECT, other)) is None
    assert confirms(folder, node, *asks(PROJECT, VM), scopes=()) is None
    assert confirms(folder, node) is None


def test_found_and_silent_resources_are_not_gone(folder: RunFolder) -> None:
    node = row(region="us-central1")
    assert confirms(folder, node, *asks(PROJECT, VM), found=(live(node="n0"),)) is None
    assert confirms(folder, node, *asks(PROJECT, VM), silent=(live(node="n0"),)) is None
    assert confirms(folder, node, *asks(PROJECT, VM), found=(live(node="n1"),)) == "sweep by tag"


def test_a_node_in_one_region_needs_no_answer_from_another(folder: RunFolder) -> None:
    node = row(provider="aws", region="us-east-1")
    machine = "aws_instance"
    asked = (*asks(EAST, machine), *asks(WEST, machine, problem="no answer"))
    assert confirms(folder, node, *asked, scopes=(EAST, WEST)) == "sweep by tag"
    west = row(provider="aws", region="us-west-2")
    assert confirms(folder, west, *asked, scopes=(EAST, WEST)) is None
    nowhere = row(provider="aws")
    assert confirms(folder, nowhere, *asks(EAST, machine), *asks(WEST, machine), scopes=(EAST, WEST)) == "sweep by tag"
    assert confirms(folder, nowhere, *asked, scopes=(EAST, WEST)) is None
    doubts = ("nothing says where the run bought",)
    both = (*asks(EAST, machine), *asks(WEST, machine))
    assert confirms(folder, nowhere, *both, scopes=(EAST, WEST), doubts=doubts) is None
    assert confirms(folder, node, *both, scopes=(EAST, WEST), doubts=doubts) == "sweep by tag"


def test_a_kind_that_the_account_answered_for_needs_no_answer_from_regions(folder: RunFolder) -> None:
    role = row("aws_iam_role", "aws/role", provider="aws", region="us-east-1")
    assert confirms(folder, role, *asks(ACCOUNT, "aws_iam_role"), scopes=(EAST,)) == "sweep by tag"
    assert confirms(folder, role, *asks(ACCOUNT, "aws_iam_role", problem="denied"), scopes=(EAST,)) is None
    # What shows no tag of its own is gone with everything else there, the account's included.
    part = row("aws_route_table_association", "aws/r", provider="aws", region="us-east-1")
    assert part.resource in providers.of("aws").dependent_kinds
    everything = (*asks(EAST, "aws_instance"), *asks(ACCOUNT, "aws_iam_role"))
    assert confirms(folder, part, *everything, scopes=(EAST,)) == "sweep by tag"
    assert confirms(folder, part, *everything[:1], *asks(ACCOUNT, "r", problem="denied"), scopes=(EAST,)) is None
    assert confirms(folder, part, *everything[:1], *asks(WEST, "r", problem="denied"), scopes=(EAST,)) == "sweep by tag"
    assert confirms(folder, part, *everything[1:], scopes=(EAST,)) is None
    assert confirms(folder, part, *everything[1:], scopes=()) is None


def test_resources_that_no_search_finds_are_gone_with_their_root_or_were_never_made(folder: RunFolder) -> None:
    kind = "google_cloud_scheduler_job"
    assert kind in providers.of("gcp").unsearchable_kinds
    never = row(kind, "gcp-data/job", region="us-central1", stack="gcp-data")
    made = replace(never, created_at=AT)
    asked = asks(PROJECT, VM)
    assert confirms(folder, made, *asked) is None
    assert confirms(folder, never, *asked) == "sweep by tag"
    assert confirms(folder, made, cleared=(("gcp-data", "us-central1"),)) == "Terraform"
    assert confirms(folder, made, *asked, cleared=(("gcp-data", "us-east1"), ("gcp", "us-central1"))) is None
    part = replace(made, resource="google_compute_router_nat")
    assert confirms(folder, part, *asked) == "sweep by tag"


def test_local_resources_are_gone_when_not_found(folder: RunFolder) -> None:
    assert confirms(folder, row(provider="local"), scopes=()) == "sweep by tag"
    assert confirms(folder, row(provider="local"), scopes=(), found=(live(node="n0"),)) is None


def test_this_machine_is_asked_for_what_the_local_provider_has(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = live("local_node", "n0", provider="local")
    monkeypatch.setattr(providers.of("local"), "local_resources", lambda folder: (here,))
    swept = leftovers.sweep_this_machine(folder)
    assert swept.found == (here,)
    assert swept.searched == (SearchedPlace(scope=Scope(provider="local", kind="machine", name=""), kind="node"),)


def test_only_the_runs_own_full_bucket_stays(folder: RunFolder) -> None:
    mine = live(STORE, BUCKET, detail=HOLDS_OBJECTS)
    # Without a journal nobody knows what was fetched.
    assert leftovers.is_kept(folder, mine)
    journal = Journal.of(folder, FixedClock(AT))
    journal.append(Event.RUN_CREATED, job="tiny")
    assert leftovers.is_kept(folder, mine)
    assert not leftovers.is_kept(folder, replace(mine, detail=""))
    assert not leftovers.is_kept(folder, replace(mine, name="another"))
    assert not leftovers.is_kept(folder, replace(mine, type=DISK))
    assert leftovers.is_kept(folder, live(BLOCK, "cr-1"))
    journal.append(Event.RESULTS_FETCHED, bucket=BUCKET)
    assert not leftovers.is_kept(folder, mine)
    journal.append(Event.CHECKPOINT_SAVED, path=f"gs://{BUCKET}/checkpoints/step-20")
    assert leftovers.is_kept(folder, mine)
    # Saved and not fetched, whether or not a look says that it holds anything.
    assert leftovers.is_kept(folder, replace(mine, detail=""))
    journal.append(Event.RESULTS_FETCHED, bucket=BUCKET)
    assert not leftovers.is_kept(folder, mine)
    lines = folder.journal_file.read_text().splitlines(keepends=True)
    folder.journal_file.write_text("".join([lines[0], *lines[2:]]))
    assert leftovers.is_kept(folder, mine)


@pytest.mark.parametrize(
    ("one", "provider"),
    [
        (row(NODE, "n0", provider="aws"), "aws"),
        (row("aws_vpc", "v", provider="nobody"), "aws"),
        (row("google_compute_router_nat", "v", provider=""), "gcp"),
        (row("google_project_iam_member", "v", provider=None), "gcp"),
        (row("unheard_of", "v", provider="nobody"), None),
    ],
)
def test_a_damaged_row_reveals_its_provider_by_its_type(one: ResourceState, provider: str | None) -> None:
    assert leftovers.provider_of(one) == provider


@pytest.mark.parametrize(
    ("one", "found", "same"),
    [
        (row(NODE, "n0"), live(node="n0"), True),
        (row(NODE, "n0"), live(node="n1"), False),
        (row(NODE, ""), live(NET, "net"), True),
        (row(NET, "k"), live(NET, "any name"), True),
        (row(NET, "k"), live(DISK, "any name"), False),
        (row(NET, "k"), live(NET, "n", provider="aws"), False),
        (row(NET, "k", cloud_id="projects/p/net-1"), live(NET, "net-1"), True),
        (row(NET, "k", cloud_id="projects/p/net-1"), live(NET, "net-2"), False),
        (row(NET, "k", cloud_id="net-1", capacity="c"), live(NET, "net-1", title="x"), True),
        (row(NET, "k", capacity="c"), live(NET, "x", title=resource_name(RUN, "c")), True),
        (row(NET, "k", capacity="c"), live(NET, "x", title=resource_name(RUN, "d")), False),
    ],
)
def test_found_resources_are_matched_with_the_journal(one: ResourceState, found: LiveResource, same: bool) -> None:
    assert leftovers.is_same_resource(one, found) is same


def receipt_row(**more: Any) -> ReceiptResource:
    made = ReceiptResource(
        provider="gcp",
        region="us-central1",
        zone="us-central1-a",
        type=NODE,
        name="n0",
        created_at=AT,
        gone_at=AT + timedelta(hours=1),
        confirmed_by="sweep by tag",
    )
    return replace(made, **more)


def test_a_teardown_is_clean_when_nothing_is_left_and_every_place_has_answered() -> None:
    place = AskedPlace(provider="gcp", place="gcp project p", kind=VM, asked_at=AT)
    clean = TeardownResult(resources=(receipt_row(),), remaining=(), problems=("a warning",), asked=(place,))
    assert clean.clean
    assert not replace(clean, remaining=(live(),)).clean
    assert not replace(clean, resources=(receipt_row(), receipt_row(gone_at=None))).clean
    assert not replace(clean, asked=(place, replace(place, problem="403"))).clean
    assert not replace(clean, asked=(replace(place, asked_at=None),)).clean


def test_the_receipts_rows_are_the_journals_and_what_is_found_is_not_gone() -> None:
    data = {"provider": "gcp", "region": "us-central1", "zone": "us-central1-a", "confirmed_by": "sweep by tag"}
    gone = AT + timedelta(hours=1)
    node = ResourceState(resource=NODE, key="n0", created_at=AT, gone_at=gone, data=data)
    bare = ResourceState(resource=NET, key="k")
    kept = ResourceState(resource=STORE, key="b", kept=True, data=data)
    state = RunState(phase=fold(()).phase, resources=(node, bare, kept))
    assert leftovers.rows(state, CloudSweep(found=())) == (
        receipt_row(),
        ReceiptResource(
            provider="", region="", zone="", type=NET, name="k", created_at=None, gone_at=None, confirmed_by=""
        ),
    )
    (again, _) = leftovers.rows(state, CloudSweep(found=(live(node="n0"),)))
    assert again == receipt_row(gone_at=None, confirmed_by="", found=True)


def test_resources_missing_from_the_journal_are_journaled_once_and_without_parts_of_nodes() -> None:
    state = RunState(phase=fold(()).phase, resources=(row(NODE, "n0"), row(NET, "k", cloud_id="net-1")))
    zone = {"zone": "us-central1-a"}
    found = (
        live(node="n0"),
        live(DISK, "d0", node="n0"),
        live(NET, "net-1"),
        live(NET, "net-2"),
        live(VM, "sc-n7", node="n7", **zone),
        live(DISK, "d7", node="n7"),
        live(VM, "sc-n7", node="n7", region="elsewhere"),
        live(DISK, "loose"),
    )
    place = {"provider": "gcp", "region": "us-central1", "zone": ""}
    assert leftovers.unjournaled(state, found) == (
        ResourceState(resource=DISK, key="loose", data={**place, "cloud_id": "loose"}),
        ResourceState(resource=NET, key="net-2", data={**place, "cloud_id": "net-2"}),
        ResourceState(resource=NODE, key="n7", data={**place, **zone, "cloud_id": "sc-n7"}),
    )


def test_each_place_and_kind_is_listed_once_with_its_time_and_doubts_without_one() -> None:
    swept = CloudSweep(
        found=(), searched=(*asks(PROJECT, VM, DISK), *asks(PROJECT, VM), *asks(EAST, VM, problem="403"))
    )
    assert leftovers.searched_places(swept, ("nobody knows",), AT) == (
        AskedPlace(provider="gcp", place="gcp project my-project", kind=VM, asked_at=AT),
        AskedPlace(provider="gcp", place="gcp project my-project", kind=DISK, asked_at=AT),
        AskedPlace(provider="aws", place="aws region us-east-1", kind=VM, asked_at=AT, problem="403"),
        AskedPlace(provider="", place="", kind="", asked_at=None, problem="nobody knows"),
    )
