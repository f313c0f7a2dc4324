"""The look at AWS by tag, against moto."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from sailor_cloud.errors import CredentialsError
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.providers.aws.account_sweep import sweep_aws_account
from sailor_cloud.provision.providers.aws.sweep import is_gone, remove_aws, sweep_aws
from sailor_cloud.run.folder import resource_name

REGION = "us-east-1"
OURS, OTHERS = "tiny-20261121-051313-a1b2", "else-20261121-051313-ffff"


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    with mock_aws():
        yield boto3.client("ec2", region_name=REGION)


def tags(kind: str, run_id: str, **more: str) -> list[dict[str, Any]]:
    pairs = {"sailor-cloud-run": run_id, **more}
    return [{"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in pairs.items()]}]


def build(ec2: Any, run_id: str, cidr: str) -> dict[str, str]:
    """Make what a run leaves when everything but its tags is lost."""
    vpc = ec2.create_vpc(CidrBlock=cidr, TagSpecifications=tags("vpc", run_id))["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway(TagSpecifications=tags("internet-gateway", run_id))
    gateway_id = gateway["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway_id, VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc, TagSpecifications=tags("route-table", run_id))
    table_id = table["RouteTable"]["RouteTableId"]
    made = ec2.create_subnet(VpcId=vpc, CidrBlock=cidr, TagSpecifications=tags("subnet", run_id))
    subnet = made["Subnet"]["SubnetId"]
    ec2.associate_route_table(RouteTableId=table_id, SubnetId=subnet)
    group = ec2.create_security_group(
        GroupName=f"{run_id}-node", Description="x", VpcId=vpc, TagSpecifications=tags("security-group", run_id)
    )["GroupId"]
    image = ec2.register_image(Name=run_id, RootDeviceName="/dev/sda1")["ImageId"]
    instance = ec2.run_instances(
        ImageId=image,
        InstanceType="g4dn.xlarge",
        MinCount=1,
        MaxCount=1,
        SubnetId=subnet,
        SecurityGroupIds=[group],
        TagSpecifications=tags("instance", run_id, **{"sailor-cloud-node": "n0"}),
    )["Instances"][0]["InstanceId"]
    ec2.create_key_pair(KeyName=f"{run_id}-key", TagSpecifications=tags("key-pair", run_id))
    volume = ec2.create_volume(AvailabilityZone=f"{REGION}a", Size=1, TagSpecifications=tags("volume", run_id))[
        "VolumeId"
    ]
    return {
        "aws_vpc": vpc,
        "aws_internet_gateway": gateway_id,
        "aws_route_table": table_id,
        "aws_subnet": subnet,
        "aws_security_group": group,
        "aws_instance": instance,
        "aws_key_pair": f"{run_id}-key",
        "aws_ebs_volume": volume,
    }


def names(found: tuple[LiveResource, ...]) -> dict[str, str]:
    return {resource.type: resource.name for resource in found}


def test_a_sweep_finds_everything_of_its_run_and_nothing_else(ec2: Any) -> None:
    made = build(ec2, OURS, "10.64.0.0/16")
    build(ec2, OTHERS, "10.65.0.0/16")
    ec2.create_vpc(CidrBlock="10.99.0.0/16")
    swept = sweep_aws([REGION, "us-west-2"], run_id=OURS)
    assert names(swept.found) == made
    assert {resource.run_id for resource in swept.found} == {OURS}
    (instance,) = (resource for resource in swept.found if resource.type == "aws_instance")
    assert (instance.region, instance.node, instance.detail) == (REGION, "n0", "g4dn.xlarge")


def test_without_a_run_a_sweep_finds_all_runs_and_no_stranger(ec2: Any) -> None:
    build(ec2, OURS, "10.64.0.0/16")
    build(ec2, OTHERS, "10.65.0.0/16")
    ec2.create_key_pair(KeyName="stranger")
    swept = sweep_aws([REGION])
    assert {resource.run_id for resource in swept.found} == {OURS, OTHERS}
    assert "stranger" not in {resource.name for resource in swept.found}


def test_found_resources_are_deleted_and_foreign_ones_stay(ec2: Any) -> None:
    build(ec2, OURS, "10.64.0.0/16")
    foreign = build(ec2, OTHERS, "10.65.0.0/16")
    assert remove_aws(sweep_aws([REGION], run_id=OURS).found, poll_s=0.01) == ()
    assert sweep_aws([REGION], run_id=OURS).found == ()
    assert names(sweep_aws([REGION], run_id=OTHERS).found) == foreign


def test_deleting_again_is_no_error(ec2: Any) -> None:
    build(ec2, OURS, "10.64.0.0/16")
    found = sweep_aws([REGION], run_id=OURS).found
    assert remove_aws(found, poll_s=0.01) == ()
    # EC2 forgets these at once; a terminated instance stays listed for a while.
    kinds = ("aws_vpc", "aws_subnet", "aws_key_pair", "aws_ebs_volume")
    again = [resource for resource in found if resource.type in kinds]
    assert remove_aws(again, poll_s=0.01) == ()


def test_nothing_without_a_tag_of_a_run_is_ever_deleted(ec2: Any) -> None:
    vpc = ec2.create_vpc(CidrBlock="10.99.0.0/16")["Vpc"]["VpcId"]
    untagged = LiveResource(
        provider="aws", region=REGION, zone="", type="aws_vpc", name=vpc, run_id="", node="", detail=""
    )
    assert remove_aws([untagged]) == ()
    assert ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"]


def test_one_thing_that_can_not_be_deleted_does_not_keep_the_others(ec2: Any) -> None:
    build(ec2, OURS, "10.64.0.0/16")

    stubborn = Odd(ec2, delete_key_pair=failing("DependencyViolation"))
    found = sweep_aws([REGION], run_id=OURS).found
    (problem,) = remove_aws(found, client_of=lambda region: stubborn, poll_s=0.01)
    assert problem.startswith(f"aws_key_pair {OURS}-key in {REGION} can't be deleted")
    assert names(sweep_aws([REGION], run_id=OURS).found) == {"aws_key_pair": f"{OURS}-key"}


def test_a_kind_that_can_t_be_listed_is_reported_and_not_considered_deleted(ec2: Any) -> None:
    """moto knows neither placement groups nor capacity reservations."""
    problems = sweep_aws([REGION], run_id=OURS).problems
    unknown = ("aws_ec2_capacity_block_reservation", "aws_ec2_capacity_reservation", "aws_placement_group")
    assert sorted(problem.partition(" can't be listed")[0] for problem in problems) == [
        f"{kind} in {REGION}" for kind in unknown
    ]


def test_refused_credentials_stop_the_sweep() -> None:
    class Refusing:
        def can_paginate(self, name: str) -> bool:
            return False

        def __getattr__(self, name: str) -> Any:
            return failing("AuthFailure")

    with pytest.raises(CredentialsError, match="AWS refused to list resources in us-east-1"):
        sweep_aws([REGION], run_id=OURS, client_of=lambda region: Refusing())


class Odd:
    """EC2, but some of its calls do something else."""

    def __init__(self, ec2: Any, **calls: Any) -> None:
        self._ec2, self._calls = ec2, calls

    def __getattr__(self, name: str) -> Any:
        return self._calls.get(name) or getattr(self._ec2, name)

    def can_paginate(self, name: str) -> bool:
        return name not in self._calls and bool(self._ec2.can_paginate(name))


def failing(code: str) -> Any:
    def call(**_: Any) -> Any:
        raise ClientError({"Error": {"Code": code, "Message": "no"}}, "Call")

    return call


def test_a_caller_who_may_not_list_gateways_still_finds_the_nodes(ec2: Any) -> None:
    made = build(ec2, OURS, "10.64.0.0/16")
    client = Odd(ec2, describe_nat_gateways=failing("UnauthorizedOperation"))
    swept = sweep_aws([REGION], run_id=OURS, client_of=lambda region: client)
    assert names(swept.found) == made
    assert "AWS refused to list resources in us-east-1" in dict(swept.failed)["aws_nat_gateway"]


def test_a_question_that_fails_keeps_nothing_else_from_being_deleted(ec2: Any) -> None:
    build(ec2, OURS, "10.64.0.0/16")
    found = sweep_aws([REGION], run_id=OURS).found
    client = Odd(ec2, describe_instances=failing("RequestLimitExceeded"))
    (problem,) = remove_aws(found, client_of=lambda region: client, poll_s=0.01)
    assert problem.startswith("whether instances in us-east-1 are terminated can't be asked: ")
    assert sweep_aws([REGION], run_id=OURS).found == ()


def test_no_region_waits_for_the_instances_of_another(ec2: Any) -> None:
    meeting = threading.Barrier(2)

    def describe(**_: Any) -> Any:
        meeting.wait(timeout=10.0)
        return {"Reservations": []}

    there = [
        LiveResource(provider="aws", region=region, type="aws_instance", name="i-1", run_id=OURS)
        for region in (REGION, "us-west-2")
    ]
    client = Odd(ec2, terminate_instances=lambda **_: None, describe_instances=describe)
    assert remove_aws(there, client_of=lambda region: client, poll_s=0.01) == ()


def test_a_bucket_with_the_run_s_name_and_without_its_tag_is_not_called_gone(ec2: Any) -> None:
    bucket = resource_name(OURS, "data")
    boto3.client("s3", region_name=REGION).create_bucket(Bucket=bucket)
    ((kind, why),) = sweep_aws_account([REGION], run_id=OURS, kinds=["aws_s3_bucket"]).failed
    assert kind == "aws_s3_bucket"
    assert f"{bucket} has the name of the run's bucket and not its tag" in why
    assert sweep_aws_account([REGION], kinds=["aws_s3_bucket"]).failed == ()
    assert sweep_aws_account([REGION], run_id=OTHERS, kinds=["aws_s3_bucket"]).failed == ()


def test_an_error_whose_name_sounds_like_absence_is_none() -> None:
    told = ("InvalidInstanceID.NotFound", "InvalidPlacementGroup.Unknown", "UnknownOperationException")
    errors = [ClientError({"Error": {"Code": code}}, "Call") for code in told]
    assert [is_gone(error) for error in errors] == [True, True, False]
