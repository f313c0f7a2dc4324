"""Capacity that an account has or could buy, from a stand-in of EC2's API: never proven against a real account."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast
from unittest import mock

import boto3
import pytest
from click.testing import CliRunner
from moto import mock_aws

from factories.cloud_plans import AWS_OFFERS, cloud_document
from factories.cloud_runs import SSH_FROM
from factories.local_runs import CLOCK, LocalRun, local_run
from factories.reserved import entry, reservation, reserved_offer
from sailor_cloud.catalog.capacity import read_capacity
from sailor_cloud.cli.inputs.interchange import import_data
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import MissingPackageError, RequestError
from sailor_cloud.launch.recovery.nodes import current_job
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.provision import providers, provisioner
from sailor_cloud.provision.apply.apply import Refusal
from sailor_cloud.provision.bookkeeping import capacity_intent, close_cancelled, open_capacity
from sailor_cloud.provision.checks.before_buying import check_before_buying
from sailor_cloud.provision.checks.capacity_check import bought_separately, check_capacity
from sailor_cloud.provision.cleanup.leftovers import is_same_resource
from sailor_cloud.provision.cleanup.reap import find_leftovers
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.providers.aws.capacity import block_offers, purchased_blocks
from sailor_cloud.provision.providers.aws.sweep import BLOCK as BLOCK_KIND
from sailor_cloud.provision.providers.aws.sweep import RESERVATION
from sailor_cloud.provision.provisioner import _Apply, _Network
from sailor_cloud.provision.rendering.planned_roots import wanted_roots
from sailor_cloud.provision.rendering.root import Part, WantedRoot, placed_nodes, root_of
from sailor_cloud.provision.scopes import scopes_named
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.run.folder import resource_name
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import ResourceState, fold
from sailor_cloud.testing.moto_server import Gaps, moto_gaps

if TYPE_CHECKING:
    from sailor_cloud.launch.context import RunContext
    from sailor_cloud.provision.apply.apply import Work
    from sailor_cloud.provision.errors.causes import Fault

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BLOCK = entry()
REGION = "us-east-1"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaps]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws(), moto_gaps() as gaps:
        yield gaps


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def offered(fee: str = "48.00", **changes: object) -> dict[str, object]:
    """What AWS offers of the block of two nodes, in the zone that this account calls by some name."""
    zones = boto3.client("ec2", region_name=REGION).describe_availability_zones()["AvailabilityZones"]
    (zone,) = [zone["ZoneName"] for zone in zones if zone["ZoneId"] == BLOCK.zone]
    return {
        "CapacityBlockOfferingId": f"cb-{fee}",
        "InstanceType": BLOCK.instance_type,
        "InstanceCount": 2,
        "AvailabilityZone": zone,
        "StartDate": BLOCK.starts_at,
        "EndDate": BLOCK.ends_at,
        "UpfrontFee": fee,
        "CurrencyCode": "USD",
        **changes,
    }


def test_a_reservation_that_the_account_lacks_is_named_with_those_that_it_has(aws: Gaps) -> None:
    ec2 = boto3.client("ec2", region_name=REGION)
    made = ec2.create_capacity_reservation(
        InstanceType="g4dn.xlarge", InstancePlatform="Linux/UNIX", AvailabilityZone="us-east-1a", InstanceCount=1
    )["CapacityReservation"]["CapacityReservationId"]
    wrong = reserved_offer(reservation(id="cr-00000000000000bad"))
    with pytest.raises(RequestError) as raised:
        check_capacity(cloud_document(("n0", wrong)), NOW)
    assert "cloud.capacity: odcr.id: the account has no reservation 'cr-00000000000000bad' in us-east-1" in str(
        raised.value
    )
    assert f"it has {made}" in str(raised.value)
    right = reserved_offer(reservation(id=made))
    check_capacity(cloud_document(("n0", right)), NOW)
    with pytest.raises(RequestError, match="has 1 of 1 nodes free, the plan takes 2"):
        check_capacity(cloud_document(("n0", right), ("n1", right)), NOW)


def test_a_block_is_bought_as_planned_or_not_at_all(aws: Gaps) -> None:
    document = cloud_document(("n0", reserved_offer(BLOCK)))
    with pytest.raises(RequestError, match=r"AWS offers no capacity block of 2 x g4dn\.xlarge in use1-az6"):
        check_capacity(document, NOW)
    aws.capacity_blocks[REGION] = [offered("60.00")]
    with pytest.raises(RequestError, match=r"costs 60\.00 USD now, the plan says 48\.00 USD"):
        check_capacity(document, NOW)
    aws.capacity_blocks[REGION] = [offered("60.00"), offered()]
    check_capacity(document, NOW)


def test_nothing_is_bought_separately_without_consent_and_its_whole_price_is_shown() -> None:
    bought = (("n0", reserved_offer(BLOCK)), ("n1", reserved_offer(reservation())))
    document = replace(cloud_document(*bought), as_of=NOW, ttl_s=7200.0)
    block, taken = bought_separately(document, NOW + timedelta(hours=2))
    assert str(block) == (
        "2 x g4dn.xlarge in use1-az6, capacity-block: 48.00 USD at once, from 2026-12-01 11:30 UTC "
        "to 2026-12-02 11:30 UTC, not refundable"
    )
    assert str(taken).endswith("reservation: 3.00 USD until 2026-11-30 02:00 UTC unless cancelled before")
    with pytest.raises(RequestError, match=r"(?s)48\.00 USD at once.*give --buy-reserved to buy it"):
        check_before_buying(document, clock=FixedClock(NOW))


def test_reap_cancels_a_reservation_and_lets_a_block_be(aws: Gaps) -> None:
    ec2 = boto3.client("ec2", region_name=REGION)
    tags = {"sailor-cloud-run": "old-20261101-000000-0000", "sailor-cloud-expires": "2026-11-02t00-00-00z"}
    wished = [
        {"ResourceType": "capacity-reservation", "Tags": [{"Key": key, "Value": tag} for key, tag in tags.items()]}
    ]
    place = {"InstanceType": "g4dn.xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": "us-east-1a"}
    ec2.create_capacity_reservation(**place, InstanceCount=1, TagSpecifications=wished)
    aws.capacity_blocks[REGION] = [offered()]
    ec2.purchase_capacity_block(
        CapacityBlockOfferingId="cb-48.00", InstancePlatform="Linux/UNIX", TagSpecifications=wished
    )
    found = find_leftovers([], clock=FixedClock(NOW), scopes=scopes_named("region", [REGION]))
    assert [row.type for one in found.reapable for row in one.resources] == ["aws_ec2_capacity_reservation"]
    (kept,) = found.live
    assert kept.resources[0].type == "aws_ec2_capacity_block_reservation"
    assert "can't be cancelled and ends by itself at 2026-12-02" in kept.why


def bought_document() -> PlanDocument:
    """A plan with two nodes in a reservation that the run buys."""
    taken = reserved_offer(reservation(nodes=3))
    return cloud_document(("n0", taken), ("n1", taken), image=None)


def journaled(run: LocalRun, *entries: Capacity) -> Journal:
    """Write down that a run has bought some entries, each with two nodes, and charge for them."""
    journal, ledger = Journal.of(run.folder, CLOCK), Ledger.of(run.folder, CLOCK)
    root = root_of(run.folder, Provider("aws"), REGION, stack="aws-capacity")
    for one in entries:
        kind = BLOCK_KIND if one.market is Market.CAPACITY_BLOCK else RESERVATION
        offer = reserved_offer(one)
        nodes = placed_nodes(cloud_document(("n0", offer), ("n1", offer), image=None))
        draft = capacity_intent(root, kind, f'{kind}.run["{one.name}"]', nodes)
        journal.append_all([draft])
        journal.append(Event.CREATED, resource=kind, key=draft.key, cloud_id=f"cr-{one.name}")
        open_capacity(ledger, draft.data, since=NOW)
    return journal


def work_of(run: LocalRun, journal: Journal, ledger: Ledger) -> Work:
    parts = {"folder": run.folder, "journal": journal, "ledger": ledger}
    return cast("Work", SimpleNamespace(**parts, clock=FixedClock(NOW), interrupt=Interrupt()))


@pytest.mark.parametrize("state", ["delayed", "unavailable", "active", "payment-pending"])
def test_capacity_in_any_state_counts_as_bought(aws: Gaps, state: str) -> None:
    tags = [{"Key": "sailor-cloud-run", "Value": "r1"}, {"Key": "sailor-cloud-capacity", "Value": "cb1"}]
    row = {"CapacityReservationId": "cr-1", "Tags": tags, "ReservationType": "capacity-block"}
    aws.capacity_reservations[REGION] = [{**row, "State": state}, {**row, "State": "payment-failed"}]
    assert purchased_blocks(REGION, "r1") == {"cb1": "cr-1"}


def test_a_new_plan_uses_no_more_than_was_bought_and_nothing_that_was_given_back(run: LocalRun) -> None:
    three, gone, never = reservation(nodes=3), reservation("gone"), reservation("never")
    journal = journaled(run, BLOCK, three, gone)
    root = root_of(run.folder, Provider("aws"), REGION, stack="aws-capacity")
    close_cancelled(journal, Ledger.of(run.folder, CLOCK), root, at=NOW, but=["odcr"])
    document = bought_document()
    cloud = document.job.cloud.model_copy(update={"capacity": (BLOCK, three, gone, never)})
    document = replace(document, job=document.job.model_copy(update={"cloud": cloud}))
    context = SimpleNamespace(job_document=document, folder=run.folder)
    kept = current_job(cast("RunContext", context)).cloud.reserved
    assert [(one.name, one.nodes, one.usd) for one in kept] == [("cb1", 2, 0.0), ("odcr", 2, None)]
    # The plan's file is read back when the run is resumed.
    assert [Capacity.model_validate_json(one.model_dump_json()) for one in kept] == list(kept)


def test_capacity_without_use_in_a_new_plan_is_cancelled_and_no_longer_charged(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, ledger = journaled(run, BLOCK, reservation(), reservation("dropped")), Ledger.of(run.folder, CLOCK)
    applied: list[WantedRoot] = []
    there = {"cb1": "cr-cb1", "odcr": "cr-odcr", "dropped": "cr-dropped"}

    def apply_root(work: Work, root: WantedRoot, **_: object) -> None:
        applied.append(root)
        there.pop("dropped")

    provider = type(providers.of("aws"))
    monkeypatch.setattr(provisioner, "apply_root", apply_root)
    monkeypatch.setattr(provider, "purchased_capacity", lambda self, region, run_id: there)
    monkeypatch.setattr(provider, "with_current_offers", lambda self, root, run_id: root)
    root = WantedRoot(
        provider=Provider("aws"),
        region=REGION,
        part=Part.CAPACITY,
        variables={},
        nodes=placed_nodes(cloud_document(("n0", reserved_offer(reservation())), image=None)),
    )
    one = object.__new__(_Apply)
    one._work = work_of(run, journal, ledger)
    assert ledger.usd_per_hour() == pytest.approx(4 * AWS_OFFERS[1].usd_per_hour)
    one._roots, one._names, one._again, one._bought_before, one._prices = (root,), frozenset(), True, True, {}
    one._network = _Network()
    one._remove_unwanted()
    assert applied == [root]
    assert ledger.usd_per_hour() == pytest.approx(2 * AWS_OFFERS[1].usd_per_hour)
    assert {row.capacity for row in fold(journal.entries()).live} == {"cb1", "odcr"}
    one._remove_unwanted()
    assert len(applied) == 1


def test_a_refused_purchase_gives_back_what_came_of_it_and_closes_its_books(
    run: LocalRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, ledger = journaled(run, BLOCK, reservation()), Ledger.of(run.folder, CLOCK)
    removed: list[str] = []
    monkeypatch.setattr(provisioner, "remove_root", lambda work, root, only_compute: removed.append(root.stack))
    nodes = placed_nodes(bought_document())
    root = WantedRoot(provider=Provider("aws"), region=REGION, part=Part.CAPACITY, variables={}, nodes=nodes)
    one = object.__new__(_Apply)
    one._work = work_of(run, journal, ledger)
    one._nodes, one._roots = nodes, (root,)
    refusal = Refusal(worst=cast("Fault", None), reasons={"n0": "none left", "n1": "none left"})
    (refused,) = one._without_refused(root, refusal, frozenset())
    assert (refused.offer, removed) == (nodes[0].offer.id, ["aws-capacity"])
    assert ledger.usd_per_hour() == 0.0
    # Nodes that nobody asked for have no books.
    assert [row.capacity for row in fold(journal.entries()).resources] == ["cb1", "odcr"]


def test_found_capacity_belongs_to_the_entry_in_its_title() -> None:
    row = ResourceState(resource=BLOCK_KIND, key="k", data={"provider": "aws", "capacity": "cb1"})
    found = LiveResource(
        provider="aws", region=REGION, type=BLOCK_KIND, name="cr-1", run_id="r1", title=resource_name("r1", "cb1")
    )
    assert is_same_resource(row, found)
    assert not is_same_resource(row, replace(found, title=resource_name("r1", "b-cb1")))


def test_a_reservation_that_is_kept_stays_as_large_as_it_is(run: LocalRun) -> None:
    settings = {"public_key": "ssh-ed25519 k", "expires_at": NOW + timedelta(hours=2), "ssh_from": SSH_FROM}
    for nodes in (2, 1):
        taken = reserved_offer(reservation(nodes=3))
        document = cloud_document(*((f"n{number}", taken) for number in range(nodes)), image=None)
        (root,) = [
            root
            for root in wanted_roots(run.folder, document, **settings)  # type: ignore[arg-type]
            if root.part is Part.CAPACITY
        ]
        root.write(run.folder)
        assert root.variables["reservations"]["odcr"]["nodes"] == 2


def test_import_writes_what_is_held_and_what_is_offered(aws: Gaps, tmp_path: Path) -> None:
    aws.capacity_blocks[REGION] = [offered()]
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: t\nrun: 'true'\ntraining: {steps: 1}\nresources:\n"
        "  - {provider: aws, zones: [use1-az6], markets: [capacity-block], accelerators: {T4-16: 2}, "
        "instance_types: [g4dn.xlarge]}\ncloud: {capacity: capacity.yaml}\n"
    )
    target = tmp_path / "capacity.yaml"
    arguments = ["capacity", str(job), "-o", str(target), "--as-of", "2026-11-30"]
    result = CliRunner().invoke(import_data, arguments, catch_exceptions=False)
    assert (
        result.output
        == "block-use1-az6-2x1d-1201-1130: 2 x g4dn.xlarge in use1-az6 from 2026-12-01 11:30 UTC, 48.00 USD\n"
    )
    (block,) = read_capacity(target)
    assert (block.usd, block.starts_at, block.ends_at) == (48.0, BLOCK.starts_at, BLOCK.ends_at)


def test_import_without_the_cloud_s_client_says_how_to_install_it(tmp_path: Path) -> None:
    with mock.patch.dict(sys.modules, {"boto3": None, "botocore": None, "botocore.exceptions": None}):
        offered_blocks = partial(block_offers, REGION, "g4dn.xlarge", 2, 1, NOW)
        with pytest.raises(MissingPackageError, match=r"run pip install 'sailor-cloud\[aws\]'"):
            offered_blocks()
