"""The functions that delete an overdue run from within its account: AWS's against moto, Google's against the fake."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from moto import mock_aws

from factories.cloud_runs import PROJECT
from factories.watchdogs import watchdog_of
from sailor_cloud.provision.live_resources import RUN_LABEL
from sailor_cloud.provision.providers.aws.account_sweep import sweep_aws_account
from sailor_cloud.provision.providers.aws.sweep import AWS_KINDS, sweep_aws
from sailor_cloud.run.folder import resource_name, resource_prefix
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.http_api import Answer, Ask, serving
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.moto_server import Gaps, moto_gaps
from sailor_cloud.testing.object_store import ObjectStore
from sailor_cloud.testing.terraform.cloud import FakeCloud

OURS, OTHERS = "tiny-20261121-051313-a1b2", "else-20261121-051313-ffff"
REGIONS = ("us-east-1", "us-west-2")
POLICY = json.dumps(
    {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "ec2:DescribeVpcs", "Resource": "*"}]}
)
DUE, EARLY = datetime.now(UTC) - timedelta(minutes=1), datetime.now(UTC) + timedelta(days=1)


class Context:
    """What Lambda tells a function: after so many questions for the time, none is left."""

    def __init__(self, rounds: int = 20) -> None:
        self._rounds = rounds

    def get_remaining_time_in_millis(self) -> int:
        self._rounds -= 1
        return 900_000 if self._rounds > 0 else 0


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gaps]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", REGIONS[0])
    for name, value in {"RUN": OURS, "NAME": resource_prefix(OURS), "REGIONS": " ".join(REGIONS)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DUE_AT", f"{DUE:%Y-%m-%dT%H:%M:%SZ}")
    monkeypatch.setenv("BUCKET", resource_name(OURS, "data"))
    with moto_gaps() as gaps, mock_aws():
        yield gaps


def pairs(run: str, **more: str) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in {RUN_LABEL: run, **more}.items()]


def build_region(run: str, region: str, cidr: str) -> None:
    """Make one of everything that the HCL can make in a region."""
    ec2 = boto3.client("ec2", region_name=region)
    first, _, rest = cidr.partition(".0.0/")
    assert rest == "16"

    def tags(kind: str) -> list[dict[str, Any]]:
        return [{"ResourceType": kind, "Tags": pairs(run)}]

    vpc = ec2.create_vpc(CidrBlock=cidr, TagSpecifications=tags("vpc"))["Vpc"]["VpcId"]
    gateway = ec2.create_internet_gateway(TagSpecifications=tags("internet-gateway"))["InternetGateway"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway["InternetGatewayId"], VpcId=vpc)
    table = ec2.create_route_table(VpcId=vpc, TagSpecifications=tags("route-table"))["RouteTable"]["RouteTableId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=f"{first}.16.0/20", TagSpecifications=tags("subnet"))["Subnet"]
    ec2.associate_route_table(RouteTableId=table, SubnetId=subnet["SubnetId"])
    group = ec2.create_security_group(
        GroupName=f"{run}-node", Description="x", VpcId=vpc, TagSpecifications=tags("security-group")
    )["GroupId"]
    address = ec2.allocate_address(Domain="vpc", TagSpecifications=tags("elastic-ip"))["AllocationId"]
    ec2.create_nat_gateway(SubnetId=subnet["SubnetId"], AllocationId=address, TagSpecifications=tags("natgateway"))
    ec2.create_vpc_endpoint(
        VpcId=vpc,
        ServiceName=f"com.amazonaws.{region}.s3",
        VpcEndpointType="Gateway",
        RouteTableIds=[table],
        TagSpecifications=tags("vpc-endpoint"),
    )
    other = ec2.create_vpc(CidrBlock="10.200.0.0/16")["Vpc"]["VpcId"]
    ec2.create_vpc_peering_connection(VpcId=vpc, PeerVpcId=other, TagSpecifications=tags("vpc-peering-connection"))
    ec2.create_capacity_reservation(
        InstanceType="g5.xlarge",
        InstancePlatform="Linux/UNIX",
        AvailabilityZone=f"{region}a",
        InstanceCount=1,
        TagSpecifications=tags("capacity-reservation"),
    )
    ec2.create_launch_template(
        LaunchTemplateName=f"{run}-efa", LaunchTemplateData={}, TagSpecifications=tags("launch-template")
    )
    ec2.create_placement_group(
        GroupName=f"{run}-compact", Strategy="cluster", TagSpecifications=tags("placement-group")
    )
    ec2.create_key_pair(KeyName=f"{run}-key", TagSpecifications=tags("key-pair"))
    ec2.create_volume(AvailabilityZone=f"{region}a", Size=1, TagSpecifications=tags("volume"))
    image = ec2.register_image(Name=run, RootDeviceName="/dev/sda1")["ImageId"]
    ec2.run_instances(
        ImageId=image,
        InstanceType="g4dn.xlarge",
        MinCount=2,
        MaxCount=2,
        SubnetId=subnet["SubnetId"],
        SecurityGroupIds=[group],
        TagSpecifications=tags("instance"),
    )


def build_account(run: str) -> None:
    """Make what nodes act as, the run's own bucket, and the watchdog."""
    iam, s3, logs = boto3.client("iam"), boto3.client("s3"), boto3.client("logs")
    node, watchdog = resource_name(run, "node"), resource_name(run, "watchdog")
    for role in (node, watchdog):
        iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}", Tags=pairs(run))
        iam.put_role_policy(RoleName=role, PolicyName=role, PolicyDocument=POLICY)
    iam.create_instance_profile(InstanceProfileName=node, Tags=pairs(run))
    iam.add_role_to_instance_profile(InstanceProfileName=node, RoleName=node)
    s3.create_bucket(Bucket=resource_name(run, "data"))
    s3.put_bucket_tagging(Bucket=resource_name(run, "data"), Tagging={"TagSet": pairs(run)})
    logs.create_log_group(logGroupName=f"/aws/lambda/{watchdog}")
    code = io.BytesIO()
    with zipfile.ZipFile(code, "w") as archive:
        archive.writestr("main.py", "")
    arn = boto3.client("lambda").create_function(
        FunctionName=watchdog,
        Runtime="python3.13",
        Handler="main.handler",
        Role=iam.get_role(RoleName=watchdog)["Role"]["Arn"],
        Code={"ZipFile": code.getvalue()},
        Tags={RUN_LABEL: run},
    )["FunctionArn"]
    scheduler = boto3.client("scheduler")
    scheduler.create_schedule_group(Name=watchdog, Tags=pairs(run))
    scheduler.create_schedule(
        Name=watchdog,
        GroupName=watchdog,
        ScheduleExpression="rate(15 minutes)",
        FlexibleTimeWindow={"Mode": "OFF"},
        Target={"Arn": arn, "RoleArn": iam.get_role(RoleName=watchdog)["Role"]["Arn"]},
    )


