"""Finds leftovers of runs on AWS by tag, through EC2's own API, and deletes them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from sailor_cloud.catalog.providers.aws.account import HOW, RESERVATION_GONE
from sailor_cloud.errors import CredentialsError, MissingPackageError, ProvisionError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    Listing,
    LiveResource,
)
from sailor_cloud.provision.terraform.pace import map_concurrently

AWS = Provider("aws")
# The scope kind of a search.
REGION = "region"
RESERVATION = "aws_ec2_capacity_reservation"
BLOCK = "aws_ec2_capacity_block_reservation"
CAPACITY_KINDS = frozenset({RESERVATION, BLOCK})
_TERMINATION_LIMIT_S = 900.0
# The number of connections that a client of boto3 keeps.
_CALLS_AT_ONCE = 10
_ENDING = ("shutting-down", "stopping", "stopped", "deleting", "rejected", "expired", "failed")

# A session of boto3 can make only one client at a time.
_CONNECTING = threading.Lock()
ClientOf = Callable[[str], Any]


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of resource: how to list it, where its id is, and how to delete one.

    deletion: the call that takes an id as its only key, or a function of client and id.
    """

    type: str
    listed_by: str
    list_key: str
    id_key: str
    deletion: str | Callable[[Any, str], None]
    # Deleted resources stay listed for a while under these states; most calls filter under this name.
    gone: tuple[str, ...] = ()
    filter_key: str = "Filters"
    # The same call also lists resources of another kind.
    of_kind: Callable[[Mapping[str, Any]], bool] = lambda item: True

    def delete(self, client: Any, name: str) -> None:
        if callable(self.deletion):
            self.deletion(client, name)
        else:
            getattr(client, self.deletion)(**{self.id_key: name})


def _detach_and_delete_gateway(client: Any, name: str) -> None:
    (gateway,) = client.describe_internet_gateways(InternetGatewayIds=[name])["InternetGateways"]
    for attachment in gateway["Attachments"]:
        client.detach_internet_gateway(InternetGatewayId=name, VpcId=attachment["VpcId"])
    client.delete_internet_gateway(InternetGatewayId=name)


def _disassociate_and_delete_table(client: Any, name: str) -> None:
    (table,) = client.describe_route_tables(RouteTableIds=[name])["RouteTables"]
    for association in table["Associations"]:
        if not association.get("Main"):
            client.disassociate_route_table(AssociationId=association["RouteTableAssociationId"])
    client.delete_route_table(RouteTableId=name)


def _terminate(client: Any, name: str) -> None:
    client.terminate_instances(InstanceIds=[name])


def _delete_endpoint(client: Any, name: str) -> None:
    client.delete_vpc_endpoints(VpcEndpointIds=[name])


def _leave_block(client: Any, name: str) -> None:
    raise ProvisionError(f"AWS does not refund capacity blocks: {name} ends by itself")


def _is_block(item: Mapping[str, Any]) -> bool:
    return item.get("ReservationType") == "capacity-block"


def _is_reservation(item: Mapping[str, Any]) -> bool:
    return not _is_block(item)


