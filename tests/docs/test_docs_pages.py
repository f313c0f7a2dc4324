from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from factories.commands import ROOT

DOCS = ROOT / "docs"

# What creating, reading and deleting a resource of Terraform's needs in its cloud.
AWS_ACTIONS = {
    "aws_instance": ("RunInstances", "DescribeInstances", "TerminateInstances", "CreateTags"),
    "aws_internet_gateway": ("CreateInternetGateway", "AttachInternetGateway", "DeleteInternetGateway"),
    "aws_key_pair": ("ImportKeyPair", "DescribeKeyPairs", "DeleteKeyPair"),
    "aws_placement_group": ("CreatePlacementGroup", "DescribePlacementGroups", "DeletePlacementGroup"),
    "aws_route": ("CreateRoute", "DeleteRoute"),
    "aws_route_table": ("CreateRouteTable", "DescribeRouteTables", "DeleteRouteTable"),
    "aws_route_table_association": ("AssociateRouteTable", "DisassociateRouteTable"),
    "aws_security_group": ("CreateSecurityGroup", "DescribeSecurityGroups", "DeleteSecurityGroup"),
    "aws_subnet": ("CreateSubnet", "DescribeSubnets", "DeleteSubnet", "ModifySubnetAttribute"),
    "aws_vpc": ("CreateVpc", "DescribeVpcs", "DeleteVpc", "ModifyVpcAttribute"),
    "aws_vpc_security_group_egress_rule": ("AuthorizeSecurityGroupEgress", "RevokeSecurityGroupEgress"),
    "aws_vpc_security_group_ingress_rule": ("AuthorizeSecurityGroupIngress", "RevokeSecurityGroupIngress"),
}
GCP_COLLECTIONS = {
    "google_compute_firewall": "firewalls",
    "google_compute_instance": "instances",
    "google_compute_network": "networks",
    "google_compute_resource_policy": "resourcePolicies",
    "google_compute_subnetwork": "subnetworks",
}


def resources(provider: str) -> set[str]:
    module = ROOT / "terraform" / "modules" / f"{provider}-cluster"
    text = "".join(path.read_text() for path in module.glob("*.tf"))
    return set(re.findall(r'^resource "([a-z0-9_]+)"', text, re.MULTILINE))


def aws_policy() -> list[dict[str, object]]:
    policy = json.loads((DOCS / "permissions" / "aws-policy.json").read_text())
    statements: list[dict[str, object]] = policy["Statement"]
    return statements


def test_the_aws_policy_covers_every_resource_that_terraform_makes() -> None:
    allowed = {str(action) for statement in aws_policy() for action in statement["Action"]}  # type: ignore[attr-defined]
    made = resources("aws")
    assert made - {"aws_scheduler_schedule"} == set(AWS_ACTIONS)
    needed = {f"ec2:{action}" for actions in AWS_ACTIONS.values() for action in actions}
    assert needed <= allowed
    assert {"scheduler:CreateSchedule", "scheduler:DeleteSchedule", "iam:PassRole"} <= allowed
    assert not [action for action in allowed if "*" in action]


def test_aws_may_delete_only_what_the_run_has_tagged() -> None:
    for statement in aws_policy():
        deletes = [action for action in statement["Action"] if re.search(":(Delete|Terminate)", str(action))]  # type: ignore[attr-defined]
        if deletes and not str(statement["Resource"]).startswith("arn:aws:scheduler"):
            assert statement["Condition"] == {"Null": {"aws:ResourceTag/sailor-cloud-run": "false"}}


def test_the_gcp_role_covers_every_resource_that_terraform_makes() -> None:
    role = yaml.safe_load((DOCS / "permissions" / "gcp-role.yaml").read_text())
    allowed = role["includedPermissions"]
    assert allowed == sorted(set(allowed))
    assert resources("gcp") == set(GCP_COLLECTIONS)
    for collection in GCP_COLLECTIONS.values():
        assert {f"compute.{collection}.{verb}" for verb in ("create", "get", "delete")} <= set(allowed)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("material", reason="mkdocs-material is not installed: pip install 'sailor-cloud[docs]'")
    answer = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "NO_MKDOCS_2_WARNING": "1", "DISABLE_MKDOCS_2_WARNING": "true"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "index.html").exists()
    assert (tmp_path / "schemas" / "job-v1.schema.json").exists()


def test_every_page_is_in_the_navigation() -> None:
    listed = re.findall(r"[\w-]+\.md", (ROOT / "mkdocs.yml").read_text())
    assert set(listed) == {path.name for path in DOCS.glob("*.md")}
