"""Capacity that an account has or could buy, from a stand-in of EC2's API: never proven against a real account."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import boto3
import pytest
from click.testing import CliRunner
from moto import mock_aws

from factories.cloud_plans import cloud_document
from factories.reserved import entry, reservation, reserved_offer
from sailor_cloud.catalog.capacity import read_capacity
from sailor_cloud.cli.inputs.interchange import import_data
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import RequestError
from sailor_cloud.provision.before_buying import check_before_buying
from sailor_cloud.provision.capacity_check import bought_apart, check_capacity
from sailor_cloud.provision.cleanup.reap import find_leftovers
from sailor_cloud.provision.scopes import scopes_named
from sailor_cloud.testing.moto_server import Gaps, moto_gaps

NOW = datetime(2026, 11, 30, tzinfo=UTC)
BLOCK = entry()
REGION = "us-east-1"


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaps]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws(), moto_gaps() as gaps:
        yield gaps


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


def test_nothing_is_bought_apart_unasked_and_its_whole_price_is_said() -> None:
    bought = (("n0", reserved_offer(BLOCK)), ("n1", reserved_offer(reservation())))
    document = replace(cloud_document(*bought), as_of=NOW, ttl_s=7200.0)
    block, taken = bought_apart(document, NOW + timedelta(hours=2))
    assert str(block) == (
        "2 x g4dn.xlarge in use1-az6, capacity-block: 48.00 USD at once, from 2026-12-01 11:30 UTC "
        "to 2026-12-02 11:30 UTC, never given back"
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
        result.output == "block-use1-az6-2x1d-1201-1130: 2 x g4dn.xlarge in use1-az6 from 2026-12-01 11:30, 48.00 USD\n"
    )
    (block,) = read_capacity(target)
    assert (block.usd, block.starts_at, block.ends_at) == (48.0, BLOCK.starts_at, BLOCK.ends_at)
