"""The moto server: a change that an SDK asks for once is made once, however often the request comes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from sailor_cloud.testing.moto_server import moto_gaps, moto_server

EVERYTHING = [{"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}]


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    with moto_server() as address:
        yield boto3.client("ec2", region_name="us-east-1", endpoint_url=address)


def group(ec2: Any) -> str:
    """Return the id of a new group, which lets everything out."""
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_security_group(GroupName="nodes", Description="nodes", VpcId=vpc)
    return str(made["GroupId"])


def lose_first_answer(ec2: Any, operation: str) -> list[int]:
    """Take the first answer to each call for lost, so that boto asks again; gives the statuses as they come."""
    statuses: list[int] = []

    def judge(response: Any, attempts: int, **_: Any) -> int | None:
        statuses.append(response[0].status_code)
        return 0 if attempts == 1 else None

    ec2.meta.events.register_first(f"needs-retry.ec2.{operation}", judge)
    return statuses


def test_a_request_that_is_sent_again_is_answered_as_before(ec2: Any) -> None:
    made = group(ec2)
    statuses = lose_first_answer(ec2, "RevokeSecurityGroupEgress")
    ec2.revoke_security_group_egress(GroupId=made, IpPermissions=EVERYTHING)
    assert statuses == [200, 200]
    (found,) = ec2.describe_security_groups(GroupIds=[made])["SecurityGroups"]
    assert found["IpPermissionsEgress"] == []


def test_a_second_call_for_the_same_is_refused(ec2: Any) -> None:
    made = group(ec2)
    ec2.revoke_security_group_egress(GroupId=made, IpPermissions=EVERYTHING)
    with pytest.raises(ClientError, match=r"InvalidPermission\.NotFound"):
        ec2.revoke_security_group_egress(GroupId=made, IpPermissions=EVERYTHING)


def test_a_failure_of_the_server_is_not_kept(ec2: Any) -> None:
    with moto_gaps() as gaps:
        subnet = ec2.describe_subnets()["Subnets"][0]
        gaps.full = {subnet["AvailabilityZone"]}
        with pytest.raises(ClientError, match="InsufficientInstanceCapacity"):
            ec2.run_instances(MinCount=1, MaxCount=1, SubnetId=subnet["SubnetId"], InstanceType="g4dn.xlarge")
    assert gaps.refused == 2
