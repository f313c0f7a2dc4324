"""EC2's API over the fake cloud, through boto3."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from sailor_cloud.errors import CredentialsError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.instances import instances, published_host_key
from sailor_cloud.provision.providers.aws.sweep import AWS_KINDS, remove_aws, sweep_aws
from sailor_cloud.provision.scopes import scopes_named
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.terraform.cloud import FakeCloud

CONFIG = {"region": "us-east-1"}
TAGS = {"sailor-cloud-run": "r1", "sailor-cloud-expires": "2026-11-21t06-00-00z"}


@pytest.fixture
def cloud() -> Iterator[FakeCloud]:
    made = FakeCloud()
    with serve_ec2(made) as variables, in_environment(variables):
        yield made


def build(cloud: FakeCloud, tags: dict[str, str]) -> None:
    """One of everything that a sweep looks for."""
    vpc = cloud.create("aws_vpc", {"tags": tags}, CONFIG)["id"]
    subnet = cloud.create("aws_subnet", {"tags": tags, "vpc_id": vpc, "availability_zone_id": "use1-az4"}, CONFIG)["id"]
    table = cloud.create("aws_route_table", {"tags": tags, "vpc_id": vpc}, CONFIG)["id"]
    group = cloud.create("aws_security_group", {"tags": tags, "vpc_id": vpc, "name": "g"}, CONFIG)["id"]
    cloud.create("aws_internet_gateway", {"tags": tags, "vpc_id": vpc}, CONFIG)
    cloud.create("aws_route", {"route_table_id": table, "destination_cidr_block": "0.0.0.0/0"}, CONFIG)
    cloud.create("aws_route_table_association", {"route_table_id": table, "subnet_id": subnet}, CONFIG)
    cloud.create("aws_vpc_security_group_ingress_rule", {"tags": tags, "security_group_id": group}, CONFIG)
    cloud.create("aws_key_pair", {"tags": tags, "key_name": f"key-{len(tags)}"}, CONFIG)
    for kind in ("aws_placement_group", "aws_launch_template"):
        cloud.create(kind, {"tags": tags, "name": f"named-{len(tags)}"}, CONFIG)
    for kind in (
        "aws_ec2_capacity_reservation",
        "aws_eip",
        "aws_nat_gateway",
        "aws_vpc_endpoint",
        "aws_vpc_peering_connection",
    ):
        cloud.create(kind, {"tags": tags}, CONFIG)
    node = {**tags, "sailor-cloud-node": "n0"} if "sailor-cloud-run" in tags else tags
    wanted = {"tags": node, "subnet_id": subnet, "instance_type": "p4d.24xlarge", "associate_public_ip_address": True}
    cloud.create("aws_instance", wanted, CONFIG)


def test_every_kind_that_a_run_can_have_is_found_by_tag_and_deleted_and_nothing_else(cloud: FakeCloud) -> None:
    build(cloud, {"team": "else"})
    foreign = set(cloud.resources)
    build(cloud, TAGS)
    swept = sweep_aws(["us-east-1", "us-west-2"], run_id="r1")
    assert swept.problems == ()
    assert {found.type for found in swept.found} == set(AWS_KINDS) - {
        "aws_ebs_volume",
        "aws_ec2_capacity_block_reservation",
    }
    assert {found.expires for found in swept.found} == {"2026-11-21t06-00-00z"}
    assert remove_aws(swept.found, poll_s=0.01) == ()
    assert set(cloud.resources) == foreign
    assert remove_aws(swept.found, poll_s=0.01) == ()


def test_a_container_of_other_resources_can_not_be_deleted_before_them(cloud: FakeCloud) -> None:
    build(cloud, TAGS)
    kept = [found for found in sweep_aws(["us-east-1"], run_id="r1").found if found.type != "aws_instance"]
    assert any("DependencyViolation" in problem for problem in remove_aws(kept, poll_s=0.01))
    assert cloud.of_type("aws_subnet")


def test_an_instance_reports_its_addresses_and_its_host_key(cloud: FakeCloud) -> None:
    build(cloud, TAGS)
    (instance,) = instances(scopes_named("region", ["us-east-1"]), "r1")
    assert (instance.provider, instance.node, instance.running) == (Provider("aws"), "n0", True)
    assert instance.address.startswith("203.0.113.")
    assert (published_host_key(instance) or "").startswith("ssh-ed25519 ")


def test_refused_credentials_and_unknown_actions_are_errors_of_ec2s_own() -> None:
    with serve_ec2(FakeCloud(), refused=True) as variables, in_environment(variables), pytest.raises(CredentialsError):
        sweep_aws(["us-east-1"])
    with serve_ec2(FakeCloud()) as variables, in_environment(variables):
        client: Any = boto3.client("ec2", region_name="us-east-1")
        with pytest.raises(ClientError, match="InvalidAction"):
            client.describe_hosts()
