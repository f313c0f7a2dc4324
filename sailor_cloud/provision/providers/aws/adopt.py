"""Import ids on AWS, which chooses ids itself: tags identify tagged resources, which lead to their parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from sailor_cloud.provision.adoptable import Adoptable, PlannedCreation
from sailor_cloud.provision.live_resources import LiveResource, Scope, Scopes
from sailor_cloud.provision.providers.aws.account_sweep import AWS_ACCOUNT_KINDS
from sailor_cloud.provision.providers.aws.sweep import BLOCK, CAPACITY_KINDS, REGION, boto_client, is_gone
from sailor_cloud.provision.rendering.root import Part, WantedRoot

# The attribute with the name, for types that are identified by a name; all others have a tag Name.
_NAMED = {
    "aws_key_pair": "key_name",
    "aws_placement_group": "name",
    "aws_launch_template": "name",
    "aws_scheduler_schedule_group": "name",
    "aws_iam_role": "name",
    "aws_iam_instance_profile": "name",
    "aws_s3_bucket": "bucket",
    "aws_lambda_function": "function_name",
}
_IN_NETWORKS = ("aws_subnet", "aws_route_table", "aws_security_group", "aws_instance", "aws_vpc_endpoint")


_OF_LINKS = ("aws_vpc_peering_connection",)
# Created and deleted with an instance, and in no state.
_LET_BE = ("aws_ebs_volume",)


class AwsAdoptable(Adoptable):
    def __init__(self, root: WantedRoot) -> None:
        self._root = root
        # The regions at both ends of a link.
        self._regions = tuple(root.variables.get("regions", (root.region,)))
        self.scopes = Scopes(Scope(provider=root.provider, kind=REGION, name=region) for region in self._regions)

    def belongs_to_root(self, resource: LiveResource) -> bool:
        if resource.type in _LET_BE:
            return False
        part = Part.LINKS if resource.type in _OF_LINKS else Part.CLUSTER
        if resource.type in AWS_ACCOUNT_KINDS:
            part = Part.DATA
        if resource.type in CAPACITY_KINDS:
            # A block is never imported: `with_current_offers` removes it from the root once it is bought.
            return self._root.part is Part.CAPACITY and resource.type != BLOCK
        return part is self._root.part and (part is not Part.CLUSTER or resource.region == self._root.region)

    def find_match(self, planned: PlannedCreation, orphans: Iterable[LiveResource]) -> LiveResource | None:
        everything = tuple(orphans)
        name = planned.after.get(_NAMED[planned.type]) if planned.type in _NAMED else _title(planned.after)
        same = [o for o in everything if o.type == planned.type and name in (o.name, o.title) and not o.ending]
        if planned.type == "aws_vpc":
            # If there are two, choose the one that contains nodes.
            same.sort(key=lambda vpc: (-_nodes_in(everything, vpc.name), vpc.name))
        if planned.type in _IN_NETWORKS:
            others = _second_networks(everything)
            same = [orphan for orphan in same if orphan.network not in others]
        return same[0] if same else None

    def part_id(self, planned: PlannedCreation) -> str | None:
        find = _PARTS.get(planned.type)
        if find is None:
            return None
        for region in self._regions:
            try:
                found = find(boto_client(region, _SERVICES.get(planned.type, "ec2")), planned.after)
            except Exception as error:
                # Its parent is missing, or in the other region of a link.
                if not is_gone(error):
                    raise
                continue
            if found:
                return found
        return None


def _title(after: Mapping[str, Any]) -> str:
    return str((after.get("tags") or {}).get("Name", ""))


def _nodes_in(everything: Iterable[LiveResource], network: str) -> int:
    return sum(found.type == "aws_instance" and found.network == network for found in everything)


def _second_networks(everything: tuple[LiveResource, ...]) -> set[str]:
    """Return duplicate networks next to the adopted ones; there should never be two of one name."""
    first: dict[str, LiveResource] = {}
    networks = [found for found in everything if found.type == "aws_vpc"]
    for vpc in sorted(networks, key=lambda vpc: (-_nodes_in(everything, vpc.name), vpc.name)):
        first.setdefault(vpc.title, vpc)
    return {vpc.name for vpc in networks} - {vpc.name for vpc in first.values()}


def _route(client: Any, after: Mapping[str, Any]) -> str | None:
    table, destination = after.get("route_table_id"), after.get("destination_cidr_block")
    for found in _tables(client, table):
        if any(route.get("DestinationCidrBlock") == destination for route in found["Routes"]):
            return f"{table}_{destination}"
    return None


def _association(client: Any, after: Mapping[str, Any]) -> str | None:
    table, subnet = after.get("route_table_id"), after.get("subnet_id")
    for found in _tables(client, table):
        if any(subnet and joined.get("SubnetId") == subnet for joined in found["Associations"]):
            return f"{subnet}/{table}"
    return None


def _tables(client: Any, table: str | None) -> Iterator[dict[str, Any]]:
    if table:
        yield from client.describe_route_tables(RouteTableIds=[table])["RouteTables"]


def _rule(client: Any, after: Mapping[str, Any], *, egress: bool) -> str | None:
    group = after.get("security_group_id")
    if not group:
        return None
    response = client.describe_security_group_rules(Filters=[{"Name": "group-id", "Values": [group]}])
    for rule in response["SecurityGroupRules"]:
        if rule["IsEgress"] == egress and _allows_the_same(rule, after):
            return str(rule["SecurityGroupRuleId"])
    return None


def _allows_the_same(rule: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether AWS would call a rule a duplicate; rules for every protocol have no ports."""
    if rule["IpProtocol"] != after["ip_protocol"]:
        return False
    ports = (rule.get("FromPort"), rule.get("ToPort")) == (after.get("from_port"), after.get("to_port"))
    other = (rule.get("ReferencedGroupInfo") or {}).get("GroupId")
    whom = (rule.get("CidrIpv4") or None, other or None)
    return (ports or after["ip_protocol"] == "-1") and whom == (
        after.get("cidr_ipv4"),
        after.get("referenced_security_group_id"),
    )


def _schedule(client: Any, after: Mapping[str, Any]) -> str | None:
    group, name = after.get("group_name"), after["name"]
    if not group:
        return None
    client.get_schedule(GroupName=group, Name=name)
    return f"{group}/{name}"


def _log_group(client: Any, after: Mapping[str, Any]) -> str | None:
    found = client.describe_log_groups(logGroupNamePrefix=after["name"])["logGroups"]
    return next((group["logGroupName"] for group in found if group["logGroupName"] == after["name"]), None)


_PARTS: Mapping[str, Callable[[Any, Mapping[str, Any]], str | None]] = {
    "aws_route": _route,
    "aws_route_table_association": _association,
    "aws_vpc_security_group_ingress_rule": lambda client, after: _rule(client, after, egress=False),
    "aws_vpc_security_group_egress_rule": lambda client, after: _rule(client, after, egress=True),
    "aws_scheduler_schedule": _schedule,
    "aws_cloudwatch_log_group": _log_group,
}
_SERVICES = {"aws_scheduler_schedule": "scheduler", "aws_cloudwatch_log_group": "logs"}
