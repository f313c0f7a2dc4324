"""The policies in docs/permissions against what Terraform makes: everything that is needed, and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import yaml

from factories.cloud_plans import aws_document, with_job
from factories.commands import ROOT
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.provision.providers.aws import account
from sailor_cloud.provision.providers.aws.permissions import ACTIONS, PROGRAM_ACTIONS
from sailor_cloud.provision.providers.gcp.permissions import PERMISSIONS as GOOGLE
from sailor_cloud.provision.providers.gcp.permissions import PROGRAM_PERMISSIONS
from sailor_cloud.run.folder import resource_prefix

PERMISSIONS = ROOT / "docs" / "permissions"


def made_by_terraform(provider: str) -> set[str]:
    text = "".join(path.read_text() for path in (ROOT / "terraform").rglob("*.tf"))
    return set(re.findall(rf'^resource "({provider}_[a-z0-9_]+)"', text, re.MULTILINE))


def statements() -> Iterator[dict[str, Any]]:
    yield from json.loads((PERMISSIONS / "aws-policy.json").read_text())["Statement"]


def test_the_aws_policy_allows_what_terraform_and_the_program_need_and_nothing_else() -> None:
    assert made_by_terraform("aws") == set(ACTIONS)
    allowed = {action for statement in statements() for action in statement["Action"]}
    assert allowed == set().union(*ACTIONS.values(), *PROGRAM_ACTIONS.values())
    assert not [action for action in allowed if "*" in action]


def test_on_aws_nothing_can_be_changed_or_deleted_that_is_not_a_runs() -> None:
    bound = {"Null": {"aws:ResourceTag/sailor-cloud-run": "false"}}
    for statement in statements():
        changes = [a for a in statement["Action"] if re.search(":(Delete|Terminate|Release|Modify|Remove|Put)", a)]
        named = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        if changes and "ec2:CreateVpc" not in statement["Action"]:
            own = all(":sc-" in arn or "/sc-" in arn or "session/" in arn for arn in named)
            assert own or statement.get("Condition") == bound, statement["Sid"]


def test_the_names_in_the_aws_policy_are_those_that_runs_get() -> None:
    prefix = resource_prefix("opt-350m-20261121-051313-a1b2")
    arns = [a for s in statements() for a in (s["Resource"] if isinstance(s["Resource"], list) else [s["Resource"]])]
    for name in (
        f"arn:aws:s3:::{prefix}-data/step-10/model.pt",
        f"arn:aws:iam::000000000000:role/{prefix}-node",
        f"arn:aws:iam::000000000000:instance-profile/{prefix}-node",
        f"arn:aws:iam::000000000000:role/{prefix}-watchdog",
        f"arn:aws:lambda:us-east-1:000000000000:function:{prefix}-watchdog",
        f"arn:aws:logs:us-east-1:000000000000:log-group:/aws/lambda/{prefix}-watchdog",
        f"arn:aws:scheduler:us-east-1:000000000000:schedule/{prefix}-watchdog/{prefix}-watchdog",
        f"arn:aws:scheduler:us-east-1:000000000000:schedule-group/{prefix}-watchdog",
    ):
        assert [arn for arn in arns if arn != "*" and fnmatchcase(name, arn)], name


def test_every_role_is_handed_to_those_services_only_that_act_as_it() -> None:
    handed = [statement for statement in statements() if "iam:PassRole" in statement["Action"]]
    services = {s["Resource"].rpartition("-")[2]: s["Condition"]["StringEquals"]["iam:PassedToService"] for s in handed}
    assert services == {
        "node": "ec2.amazonaws.com",
        "watchdog": ["lambda.amazonaws.com", "scheduler.amazonaws.com"],
    }


def allowed_by_policy(action: str, arns: list[str], context: dict[str, str]) -> bool:
    """Whether IAM would allow an action on one of some resources, by as much of its rules as the policy needs."""
    for statement in statements():
        named = statement["Resource"] if isinstance(statement["Resource"], list) else [statement["Resource"]]
        if action not in statement["Action"] or not any(fnmatchcase(a, pattern) for a in arns for pattern in named):
            continue
        conditions = statement.get("Condition", {})
        assert conditions.keys() <= {"Null", "StringEquals"}
        absent = [key for key in conditions.get("Null", {}) if key not in context]
        wrong = [key for key, value in conditions.get("StringEquals", {}).items() if context.get(key) not in value]
        if not absent and not wrong:
            return True
    return False


@pytest.mark.parametrize("without", ["", "aws:ResourceTag/sailor-cloud-run"])
def test_a_caller_with_the_policy_never_lacks_a_permission(without: str) -> None:
    """What `up` asks IAM about, with the resources and the context that it names."""

    def simulated(**asked: Any) -> list[dict[str, Any]]:
        context = {entry["ContextKeyName"]: entry["ContextKeyValues"][0] for entry in asked["ContextEntries"]}
        context.pop(without, None)
        fine = {name: allowed_by_policy(name, asked["ResourceArns"], context) for name in asked["ActionNames"]}
        results = [{"EvalActionName": n, "EvalDecision": "allowed" if f else "implicitDeny"} for n, f in fine.items()]
        return [{"EvaluationResults": results}]

    found = missing_with(simulated)
    assert bool(found) == bool(without)
    if without:
        assert {"ec2:TerminateInstances", "ssm:StartSession"} <= set(found)


TAG = "aws:ResourceTag/sailor-cloud-run"
SPOT_REQUEST = "arn:aws:ec2:us-east-1:123456789012:spot-instances-request/sir-1"
PEERING = "arn:aws:ec2:us-east-1:123456789012:vpc-peering-connection/pcx-1"
VPC = "arn:aws:ec2:us-east-1:123456789012:vpc/vpc-1"


def test_spot_requests_without_a_tag_can_be_cancelled_so_that_terraform_terminates_their_instances() -> None:
    assert allowed_by_policy("ec2:CancelSpotInstanceRequests", [SPOT_REQUEST], {})


def test_peering_from_another_region_can_be_accepted_without_its_tags_into_a_runs_network_only() -> None:
    assert allowed_by_policy("ec2:AcceptVpcPeeringConnection", [PEERING], {})
    assert allowed_by_policy("ec2:AcceptVpcPeeringConnection", [VPC], {TAG: "x"})
    assert not allowed_by_policy("ec2:AcceptVpcPeeringConnection", [VPC], {})


def test_a_policy_that_demands_tags_of_resources_without_tags_lacks_a_permission() -> None:
    def simulated(**asked: Any) -> list[dict[str, Any]]:
        tagged = any(entry["ContextKeyName"] == TAG for entry in asked["ContextEntries"])
        decision = "allowed" if tagged else "implicitDeny"
        return [{"EvaluationResults": [{"EvalActionName": n, "EvalDecision": decision} for n in asked["ActionNames"]]}]

    assert missing_with(simulated) == ("ec2:AcceptVpcPeeringConnection", "ec2:CancelSpotInstanceRequests")


def missing_with(simulated: Callable[..., list[dict[str, Any]]]) -> tuple[str, ...]:
    """What `up` reports as missing when IAM answers so."""
    iam = SimpleNamespace(get_paginator=lambda name: SimpleNamespace(paginate=simulated))
    sts = SimpleNamespace(get_caller_identity=lambda: {"Arn": "arn:aws:iam::123456789012:user/me"})
    document = with_job(aws_document(), network=NetworkAccess.PRIVATE)
    with patch.object(account, "boto_client", lambda region, service: {"sts": sts, "iam": iam}[service]):
        found = account.missing_permissions(document, ACTIONS.keys())
    assert found.unchecked_reason == ""
    return found.names


def test_the_gcp_role_allows_what_terraform_and_the_program_need_and_nothing_else() -> None:
    role = yaml.safe_load((PERMISSIONS / "gcp-role.yaml").read_text())
    allowed = role["includedPermissions"]
    assert allowed == sorted(set(allowed))
    assert made_by_terraform("google") == set(GOOGLE)
    assert set(allowed) == set().union(*GOOGLE.values(), *PROGRAM_PERMISSIONS.values())