def build_run(run: str, number: int) -> None:
    for index, region in enumerate(REGIONS):
        build_region(run, region, f"10.{64 + 2 * number + index}.0.0/16")
    build_account(run)


def left(run: str) -> set[tuple[str, str, str]]:
    swept, beside = sweep_aws(REGIONS, run_id=run), sweep_aws_account(REGIONS, run_id=run)
    assert swept.problems == beside.problems == ()
    return {(found.region, found.type, found.name) for found in (*swept.found, *beside.found)}


def log_groups() -> set[str]:
    return {group["logGroupName"] for group in boto3.client("logs").describe_log_groups()["logGroups"]}


def test_on_aws_everything_of_an_overdue_run_is_deleted_and_nothing_of_another(aws: Gaps) -> None:
    build_run(OURS, 0)
    build_run(OTHERS, 1)
    boto3.client("s3").create_bucket(Bucket="somebodys-bucket")
    before, theirs = left(OURS), left(OTHERS)
    # A block can't be cancelled; it ends by itself.
    kinds = set(AWS_KINDS) - {"aws_ec2_capacity_block_reservation"}
    assert {(region, kind) for region, kind, _ in before} >= {(r, kind) for r in REGIONS for kind in kinds}
    assert watchdog_of("aws-data").handler({}, Context()) == f"everything of {OURS} is deleted"
    assert left(OURS) == set()
    assert left(OTHERS) == theirs
    assert log_groups() == {f"/aws/lambda/{resource_name(OTHERS, 'watchdog')}"}
    buckets = {bucket["Name"] for bucket in boto3.client("s3").list_buckets()["Buckets"]}
    assert buckets == {"somebodys-bucket", resource_name(OTHERS, "data")}


def test_on_aws_results_that_nobody_has_fetched_are_kept(aws: Gaps) -> None:
    build_run(OURS, 0)
    bucket = resource_name(OURS, "data")
    boto3.client("s3").put_object(Bucket=bucket, Key="checkpoints/step-10", Body=b"x")
    told = watchdog_of("aws-data").handler({}, Context())
    assert told.endswith(f"s3://{bucket} is kept, it holds results that nobody has fetched")
    assert left(OURS) == {(REGIONS[0], "aws_s3_bucket", bucket)}


