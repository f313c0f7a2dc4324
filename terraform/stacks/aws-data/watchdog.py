"""Deletes everything of one run from within its account once the run is overdue, itself last.

EventBridge Scheduler calls `handler` every 15 minutes until nothing is left. It is its own file because it runs on AWS
Lambda, which has boto3 and the standard library alone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, NamedTuple

import boto3
from botocore.exceptions import BotoCoreError, ClientError

PAUSE_S = 15
# A round that begins later might be cut off in the middle.
LEAST_TIME_LEFT_MS = 120_000
ABSENT = ("NotFound", "Unknown", "NoSuch")


class Kind(NamedTuple):
    """What EC2 lists: by which call, under which key, by which id, how it is deleted, and when it is gone."""

    call: str
    key: str
    id: str
    delete: Callable[[Any, dict[str, Any]], Any]
    gone: tuple[str, ...] = ()


def _delete_gateway(ec2: Any, found: dict[str, Any]) -> None:
    name = found["InternetGatewayId"]
    for attachment in found["Attachments"]:
        ec2.detach_internet_gateway(InternetGatewayId=name, VpcId=attachment["VpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=name)


def _delete_table(ec2: Any, found: dict[str, Any]) -> None:
    for association in found["Associations"]:
        if not association.get("Main"):
            ec2.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
    ec2.delete_route_table(RouteTableId=found["RouteTableId"])


def _kind(call: str, key: str, id: str, delete: str, *, many: bool = False, gone: tuple[str, ...] = ()) -> Kind:
    """Return a kind whose deletion takes its id alone, or a list of them."""

    def order(ec2: Any, found: dict[str, Any]) -> Any:
        return getattr(ec2, delete)(**{f"{id}s" if many else id: [found[id]] if many else found[id]})

    return Kind(call, key, id, order, gone)


# In the order in which they are deleted: what costs money first, what others stand in last.
KINDS = (
    _kind("describe_instances", "Reservations", "InstanceId", "terminate_instances", many=True, gone=("terminated",)),
    _kind(
        "describe_capacity_reservations",
        "CapacityReservations",
        "CapacityReservationId",
        "cancel_capacity_reservation",
        gone=("cancelled", "expired", "failed", "unsupported", "payment-failed"),
    ),
    _kind("describe_nat_gateways", "NatGateways", "NatGatewayId", "delete_nat_gateway", gone=("deleted",)),
    _kind("describe_volumes", "Volumes", "VolumeId", "delete_volume"),
    _kind("describe_addresses", "Addresses", "AllocationId", "release_address"),
    _kind(
        "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", "delete_vpc_endpoints", many=True, gone=("deleted",)
    ),
    _kind(
        "describe_vpc_peering_connections",
        "VpcPeeringConnections",
        "VpcPeeringConnectionId",
        "delete_vpc_peering_connection",
        gone=("deleted", "rejected", "expired", "failed"),
    ),
    _kind("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", "delete_launch_template"),
    _kind("describe_placement_groups", "PlacementGroups", "GroupName", "delete_placement_group", gone=("deleted",)),
    _kind("describe_key_pairs", "KeyPairs", "KeyName", "delete_key_pair"),
    Kind("describe_internet_gateways", "InternetGateways", "InternetGatewayId", _delete_gateway),
    Kind("describe_route_tables", "RouteTables", "RouteTableId", _delete_table),
    _kind("describe_subnets", "Subnets", "SubnetId", "delete_subnet"),
    _kind("describe_security_groups", "SecurityGroups", "GroupId", "delete_security_group"),
    _kind("describe_vpcs", "Vpcs", "VpcId", "delete_vpc"),
)


def handler(event: Any, context: Any) -> str:
    """Delete what is left; raise RuntimeError, which Lambda logs and counts, as long as something still exists."""
    due_at = datetime.fromisoformat(os.environ["DUE_AT"])
    if datetime.now(UTC) < due_at:
        return f"nothing is deleted before {due_at:%Y-%m-%d %H:%M:%S} UTC"
    regions = [boto3.client("ec2", region_name=region) for region in os.environ["REGIONS"].split()]
    while True:
        left = [told for ec2 in regions for told in _delete_once(ec2, os.environ["RUN"])]
        if not left:
            break
        if context.get_remaining_time_in_millis() < LEAST_TIME_LEFT_MS:
            raise RuntimeError(f"{len(left)} resources of {os.environ['RUN']} are left: {'; '.join(left)}")
        time.sleep(PAUSE_S)
    kept = _delete_account_wide(os.environ["RUN"], os.environ["NAME"], os.environ["BUCKET"])
    _delete_itself(f"{os.environ['NAME']}-watchdog")
    return f"everything of {os.environ['RUN']} is deleted{kept}"


def _delete_once(ec2: Any, run: str) -> Iterator[str]:
    """Ask for the deletion of everything of the run in a region; yield what was there, with what stood in the way."""
    for kind in KINDS:
        try:
            found = list(_listed(ec2, kind, run))
        except (BotoCoreError, ClientError) as error:
            yield f"{kind.key} in {ec2.meta.region_name} can't be listed: {error}"
            continue
        for item in found:
            told = f"{kind.key} {item[kind.id]} in {ec2.meta.region_name}"
            try:
                kind.delete(ec2, item)
                yield told
            except (BotoCoreError, ClientError) as error:
                yield f"{told}: {error}"


def _listed(ec2: Any, kind: Kind, run: str) -> Iterator[dict[str, Any]]:
    filters = [{"Name": "tag:sailor-cloud-run", "Values": [run]}]
    asked = {"Filter" if kind.key == "NatGateways" else "Filters": filters}
    paged = ec2.can_paginate(kind.call)
    for page in ec2.get_paginator(kind.call).paginate(**asked) if paged else [getattr(ec2, kind.call)(**asked)]:
        for item in page[kind.key]:
            for found in item["Instances"] if kind.key == "Reservations" else [item]:
                # The filter has asked for it; whatever else an answer holds is never deleted. Blocks end by themselves.
                if found.get("ReservationType") == "capacity-block":
                    continue
                if _carries(found.get("Tags", ()), run) and _state(found) not in kind.gone:
                    yield found


def _state(found: dict[str, Any]) -> str:
    state = found.get("State") or found.get("Status") or ""
    return str(state.get("Name") or state.get("Code")) if isinstance(state, dict) else str(state).lower()


def _carries(tags: Iterable[dict[str, str]], run: str) -> bool:
    return {tag["Key"]: tag["Value"] for tag in tags}.get("sailor-cloud-run") == run


def _delete_account_wide(run: str, name: str, bucket: str) -> str:
    """Delete what nodes acted as, and the run's own bucket if it is empty; return what is kept.

    These are looked up by name; what has such a name and not the run's tag is somebody else's.
    """
    iam, s3, node = boto3.client("iam"), boto3.client("s3"), f"{name}-node"
    if _is_own(lambda: iam.get_instance_profile(InstanceProfileName=node)["InstanceProfile"].get("Tags", ()), run):
        _gone(lambda: iam.remove_role_from_instance_profile(InstanceProfileName=node, RoleName=node))
        _gone(lambda: iam.delete_instance_profile(InstanceProfileName=node))
    if _is_own(lambda: iam.get_role(RoleName=node)["Role"].get("Tags", ()), run):
        _gone(lambda: iam.delete_role_policy(RoleName=node, PolicyName=node))
        _gone(lambda: iam.delete_role(RoleName=node))
    if not bucket or not _is_own(lambda: s3.get_bucket_tagging(Bucket=bucket)["TagSet"], run):
        return ""
    try:
        _gone(lambda: s3.delete_bucket(Bucket=bucket))
    except ClientError as error:
        if error.response["Error"]["Code"] != "BucketNotEmpty":
            raise
        return f"; s3://{bucket} is kept, it holds results that nobody has fetched"
    return ""


def _delete_itself(name: str) -> None:
    scheduler, logs, iam = boto3.client("scheduler"), boto3.client("logs"), boto3.client("iam")
    _gone(lambda: scheduler.delete_schedule_group(Name=name))
    _gone(lambda: boto3.client("lambda").delete_function(FunctionName=name))
    _gone(lambda: logs.delete_log_group(logGroupName=f"/aws/lambda/{name}"))
    _gone(lambda: iam.delete_role_policy(RoleName=name, PolicyName=name))
    # Without its policy the role may soon no longer do this; it then stays behind without any right.
    _gone(lambda: iam.delete_role(RoleName=name))


def _is_own(tags: Callable[[], Iterable[dict[str, str]]], run: str) -> bool:
    """Tell whether something exists and carries the run's tag."""
    try:
        return _carries(tags(), run)
    except ClientError as error:
        if not _is_absent(error):
            raise
        return False


def _gone(delete: Callable[[], Any]) -> None:
    """Delete something that may not be there."""
    try:
        delete()
    except ClientError as error:
        if not _is_absent(error):
            raise


def _is_absent(error: ClientError) -> bool:
    return any(word in error.response["Error"]["Code"] for word in ABSENT)