_RESERVATIONS = ("describe_capacity_reservations", "CapacityReservations", "CapacityReservationId")
_PEERINGS = ("describe_vpc_peering_connections", "VpcPeeringConnections", "VpcPeeringConnectionId")
_PEERING_GONE = ("deleted", "rejected", "expired", "failed")
# In order of deletion: first what costs money, last what contains other resources.
_KINDS = (
    _Kind("aws_instance", "describe_instances", "Reservations", "InstanceId", _terminate, ("terminated",)),
    _Kind(RESERVATION, *_RESERVATIONS, "cancel_capacity_reservation", RESERVATION_GONE, of_kind=_is_reservation),
    _Kind(BLOCK, *_RESERVATIONS, _leave_block, RESERVATION_GONE, of_kind=_is_block),
    _Kind(
        "aws_nat_gateway",
        *("describe_nat_gateways", "NatGateways", "NatGatewayId", "delete_nat_gateway"),
        gone=("deleted", "failed"),
        filter_key="Filter",
    ),
    _Kind("aws_ebs_volume", "describe_volumes", "Volumes", "VolumeId", "delete_volume"),
    _Kind("aws_eip", "describe_addresses", "Addresses", "AllocationId", "release_address"),
    _Kind(
        "aws_vpc_endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId", _delete_endpoint, ("deleted",)
    ),
    _Kind("aws_vpc_peering_connection", *_PEERINGS, "delete_vpc_peering_connection", _PEERING_GONE),
    _Kind(
        "aws_launch_template",
        *("describe_launch_templates", "LaunchTemplates", "LaunchTemplateId", "delete_launch_template"),
    ),
    _Kind("aws_placement_group", "describe_placement_groups", "PlacementGroups", "GroupName", "delete_placement_group"),
    _Kind("aws_key_pair", "describe_key_pairs", "KeyPairs", "KeyName", "delete_key_pair"),
    _Kind(
        "aws_internet_gateway",
        *("describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
        _detach_and_delete_gateway,
    ),
    _Kind("aws_route_table", "describe_route_tables", "RouteTables", "RouteTableId", _disassociate_and_delete_table),
    _Kind("aws_subnet", "describe_subnets", "Subnets", "SubnetId", "delete_subnet"),
    _Kind("aws_security_group", "describe_security_groups", "SecurityGroups", "GroupId", "delete_security_group"),
    _Kind("aws_vpc", "describe_vpcs", "Vpcs", "VpcId", "delete_vpc"),
)
AWS_KINDS = tuple(kind.type for kind in _KINDS)


def sweep_aws(regions: Iterable[str], *, run_id: str | None = None, client_of: ClientOf | None = None) -> Listing:
    """Return the resources of one run, or of all runs, that exist in some regions.

    An instance that is shutting down still exists. Raises CredentialsError, also without boto3.
    """
    connect, listings = client_of or boto_client, list[Listing]()
    for region in sorted(set(regions)):
        replies = map_concurrently(partial(_asked, connect(region), region, run_id), _KINDS, most=_CALLS_AT_ONCE)
        refused = [why for _, why in replies if why is not None]
        if len(refused) == len(_KINDS):
            raise refused[0]
        # A caller who may not list one kind may list others.
        listings += [listing for listing, _ in replies]
    return Listing(
        found=tuple(one for listing in listings for one in listing.found),
        failed=tuple(one for listing in listings for one in listing.failed),
    )


def _asked(client: Any, region: str, run_id: str | None, kind: _Kind) -> tuple[Listing, CredentialsError | None]:
    """Return the resources of a kind, and why the caller may not list it."""
    found: list[LiveResource] = []
    failed: list[tuple[str, str]] = []
    refused = None
    try:
        found += _listed(client, kind, region, run_id)
    except Exception as error:
        refused = refusal(f"list resources in {region}", error) if is_refusal(error) else None
        failed.append((kind.type, str(refused or f"{kind.type} in {region} can't be listed: {error}")))
    return Listing(found=tuple(found), failed=tuple(failed)), refused


def remove_aws(
    resources: Sequence[LiveResource], *, client_of: ClientOf | None = None, poll_s: float = 5.0
) -> tuple[str, ...]:
    """Delete found resources, compute first, and wait for the end of instances; return the failures.

    Continues past every error, and deletes nothing without a run's tag.
    """
    connect = client_of or boto_client
    ours = [resource for resource in resources if resource.run_id and resource.provider == AWS]
    regions = sorted({resource.region for resource in ours})
    # Instances take minutes to end, so no region waits for another.
    problem_lists = map_concurrently(lambda region: _removed(connect(region), region, ours, poll_s), regions)
    return tuple(problem for problems in problem_lists for problem in problems)


def _removed(client: Any, region: str, ours: Sequence[LiveResource], poll_s: float) -> list[str]:
    problems: list[str] = []
    for kind in _KINDS:
        mine = [found.name for found in ours if (found.region, found.type) == (region, kind.type)]
        replies = map_concurrently(partial(_request_deletion, client, kind, region), mine)
        problems += [problem for problem in replies if problem]
        asked = [name for name, problem in zip(mine, replies, strict=True) if problem == ""]
        if kind.type == "aws_instance" and asked:
            problems += _wait_until_terminated(client, asked, region, poll_s)
    return problems


def _request_deletion(client: Any, kind: _Kind, region: str, name: str) -> str | None:
    """Request a deletion, and return the error: empty, or None if the resource is deleted already."""
    try:
        kind.delete(client, name)
    except Exception as error:
        return None if is_gone(error) else f"{kind.type} {name} in {region} can't be deleted: {error}"
    return ""


def _listed(client: Any, kind: _Kind, region: str, run_id: str | None) -> Iterator[LiveResource]:
    wanted = {"Name": f"tag:{RUN_LABEL}", "Values": [run_id]} if run_id else {"Name": "tag-key", "Values": [RUN_LABEL]}
    for item in _pages(client, kind, [wanted]):
        if _state(item) in kind.gone or not kind.of_kind(item):
            continue
        tags = {tag["Key"]: tag["Value"] for tag in item.get("Tags", [])}
        # The filter requested this tag; other resources in the answer must not be deleted.
        if tags.get(RUN_LABEL, "") != (run_id or tags.get(RUN_LABEL)):
            continue
        yield LiveResource(
            provider=AWS,
            region=region,
            zone=item.get("Placement", {}).get("AvailabilityZone", "") or item.get("AvailabilityZone", ""),
            type=kind.type,
            name=item[kind.id_key],
            run_id=tags.get(RUN_LABEL, ""),
            node=tags.get(NODE_LABEL, ""),
            detail=str(item.get("InstanceType", "")),
            title=tags.get("Name", "") or item.get("LaunchTemplateName", ""),
            owner=tags.get(OWNER_LABEL, ""),
            expires=tags.get(EXPIRES_LABEL, ""),
            network=item.get("VpcId", "") if kind.type != "aws_vpc" else "",
            ending=_state(item) in _ENDING,
            ends=item["EndDate"].isoformat() if "EndDate" in item else "",
        )


def _state(item: Mapping[str, Any]) -> str:
    """Return a resource's state in lower case; AWS reports it as a string or in a nested `Name` or `Code`."""
    state = item.get("State") or item.get("Status") or ""
    return str(state.get("Name") or state.get("Code") or "") if isinstance(state, dict) else str(state).lower()


def _pages(client: Any, kind: _Kind, filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    if client.can_paginate(kind.listed_by):
        answers: Iterable[dict[str, Any]] = client.get_paginator(kind.listed_by).paginate(**{kind.filter_key: filters})
    else:
        answers = [getattr(client, kind.listed_by)(**{kind.filter_key: filters})]
    for answer in answers:
        for item in answer[kind.list_key]:
            yield from item["Instances"] if kind.list_key == "Reservations" else [item]


def _wait_until_terminated(client: Any, names: list[str], region: str, poll_s: float) -> list[str]:
    until = time.monotonic() + _TERMINATION_LIMIT_S
    while time.monotonic() < until:
        try:
            answer = client.describe_instances(InstanceIds=names)
        except Exception as error:
            # Other deletions must not wait for a failed question; the next search finds what is left.
            return [f"whether instances in {region} are terminated can't be asked: {error}"]
        states = [instance["State"]["Name"] for group in answer["Reservations"] for instance in group["Instances"]]
        if all(state == "terminated" for state in states):
            return []
        time.sleep(poll_s)
    return [f"instances in {region} are not terminated after {_TERMINATION_LIMIT_S:.0f} s: {', '.join(names)}"]


def error_code(error: Exception) -> str:
    """Return AWS's code for an error; empty if it is no error of AWS."""
    response = getattr(error, "response", None)
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def is_gone(error: Exception) -> bool:
    """Whether AWS says that a resource does not exist."""
    return "NotFound" in error_code(error) or error_code(error).endswith(".Unknown")


def is_refusal(error: Exception) -> bool:
    """Whether AWS rejects the caller, or there are no credentials: a retry would not help."""
    refused = ("AuthFailure", "UnauthorizedOperation", "InvalidClientTokenId", "ExpiredToken", "RequestExpired")
    return error_code(error) in refused or type(error).__name__ in ("NoCredentialsError", "PartialCredentialsError")


def refusal(what: str, error: Exception) -> CredentialsError:
    """Return the error for a rejected caller, who may lack rights or a login."""
    return CredentialsError(f"AWS refused to {what}: {error}; if your credentials have ended, {HOW}")


def boto_client(region: str, service: str = "ec2") -> Any:
    """Return a client for a service in a region; each is made only once, because that takes a tenth of a second.

    Another environment, which may use another account, gets its own clients. Raises MissingPackageError without boto3.
    """
    with _CONNECTING:
        return _client(
            region, service, tuple(sorted(pair for pair in os.environ.items() if pair[0].startswith("AWS_")))
        )


@lru_cache(maxsize=64)
def _client(region: str, service: str, environment: tuple[tuple[str, str], ...]) -> Any:
    return _session(environment).client(service, region_name=region)


@lru_cache(maxsize=8)
def _session(environment: tuple[tuple[str, str], ...]) -> Any:
    """Return a session with credentials from this environment; later environments don't change them."""
    try:
        import boto3
    except ImportError as error:
        raise MissingPackageError("boto3", "aws") from error
    return boto3.Session()
