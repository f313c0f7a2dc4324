"""The provisioner on AWS with the real hashicorp/aws, where a local mirror has it, against a moto server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, cloud_document, with_job
from factories.cloud_runs import SSH_FROM, without_bucket
from factories.local_runs import CLOCK, LocalRun, expiry, local_run, terraform_of_kind
from factories.provider_mirror import mirror
from factories.reserved import entry, reservation, reserved_offer
from sailor_cloud.errors import StockoutError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import AwsAccount
from sailor_cloud.model.offer import Offer
from sailor_cloud.provision.cleanup.teardown import destroy
from sailor_cloud.provision.outcomes import Applied, Stockout, applied_or_raise
from sailor_cloud.provision.provisioner import apply, secure
from sailor_cloud.provision.scopes import scopes_named, sweep_scopes
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.moto_server import Gaps, moto_gaps, moto_server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("real-aws-provider")]
REGION = "us-east-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moto:
    gaps: Gaps
    image: str


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    found = mirror("hashicorp", "aws")
    if found is None:
        pytest.skip("no local mirror of hashicorp/aws here; the stand-in alone was used")
    import boto3

    config = tmp_path_factory.mktemp("mirror") / "mirror.tfrc"
    config.write_text(f'provider_installation {{\n  filesystem_mirror {{ path = "{found}" }}\n}}\n')
    with moto_gaps() as gaps, moto_server() as address:
        variables = {
            "AWS_ENDPOINT_URL": address,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_MAX_ATTEMPTS": "2",
            "TF_CLI_CONFIG_FILE": str(config),
            # The real provider's schemas are large: its memory has to be collected, and computing takes long.
            "GOMAXPROCS": str(os.cpu_count() or 1),
            "GOGC": "100",
            "GOMEMLIMIT": "off",
        }
        with in_environment(variables):
            ec2 = boto3.client("ec2", region_name=REGION)
            image = ec2.register_image(Name="test", RootDeviceName="/dev/sda1", Architecture="x86_64")
            _take_default_subnet(ec2)
            yield Moto(gaps=gaps, image=image["ImageId"])


def _take_default_subnet(ec2: Any) -> None:
    """Have moto make the first subnet that is asked for by its zone's id.

    It takes that one for the zone's default, which hands out public addresses; the provider would turn that off and
    wait ten seconds for it.
    """
    (default,) = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    ec2.create_subnet(VpcId=default["VpcId"], CidrBlock="172.31.96.0/20", AvailabilityZoneId="use1-az1")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LocalRun]:
    with local_run(tmp_path) as made:
        yield made


def plan(moto: Moto) -> PlanDocument:
    """Two nodes close together and one in another zone."""
    p4d, g4dn = AWS_OFFERS
    return without_bucket(cloud_document(("n0", g4dn), ("n1", g4dn), ("n2", p4d), image=moto.image))


def left(run: LocalRun) -> tuple[object, ...]:
    swept = sweep_scopes(scopes_named("region", [REGION]), run_id=run.run_id)
    assert swept.problems == ()
    return swept.found


def test_the_real_provider_carries_a_run_from_plan_to_receipt(run: LocalRun, moto: Moto) -> None:
    document = with_job(plan(moto), to="/data/checkpoints", aws=AwsAccount(watchdog=True))
    binary = terraform_of_kind("path")
    settings = {"clock": CLOCK, "expires_at": expiry(3600.0), "ssh_from": SSH_FROM, "terraform": binary}
    outcome = apply(run.folder, document, **settings)  # type: ignore[arg-type]
    assert isinstance(outcome, Applied)
    assert {found.type for found in left(run)} >= {"aws_lambda_function", "aws_scheduler_schedule_group"}  # type: ignore[attr-defined]
    assert [node.id for node in outcome.nodes] == ["n0", "n1", "n2"]
    assert {found.type for found in left(run)} >= {"aws_instance", "aws_vpc", "aws_placement_group"}  # type: ignore[attr-defined]
    destroyed = destroy(run.folder, clock=CLOCK, terraform=binary)
    assert destroyed.problems == ()
    assert destroyed.clean
    assert left(run) == ()


@pytest.mark.timeout(600)
@pytest.mark.skipif("SAILOR_CLOUD_TEST_PROVIDERS" not in os.environ, reason="runs by 'make test-providers'")
def test_the_real_provider_gives_up_a_zone_without_capacity_soon_and_another_one_is_taken(
    run: LocalRun, moto: Moto
) -> None:
    """By itself the provider asks 25 times, for most of an hour, whatever the timeouts say."""
    import boto3

    document = plan(moto)
    p4d = next(offer for offer in document.inputs.offers if offer.id == "p4d")
    zones = boto3.client("ec2", region_name=REGION).describe_availability_zones()["AvailabilityZones"]
    moto.gaps.full = {zone["ZoneName"] for zone in zones if zone["ZoneId"] == p4d.zone}
    binary = terraform_of_kind("path")
    settings = {"clock": CLOCK, "expires_at": expiry(3600.0), "ssh_from": SSH_FROM, "terraform": binary}
    outcome = apply(run.folder, document, **settings)  # type: ignore[arg-type]
    assert isinstance(outcome, Stockout)
    # One node was asked for; pauses double from 2 s on, so four tries take 14 s at most.
    assert 1 <= moto.gaps.refused <= 4
    with pytest.raises(StockoutError, match=r"no 1 x p4d\.24xlarge .* InsufficientInstanceCapacity"):
        applied_or_raise(outcome)
    there = [found.node for found in left(run) if found.type == "aws_instance"]  # type: ignore[attr-defined]
    assert sorted(there) == ["n0", "n1"]

    three = ((f"n{number}", AWS_OFFERS[1]) for number in range(3))
    elsewhere = without_bucket(cloud_document(*three, image=moto.image))
    again = applied_or_raise(apply(run.folder, elsewhere, **settings))  # type: ignore[arg-type]
    assert [node.id for node in again.nodes] == ["n0", "n1", "n2"]
    moto.gaps.full = set()
    assert destroy(run.folder, clock=CLOCK, terraform=binary).clean
    assert left(run) == ()


def offered_block(moto: Moto) -> Offer:
    """A block of two nodes that has just begun, and that AWS offers."""
    import boto3

    zones = boto3.client("ec2", region_name=REGION).describe_availability_zones()["AvailabilityZones"]
    (name,) = [zone["ZoneName"] for zone in zones if zone["ZoneId"] == "use1-az6"]
    now = datetime.now(UTC).replace(microsecond=0)
    starts_at, ends_at = now - timedelta(minutes=1), now + timedelta(hours=24)
    offered = {"AvailabilityZone": name, "StartDate": starts_at, "EndDate": ends_at, "InstanceType": "g4dn.xlarge"}
    offered |= {"CapacityBlockOfferingId": "cb-1", "InstanceCount": 2, "UpfrontFee": "48.00", "CurrencyCode": "USD"}
    moto.gaps.capacity_blocks[REGION] = [offered]
    moto.gaps.capacity_reservations[REGION] = []
    return reserved_offer(entry(starts_at=starts_at, ends_at=ends_at))


def test_the_real_provider_buys_a_block_once_although_it_then_fails_to_read_it(run: LocalRun, moto: Moto) -> None:
    """moto has no blocks; `testing.moto_server` stands in for them after the API reference."""
    block = offered_block(moto)
    document = without_bucket(cloud_document(("n0", block), image=moto.image))
    binary = terraform_of_kind("path")
    settings = {"clock": CLOCK, "expires_at": expiry(3600.0), "ssh_from": SSH_FROM, "terraform": binary}
    assert secure(run.folder, document, **settings) is None  # type: ignore[arg-type]
    # Whoever continues sees it, and buys no second one; what is offered no longer would be an error.
    assert moto.gaps.capacity_blocks[REGION] == []
    assert secure(run.folder, document, **settings) is None  # type: ignore[arg-type]
    (row,) = moto.gaps.capacity_reservations[REGION]
    assert (row["ReservationType"], row["TotalInstanceCount"]) == ("capacity-block", 2)
    # The whole block counts as spent, whatever becomes of the run.
    assert Ledger.of(run.folder, CLOCK).spent_usd() == 48.0
    destroyed = destroy(run.folder, clock=CLOCK, terraform=binary)
    assert (destroyed.problems, destroyed.clean) == ((), True)
    (kept,) = destroyed.kept
    assert block.terms is not None
    assert (kept.type, kept.ends_at) == ("aws_ec2_capacity_block_reservation", block.terms.ends_at)
    assert row["State"] == "active"


@pytest.mark.timeout(600)
@pytest.mark.skipif("SAILOR_CLOUD_TEST_PROVIDERS" not in os.environ, reason="runs by 'make test-providers'")
def test_the_real_provider_starts_nodes_in_a_block_and_cancels_a_reservation(run: LocalRun, moto: Moto) -> None:
    block, taken = offered_block(moto), reserved_offer(reservation(nodes=3))
    document = without_bucket(cloud_document(("n0", block), ("n1", taken), image=moto.image))
    binary = terraform_of_kind("path")
    settings = {"clock": CLOCK, "expires_at": expiry(3600.0), "ssh_from": SSH_FROM, "terraform": binary}
    assert secure(run.folder, document, **settings) is None  # type: ignore[arg-type]
    outcome = apply(run.folder, document, **settings)  # type: ignore[arg-type]
    assert isinstance(outcome, Applied)
    assert [node.id for node in outcome.nodes] == ["n0", "n1"]
    rows = {row["ReservationType"]: row for row in moto.gaps.capacity_reservations[REGION]}
    assert (rows["capacity-block"]["TotalInstanceCount"], rows["capacity-block"]["AvailableInstanceCount"]) == (2, 1)
    assert (rows["default"]["TotalInstanceCount"], rows["default"]["AvailableInstanceCount"]) == (1, 0)
    assert rows["default"]["EndDateType"] == "limited"
    destroyed = destroy(run.folder, clock=CLOCK, terraform=binary)
    assert (destroyed.problems, destroyed.clean) == ((), True)
    assert rows["default"]["State"] == "cancelled"
    assert rows["capacity-block"]["State"] == "active"
    assert [found.type for found in left(run)] == ["aws_ec2_capacity_block_reservation"]  # type: ignore[attr-defined]
    assert Ledger.of(run.folder, CLOCK).usd_per_hour() == 0.0
