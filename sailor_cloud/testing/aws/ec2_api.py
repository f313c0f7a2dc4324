"""EC2's API to the fake cloud that the stand-in provider fills: describe and delete over HTTP.

boto3 reaches it through AWS_ENDPOINT_URL_EC2. As in EC2, a resource can't be deleted before those inside it.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import parse_qsl
from xml.sax.saxutils import escape

from sailor_cloud.testing.aws.account_api import IAM_ACTIONS, Buckets, Iam, functions, logs, quota, schedules
from sailor_cloud.testing.aws.ec2_tables import DELETIONS, KINDS, NAMES, SETS, STAND_IN
from sailor_cloud.testing.http_api import Answer, Ask, serving
from sailor_cloud.testing.object_store import ObjectStore, serve_objects
from sailor_cloud.testing.terraform.cloud import CloudError, FakeCloud

# Families of types that do not run on Nitro.
_XEN = ("p2.", "p3.", "g3.", "g3s.")
_REGION = re.compile(r"Credential=[^/]+/\d+/([\w-]+)/")


@contextmanager
def serve_ec2(cloud: FakeCloud, *, refused: bool = False, store: ObjectStore | None = None) -> Iterator[dict[str, str]]:
    """Serve the API, with a sweep's calls to IAM, Scheduler and S3; yields the environment that makes boto3 use it.

    `refused`: all calls are denied. `store` holds the objects of buckets, and the caller serves it.
    """

    def answer(ask: Ask) -> Answer:
        if refused:
            return _error("AuthFailure", "AWS was not able to validate the provided access credentials", 401)
        found = _REGION.search(ask.headers.get("Authorization", ""))
        region = found[1] if found else ""
        service, _, action = ask.headers.get("X-Amz-Target", "").partition(".")
        if service.startswith("ServiceQuotas"):
            return quota(cloud, json.loads(ask.body)["QuotaCode"])
        if service.startswith("Logs"):
            return logs(cloud, action, json.loads(ask.body))
        if ask.path.startswith("/2015-03-31/functions"):
            return functions(cloud, region, ask.method, ask.path)
        if ask.path != "/":
            return schedules(cloud, region, ask.method, ask.path)
        parameters = dict(parse_qsl(ask.body.decode()))
        try:
            if parameters["Action"] in IAM_ACTIONS:
                return Iam(cloud).answer(parameters)
            return _Ec2(cloud, region).answer(parameters)
        except CloudError as error:
            return _error(*_coded(str(error)))

    with ExitStack() as stack:
        url = stack.enter_context(serving(answer))
        objects = store or ObjectStore()
        objects.about_buckets = Buckets(cloud, objects)
        s3 = {} if store else {"AWS_ENDPOINT_URL_S3": stack.enter_context(serve_objects(objects))}
        yield {
            **s3,
            "AWS_ENDPOINT_URL_EC2": url,
            "AWS_ENDPOINT_URL_IAM": url,
            "AWS_ENDPOINT_URL_STS": url,
            "AWS_ENDPOINT_URL_SCHEDULER": url,
            "AWS_ENDPOINT_URL_LAMBDA": url,
            "AWS_ENDPOINT_URL_CLOUDWATCH_LOGS": url,
            "AWS_ENDPOINT_URL_SERVICE_QUOTAS": url,
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
        if action.startswith("Describe") and action.removeprefix("Describe") in KINDS:
            return self._describe(action, parameters)
        if action in DELETIONS:
            kind, key = DELETIONS[action]
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
        kinds = [KINDS[what]]
        if what == "SecurityGroupRules":
            kinds.append("aws_vpc_security_group_egress_rule")
        wanted = set(_numbered(parameters, _id_parameter(what)))
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
        return _done(action, f"<{SETS[what]}>{listed}</{SETS[what]}>")

    def _was(self, name: str) -> bool:
        return any(key == ("aws_instance", name) for _, *rest in self._cloud.history if (key := tuple(rest)))

    def _shown(self, kind: str, name: str, state: Mapping[str, Any]) -> str:
        tags = state.get("tags") or {}
        xml = _tag(NAMES[kind], name)
        tag_set = "".join(f"<item>{_tag('key', key)}{_tag('value', value)}</item>" for key, value in tags.items())
        xml += f"<tagSet>{tag_set}</tagSet>"
        if kind == "aws_instance":
            subnet = self._cloud.of_type("aws_subnet").get(state["subnet_id"], {})
            cores = self._cloud.vcpus.get(state["instance_type"], 2) // 2
            market = _tag("instanceLifecycle", "spot") if state.get("instance_market_options") else ""
            code, word = (32, "shutting-down") if self._cloud.shown(kind, name) else (16, "running")
            xml += (
                f"<instanceState>{_tag('code', code)}{_tag('name', word)}</instanceState>"
                f"{_tag('instanceType', state['instance_type'])}{_tag('ipAddress', state.get('public_ip') or '')}"
                f"{_tag('privateIpAddress', state.get('private_ip') or '')}"
                f"<placement>{_tag('availabilityZone', subnet.get('availability_zone_id', ''))}</placement>"
                f"{_tag('vpcId', subnet.get('vpc_id') or '')}"
                f"<networkInterfaceSet>{self._cards(state)}</networkInterfaceSet>"
                f"<cpuOptions>{_tag('coreCount', cores)}{_tag('threadsPerCore', 2)}</cpuOptions>{market}"
            )
        if kind == "aws_launch_template":
            xml += _tag("launchTemplateName", state.get("name") or "")
        if state.get("vpc_id"):
            xml += _tag("vpcId", state["vpc_id"])
        if kind.startswith("aws_vpc_security_group_"):
            egress = "true" if "egress" in kind else "false"
            xml += _tag("isEgress", egress) + _tag("groupId", state["security_group_id"])
            xml += _tag("ipProtocol", state["ip_protocol"])
            if state.get("from_port") is not None:
                xml += _tag("fromPort", state["from_port"]) + _tag("toPort", state["to_port"])
            if state.get("cidr_ipv4"):
                xml += _tag("cidrIpv4", state["cidr_ipv4"])
            if state.get("referenced_security_group_id"):
                other = _tag("groupId", state["referenced_security_group_id"])
                xml += f"<referencedGroupInfo>{other}</referencedGroupInfo>"
        if kind == "aws_internet_gateway":
            xml += f"<attachmentSet><item>{_tag('vpcId', state['vpc_id'])}</item></attachmentSet>"
        if kind == "aws_route_table":
            xml += self._routes(name)
        return xml

    def _cards(self, state: Mapping[str, Any]) -> str:
        used = [template["id"] for template in state.get("launch_template") or []]
        templates = [self._known("aws_launch_template").get(name, {}) for name in used]
        kinds = [card["interface_type"] for template in templates for card in template.get("network_interfaces", [])]
        return "".join(f"<item>{_tag('interfaceType', kind)}</item>" for kind in kinds or ["interface"])

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
            # EC2 reports no error for a missing key pair.
            code = "InvalidPlacementGroup.Unknown" if "placement" in kind else f"Invalid{NAMES[kind]}.NotFound"
            known = kind == "aws_key_pair"
            return _done(action, "<return>true</return>") if known else _error(code, f"{name} does not exist")
        for inner in STAND_IN.get(kind, ()):
            if any(name in str(state) for state in self._known(inner).values()):
                return _error("DependencyViolation", f"{name} has dependencies and cannot be deleted.")
        self._cloud.delete(kind, name)
        return _done(action, "<return>true</return>")

    def _terminate(self, parameters: Mapping[str, str]) -> Answer:
        for name in _numbered(parameters, "InstanceId"):
            self._cloud.begin_deletion("aws_instance", name)
        return _done("TerminateInstances", "<instancesSet/>")

    def _disassociate(self, parameters: Mapping[str, str]) -> Answer:
        self._cloud.delete("aws_route_table_association", parameters["AssociationId"])
        return _done("DisassociateRouteTable", "<return>true</return>")

    def _console(self, parameters: Mapping[str, str]) -> Answer:
        """The output of cloud-init at the first boot."""
        state = self._known("aws_instance").get(parameters["InstanceId"])
        if state is None:
            return _error("InvalidInstanceID.NotFound", f"{parameters['InstanceId']} does not exist")
        latest = parameters.get("Latest") == "true"
        if latest and state["instance_type"].startswith(_XEN):
            return _error("UnsupportedOperation", "This instance type does not support the 'Latest' option.")
        if not latest and not state["instance_type"].startswith(_XEN):
            # Posted at the last change of state, before anything was printed.
            return _done("GetConsoleOutput", _tag("output", ""))
        key = state["host_public_key"]
        text = f"-----BEGIN SSH HOST KEY KEYS-----\r\n{key} root@host\r\n-----END SSH HOST KEY KEYS-----\r\n"
        return _done("GetConsoleOutput", _tag("output", base64.b64encode(text.encode()).decode()))


def _id_parameter(what: str) -> str:
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
        if name == "group-id" and state.get("security_group_id") not in values:
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