def test_on_aws_what_has_a_name_of_the_run_and_not_its_tag_is_left_alone(aws: Gaps) -> None:
    iam, s3 = boto3.client("iam"), boto3.client("s3")
    node, bucket = resource_name(OURS, "node"), resource_name(OURS, "data")
    build_account(OURS)
    iam.tag_role(RoleName=node, Tags=pairs(OTHERS))
    iam.untag_instance_profile(InstanceProfileName=node, TagKeys=[RUN_LABEL])
    s3.delete_bucket_tagging(Bucket=bucket)
    assert watchdog_of("aws-data").handler({}, Context()) == f"everything of {OURS} is deleted"
    assert iam.get_role(RoleName=node)["Role"]["RoleName"] == node
    assert iam.get_instance_profile(InstanceProfileName=node)["InstanceProfile"]["InstanceProfileName"] == node
    assert [found["Name"] for found in s3.list_buckets()["Buckets"]] == [bucket]


def test_on_aws_nothing_is_deleted_before_the_run_is_overdue(aws: Gaps, monkeypatch: pytest.MonkeyPatch) -> None:
    build_run(OURS, 0)
    before = left(OURS)
    monkeypatch.setenv("DUE_AT", f"{EARLY:%Y-%m-%dT%H:%M:%SZ}")
    assert "nothing is deleted before" in watchdog_of("aws-data").handler({}, Context())
    assert left(OURS) == before


