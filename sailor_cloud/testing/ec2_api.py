"""EC2's own API to the cloud that the stand-in provider fills: describe and delete over HTTP.

boto3 reaches it through AWS_ENDPOINT_URL_EC2. What others stand in can't be deleted before them, as on the real one.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from sailor_cloud.testing.http_api import Answer, Ask, serving
from sailor_cloud.testing.terraform_cloud import CloudError, FakeCloud

_REGION = re.compile(r"Credential=[^/]+/\d+/([\w-]+)/")
_KINDS = {
    "Instances": "aws_instance",
    "Volumes": "aws_ebs_volume",
    "NatGateways": "aws_nat_gateway",
    "Addresses": "aws_eip",
    "VpcEndpoints": "aws_vpc_endpoint",
    "VpcPeeringConnections": "aws_vpc_peering_connection",
    "LaunchTemplates": "aws_launch_template",
    "PlacementGroups": "aws_placement_group",
    "KeyPairs": "aws_key_pair",
    "InternetGateways": "aws_internet_gateway",
    "RouteTables": "aws_route_table",
    "Subnets": "aws_subnet",
    "SecurityGroups": "aws_security_group",
    "SecurityGroupRules": "aws_vpc_security_group_ingress_rule",
    "Vpcs": "aws_vpc",
}
# The parameter that names what is deleted.
_DELETIONS = {
    "DeleteVolume": ("aws_ebs_volume", "VolumeId"),
    "DeleteNatGateway": ("aws_nat_gateway", "NatGatewayId"),
    "ReleaseAddress": ("aws_eip", "AllocationId"),
    "DeleteVpcEndpoints": ("aws_vpc_endpoint", "VpcEndpointId.1"),
    "DeleteVpcPeeringConnection": ("aws_vpc_peering_connection", "VpcPeeringConnectionId"),
    "DeleteLaunchTemplate": ("aws_launch_template", "LaunchTemplateId"),
    "DeletePlacementGroup": ("aws_placement_group", "GroupName"),
    "DeleteKeyPair": ("aws_key_pair", "KeyName"),
    "DeleteInternetGateway": ("aws_internet_gateway", "InternetGatewayId"),
    "DeleteRouteTable": ("aws_route_table", "RouteTableId"),
    "DeleteSubnet": ("aws_subnet", "SubnetId"),
    "DeleteSecurityGroup": ("aws_security_group", "GroupId"),
    "DeleteVpc": ("aws_vpc", "VpcId"),
}
_STAND_IN = {
    "aws_subnet": ("aws_instance",),
    "aws_security_group": ("aws_instance",),
    "aws_placement_group": ("aws_instance",),
    "aws_route_table": ("aws_route_table_association",),
    "aws_vpc": ("aws_subnet", "aws_security_group", "aws_internet_gateway", "aws_route_table"),
}
# What goes together with what it belongs to.
_PARTS = {
    "aws_route_table": ("aws_route",),
    "aws_security_group": ("aws_vpc_security_group_ingress_rule", "aws_vpc_security_group_egress_rule"),
}
_SETS = {
    "Instances": "reservationSet",
    "Volumes": "volumeSet",
    "NatGateways": "natGatewaySet",
    "Addresses": "addressesSet",
    "VpcEndpoints": "vpcEndpointSet",
    "VpcPeeringConnections": "vpcPeeringConnectionSet",
    "LaunchTemplates": "launchTemplates",
    "PlacementGroups": "placementGroupSet",
    "KeyPairs": "keySet",
    "InternetGateways": "internetGatewaySet",
    "RouteTables": "routeTableSet",
    "Subnets": "subnetSet",
    "SecurityGroups": "securityGroupInfo",
    "SecurityGroupRules": "securityGroupRuleSet",
    "Vpcs": "vpcSet",
}
_NAMES = {
    "aws_instance": "instanceId",
    "aws_ebs_volume": "volumeId",
    "aws_nat_gateway": "natGatewayId",
    "aws_eip": "allocationId",
    "aws_vpc_endpoint": "vpcEndpointId",
    "aws_vpc_peering_connection": "vpcPeeringConnectionId",
    "aws_launch_template": "launchTemplateId",
    "aws_placement_group": "groupName",
    "aws_key_pair": "keyName",
    "aws_internet_gateway": "internetGatewayId",
    "aws_route_table": "routeTableId",
    "aws_subnet": "subnetId",
    "aws_security_group": "groupId",
    "aws_vpc_security_group_ingress_rule": "securityGroupRuleId",
    "aws_vpc_security_group_egress_rule": "securityGroupRuleId",
    "aws_vpc": "vpcId",
}


@contextmanager
def serve_ec2(cloud: FakeCloud, *, refused: bool = False) -> Iterator[dict[str, str]]:
    """Serve the API; yields the environment that makes boto3 use it. `refused`: nobody may do anything."""

    def answer(ask: Ask) -> Answer:
        if refused:
            return _error("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
        found = _REGION.search(ask.headers.get("Authorization", ""))
        parameters = dict(parse_qsl(ask.body.decode()))
        try:
            return _Ec2(cloud, found[1] if found else "").answer(parameters)
        except CloudError as error:
            return _error(*_coded(str(error)))

    with serving(answer) as url:
        yield {
            "AWS_ENDPOINT_URL_EC2": url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class _Ec2:
    """One call in one region."""

    def __init__(self, cloud: FakeCloud, region: str) -> None:
        self._cloud = cloud
        self._region = region

    def answer(self, parameters: Mapping[str, str]) -> Answer:
        action = parameters["Action"]
        if action.startswith("Describe") and action.removeprefix("Describe") in _KINDS:
            return self._describe(action, parameters)
        if action in _DELETIONS:
            kind, key = _DELETIONS[action]
            return self._delete(action, kind, parameters[key])
        others: dict[str, Callable[[Mapping[str, str]], Answer]] = {
            "TerminateInstances": self._terminate,
            "GetConsoleOutput": self._console,
            "DetachInternetGateway": lambda _: _done("DetachInternetGateway", "<return>true</return>"),
            "DisassociateRouteTable": self._disassociate,
        }
        if action not in others:
            return _error("InvalidAction", f"The action {action} is not valid for this web service.")
        return others[action](parameters)

    def _known(self, kind: str) -> dict[str, dict[str, Any]]:
        return {name: s for name, s in self._cloud.of_type(kind).items() if s["region"] == self._region}

    def _describe(self, action: str, parameters: Mapping[str, str]) -> Answer:
        what = action.removeprefix("Describe")
        kinds = [_KINDS[what]]
        if what == "SecurityGroupRules":
            kinds.append("aws_vpc_security_group_egress_rule")
        wanted = set(_numbered(parameters, _asked_by(what)))
        items = []
        for kind in kinds:
            for name, state in self._known(kind).items():
                if (not wanted or name in wanted) and _fits(state, parameters):
                    items.append(self._shown(kind, name, state))
        unknown = wanted - {name for kind in kinds for name in self._known(kind)}
        if what == "Instances":
            # A terminated instance stays listed for a while.
            items += [_terminated(name) for name in sorted(unknown) if self._was(name)]
            unknown = {name for name in unknown if not self._was(name)}
            items = [f"<reservationId>r-1</reservationId><instancesSet><item>{i}</item></instancesSet>" for i in items]
        if unknown:
            return _error(f"Invalid{what[:-1]}ID.NotFound", f"The {what} {sorted(unknown)} do not exist")
        listed = "".join(f"<item>{item}</item>" for item in items)
        return _done(action, f"<{_SETS[what]}>{listed}</{_SETS[what]}>")

    def _was(self, name: str) -> bool:
        return any(key == ("aws_instance", name) for _, *rest in self._cloud.history if (key := tuple(rest)))

    def _shown(self, kind: str, name: str, state: Mapping[str, Any]) -> str:
        tags = state.get("tags") or {}
        told = _tag(_NAMES[kind], name)
        tag_set = "".join(f"<item>{_tag('key', key)}{_tag('value', value)}</item>" for key, value in tags.items())
        told += f"<tagSet>{tag_set}</tagSet>"
        if kind == "aws_instance":
            subnet = self._cloud.of_type("aws_subnet").get(state["subnet_id"], {})
            told += (
                "<instanceState><code>16</code><name>running</name></instanceState>"
                f"{_tag('instanceType', state['instance_type'])}{_tag('ipAddress', state.get('public_ip') or '')}"
                f"{_tag('privateIpAddress', state.get('private_ip') or '')}"
                f"<placement>{_tag('availabilityZone', subnet.get('availability_zone_id', ''))}</placement>"
            )
        if kind == "aws_internet_gateway":
            told += f"<attachmentSet><item>{_tag('vpcId', state['vpc_id'])}</item></attachmentSet>"
        if kind == "aws_route_table":
            told += self._routes(name)
        return told

    def _routes(self, table: str) -> str:
        joined = self._known("aws_route_table_association").items()
        associations = "".join(
            f"<item>{_tag('routeTableAssociationId', name)}{_tag('subnetId', state['subnet_id'])}"
            "<main>false</main></item>"
            for name, state in joined
            if state["route_table_id"] == table
        )
        routes = "".join(
            f"<item>{_tag('destinationCidrBlock', state['destination_cidr_block'])}</item>"
            for state in self._known("aws_route").values()
            if state["route_table_id"] == table
        )
        return f"<associationSet>{associations}</associationSet><routeSet>{routes}</routeSet>"

    def _delete(self, action: str, kind: str, name: str) -> Answer:
        if name not in self._known(kind):
            # EC2 says nothing of a key pair that is not there.
            code = "InvalidPlacementGroup.Unknown" if "placement" in kind else f"Invalid{_NAMES[kind]}.NotFound"
            known = kind == "aws_key_pair"
            return _done(action, "<return>true</return>") if known else _error(code, f"{name} does not exist")
        for inner in _STAND_IN.get(kind, ()):
            if any(name in str(state) for state in self._known(inner).values()):
                return _error("DependencyViolation", f"{name} has dependencies and cannot be deleted.")
        for part in _PARTS.get(kind, ()):
            for below, state in self._known(part).items():
                if name in str(state):
                    self._cloud.delete(part, below)
        self._cloud.delete(kind, name)
        return _done(action, "<return>true</return>")

    def _terminate(self, parameters: Mapping[str, str]) -> Answer:
        for name in _numbered(parameters, "InstanceId"):
            self._cloud.delete("aws_instance", name)
        return _done("TerminateInstances", "<instancesSet/>")

    def _disassociate(self, parameters: Mapping[str, str]) -> Answer:
        self._cloud.delete("aws_route_table_association", parameters["AssociationId"])
        return _done("DisassociateRouteTable", "<return>true</return>")

    def _console(self, parameters: Mapping[str, str]) -> Answer:
        """What cloud-init prints at the first boot."""
        state = self._known("aws_instance").get(parameters["InstanceId"])
        if state is None:
            return _error("InvalidInstanceID.NotFound", f"{parameters['InstanceId']} does not exist")
        key = state["host_public_key"]
        text = f"-----BEGIN SSH HOST KEY KEYS-----\r\n{key} root@host\r\n-----END SSH HOST KEY KEYS-----\r\n"
        return _done("GetConsoleOutput", _tag("output", base64.b64encode(text.encode()).decode()))


def _asked_by(what: str) -> str:
    return "GroupId" if what == "SecurityGroups" else f"{what[:-1]}Id"


def _numbered(parameters: Mapping[str, str], name: str) -> list[str]:
    return [value for key, value in parameters.items() if re.fullmatch(rf"{name}\.\d+", key)]


def _fits(state: Mapping[str, Any], parameters: Mapping[str, str]) -> bool:
    tags = state.get("tags") or {}
    for key, name in parameters.items():
        match = re.fullmatch(r"Filter\.(\d+)\.Name", key)
        if match is None:
            continue
        values = _numbered(parameters, rf"Filter\.{match[1]}\.Value")
        if name == "tag-key" and not set(values) & set(tags):
            return False
        if name.startswith("tag:") and tags.get(name.removeprefix("tag:")) not in values:
            return False
    return True


def _terminated(name: str) -> str:
    return f"{_tag('instanceId', name)}<instanceState><code>48</code><name>terminated</name></instanceState>"


def _coded(text: str) -> tuple[str, str]:
    found = re.search(r"api error ([\w.]+): (.*)", text, re.S)
    return (found[1], found[2]) if found else ("InternalError", text)


def _tag(name: str, text: object) -> str:
    return f"<{name}>{escape(str(text))}</{name}>"


def _done(action: str, inner: str) -> Answer:
    space = "http://ec2.amazonaws.com/doc/2016-11-15/"
    body = f'<{action}Response xmlns="{space}"><requestId>r</requestId>{inner}</{action}Response>'
    return Answer(status=200, body=body.encode(), kind="text/xml")


def _error(code: str, message: str, status: int = 400) -> Answer:
    inner = f"<Errors><Error>{_tag('Code', code)}{_tag('Message', message)}</Error></Errors>"
    return Answer(status=status, body=f"<Response>{inner}<RequestID>r</RequestID></Response>".encode(), kind="text/xml")