def test_on_aws_the_watchdog_stays_as_long_as_something_is_left(aws: Gaps, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it can't delete is told in an error, which Lambda counts, and the next call tries again."""
    build_run(OURS, 0)
    watchdog = watchdog_of("aws-data")
    refused = tuple(kind._replace(delete=_refused) if kind.key == "Volumes" else kind for kind in watchdog.KINDS)
    monkeypatch.setattr(watchdog, "KINDS", refused)
    with pytest.raises(RuntimeError, match=r"2 resources of .*Volumes vol-\w+ in us-east-1: .*not authorized"):
        watchdog.handler({}, Context(rounds=3))
    kinds = {kind for _, kind, _ in left(OURS)}
    assert kinds >= {"aws_lambda_function", "aws_scheduler_schedule_group", "aws_iam_role", "aws_ebs_volume"}
    assert "aws_instance" not in kinds


def _refused(client: Any, found: Any) -> None:
    from botocore.exceptions import ClientError

    raise ClientError({"Error": {"Code": "UnauthorizedOperation", "Message": "not authorized"}}, "DeleteVolume")


def build_google(cloud: FakeCloud, run: str) -> set[tuple[str, str]]:
    """Make one of everything that the HCL can make in a project."""
    before = set(cloud.resources)
    config, name, tags = {"project": PROJECT}, resource_prefix(run), {RUN_LABEL: run}
    told = f"{RUN_LABEL}={run} sailor-cloud-owner=me"
    place = {"region": "us-central1", "location": "us-central1", "name": f"{name}-watchdog"}
    net = cloud.create("google_compute_network", {"name": f"{name}-net", "description": told}, config)["self_link"]
    subnet = cloud.create(
        "google_compute_subnetwork",
        {"name": f"{name}-subnet", "region": "us-central1", "description": told, "network": net},
        config,
    )["self_link"]
    for kind in ("firewall", "router", "resource_policy"):
        where = {} if kind == "firewall" else {"region": "us-central1"}
        cloud.create(
            f"google_compute_{kind}", {"name": f"{name}-{kind}", "description": told, "network": net, **where}, config
        )
    for number in range(2):
        face = {"network": net, "subnetwork": subnet}
        machine = {"name": f"{name}-n{number}", "zone": "us-central1-a", "machine_type": "a2-highgpu-1g"}
        cloud.create("google_compute_instance", {**machine, "labels": tags, "network_interface": [face]}, config)
    cloud.create("google_compute_disk", {"name": f"{name}-disk", "zone": "us-central1-a", "labels": tags}, config)
    for part in ("node", "watchdog"):
        cloud.create("google_service_account", {"account_id": f"{name}-{part}", "description": told}, config)
    for bucket in (f"{name}-data", f"{name}-watchdog"):
        cloud.create("google_storage_bucket", {"name": bucket, "labels": tags, "location": "us-central1"}, config)
    cloud.create("google_storage_bucket_object", {"bucket": place["name"], "name": "watchdog.zip"}, config)
    cloud.create("google_project_iam_custom_role", {"role_id": f"{name}_watchdog".replace("-", "_")}, config)
    cloud.create("google_cloudfunctions2_function", {**place, "labels": tags}, config)
    cloud.create("google_cloud_scheduler_job", place, config)
    return set(cloud.resources) - before


class Project:
    """A project with its interfaces, as the function reaches them. `tokens` are those that it was given."""

    def __init__(self) -> None:
        self.cloud, self.store, self.asked = FakeCloud(), ObjectStore(), list[Ask]()

    def metadata(self, ask: Ask) -> Answer:
        self.asked.append(ask)
        return Answer(status=200, body=json.dumps({"access_token": "t", "expires_in": 3599}).encode())


@pytest.fixture
def google() -> Iterator[Project]:
    project = Project()
    own = {"RUN": OURS, "NAME": resource_prefix(OURS), "PROJECT": PROJECT, "REGION": "us-central1"}
    own |= {"DUE_AT": f"{DUE:%Y-%m-%dT%H:%M:%SZ}", "BUCKET": resource_name(OURS, "data")}
    with (
        serve_compute(project.cloud, store=project.store) as variables,
        serving(project.metadata) as metadata,
        in_environment({**variables, **own, "GCE_METADATA_HOST": metadata.removeprefix("http://")}),
    ):
        yield project


def test_on_google_everything_of_an_overdue_run_is_deleted_and_nothing_of_another(google: Project) -> None:
    mine, theirs = build_google(google.cloud, OURS), build_google(google.cloud, OTHERS)
    stranger = google.cloud.create("google_compute_network", {"name": "default"}, {"project": PROJECT})["id"]
    # A name that begins like ours is somebody else's.
    near = build_google(google.cloud, f"{OURS}0")
    google.cloud.deletion_looks = 0
    assert watchdog_of("gcp-data").watchdog(None) == (f"everything of {OURS} is deleted\n", 200)
    assert not mine & google.cloud.resources.keys()
    assert google.cloud.resources.keys() == theirs | near | {("google_compute_network", stranger)}
    assert {ask.headers["Metadata-Flavor"] for ask in google.asked} == {"Google"}
    assert watchdog_of("gcp-data").watchdog(None)[1] == 200


def test_on_google_results_that_nobody_has_fetched_are_kept(google: Project) -> None:
    build_google(google.cloud, OURS)
    bucket = resource_name(OURS, "data")
    google.store.objects[bucket, "checkpoints/step-10"] = b"x"
    told, status = watchdog_of("gcp-data").watchdog(None)
    assert (status, f"gs://{bucket} is kept, it holds results that nobody has fetched" in told) == (200, True)
    assert set(google.cloud.resources) == {("google_storage_bucket", bucket)}
    assert google.store.of(bucket) == {"checkpoints/step-10": b"x"}


def test_on_google_what_has_a_name_of_the_run_and_not_its_label_is_left_alone(google: Project) -> None:
    config = {"project": PROJECT}
    account = {"account_id": f"{resource_prefix(OURS)}-node", "description": f"{RUN_LABEL}={OURS}0"}
    google.cloud.create("google_service_account", account, config)
    bucket = {"name": resource_name(OURS, "data"), "labels": {RUN_LABEL: OTHERS}, "location": "us-central1"}
    google.cloud.create("google_storage_bucket", bucket, config)
    before = set(google.cloud.resources)
    assert watchdog_of("gcp-data").watchdog(None) == (f"everything of {OURS} is deleted\n", 200)
    assert google.cloud.resources.keys() == before


def test_on_google_nothing_is_deleted_before_the_run_is_overdue(google: Project) -> None:
    mine = build_google(google.cloud, OURS)
    with in_environment({"DUE_AT": f"{EARLY:%Y-%m-%dT%H:%M:%SZ}"}):
        told, status = watchdog_of("gcp-data").watchdog(None)
    assert (status, "nothing is deleted before" in told) == (200, True)
    assert mine == google.cloud.resources.keys()


def test_on_google_the_watchdog_stays_as_long_as_a_zone_cannot_be_asked(google: Project) -> None:
    mine = build_google(google.cloud, OURS)
    watchdog = watchdog_of("gcp-data")
    watchdog.LIMIT_S = 0
    with serve_compute(google.cloud, unreachable="zones/us-central1-f") as variables, in_environment(variables):
        told, status = watchdog.watchdog(None)
    assert (status, "instances in zones/us-central1-f can't be listed" in told) == (500, True)
    kinds = {kind for kind, _ in mine & google.cloud.resources.keys()}
    assert kinds >= {"google_cloudfunctions2_function", "google_cloud_scheduler_job", "google_service_account"}
    assert "google_compute_instance" not in kinds
