"""The policies in docs/permissions against what Terraform makes: everything that is needed, and nothing beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import yaml

from factories.commands import ROOT
from sailor_cloud.run.folder import resource_prefix

PERMISSIONS = ROOT / "docs" / "permissions"


def ec2(*actions: str) -> set[str]:
    return {f"ec2:{action}" for action in actions}


# What creating, reading, tagging and deleting each resource asks of AWS (docs.aws.amazon.com/service-authorization, and
# the calls that hashicorp/aws 5.100 makes).
AWS_ACTIONS = {
    "aws_eip": ec2(
        *("AllocateAddress", "AssociateAddress", "DescribeAddresses", "DescribeAddressesAttribute"),
        *("DisassociateAddress", "ReleaseAddress", "DescribeNetworkInterfaces"),
    ),
    "aws_iam_instance_profile": {
        "iam:AddRoleToInstanceProfile",
        "iam:CreateInstanceProfile",
        "iam:DeleteInstanceProfile",
        "iam:GetInstanceProfile",
        "iam:RemoveRoleFromInstanceProfile",
        "iam:TagInstanceProfile",
        "iam:PassRole",
    },
    "aws_iam_role": {
        "iam:CreateRole",
        "iam:DeleteRole",
        "iam:GetRole",
        "iam:ListAttachedRolePolicies",
        "iam:ListInstanceProfilesForRole",
        "iam:ListRolePolicies",
        "iam:TagRole",
    },
    "aws_iam_role_policy": {"iam:DeleteRolePolicy", "iam:GetRolePolicy", "iam:PutRolePolicy"},
    "aws_instance": {
        *ec2("RunInstances", "RequestSpotInstances", "TerminateInstances", "ModifyInstanceAttribute", "CreateTags"),
        *ec2("DescribeInstances", "DescribeInstanceAttribute", "DescribeInstanceCreditSpecifications"),
        *ec2("DescribeInstanceTypes", "DescribeImages", "DescribeVolumes", "DescribeTags"),
        *ec2("DescribeSpotInstanceRequests", "CancelSpotInstanceRequests"),
    },
    "aws_internet_gateway": ec2(
        *("CreateInternetGateway", "AttachInternetGateway", "DescribeInternetGateways"),
        *("DetachInternetGateway", "DeleteInternetGateway"),
    ),
    "aws_key_pair": ec2("ImportKeyPair", "DescribeKeyPairs", "DeleteKeyPair"),
    "aws_launch_template": ec2(
        *("CreateLaunchTemplate", "DescribeLaunchTemplates", "DescribeLaunchTemplateVersions"), "DeleteLaunchTemplate"
    ),
    "aws_nat_gateway": ec2("CreateNatGateway", "DescribeNatGateways", "DeleteNatGateway"),
    "aws_cloudwatch_log_group": {
        *("logs:CreateLogGroup", "logs:DeleteLogGroup", "logs:DescribeLogGroups", "logs:ListTagsForResource"),
        *("logs:PutRetentionPolicy", "logs:TagResource"),
    },
    "aws_lambda_function": {
        *("lambda:CreateFunction", "lambda:DeleteFunction", "lambda:GetFunction", "lambda:TagResource"),
        *("lambda:GetFunctionCodeSigningConfig", "lambda:ListVersionsByFunction", "iam:PassRole"),
    },
    "aws_placement_group": ec2("CreatePlacementGroup", "DescribePlacementGroups", "DeletePlacementGroup"),
    "aws_route": ec2("CreateRoute", "DeleteRoute", "DescribeRouteTables"),
    "aws_route_table": ec2("CreateRouteTable", "DescribeRouteTables", "DeleteRouteTable"),
    "aws_route_table_association": ec2("AssociateRouteTable", "DisassociateRouteTable", "DescribeRouteTables"),
    "aws_s3_bucket": {
        *("s3:CreateBucket", "s3:DeleteBucket", "s3:ListBucket", "s3:ListBucketVersions", "s3:GetBucketLocation"),
        *("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:GetBucketTagging", "s3:PutBucketTagging"),
        *("s3:GetAccelerateConfiguration", "s3:GetBucketAcl", "s3:GetBucketCORS", "s3:GetBucketLogging"),
        *("s3:GetBucketObjectLockConfiguration", "s3:GetBucketPolicy", "s3:GetBucketRequestPayment"),
        *("s3:GetBucketVersioning", "s3:GetBucketWebsite", "s3:GetEncryptionConfiguration"),
        *("s3:GetLifecycleConfiguration", "s3:GetReplicationConfiguration"),
    },
    "aws_s3_bucket_lifecycle_configuration": {"s3:GetLifecycleConfiguration", "s3:PutLifecycleConfiguration"},
    "aws_s3_bucket_public_access_block": {"s3:GetBucketPublicAccessBlock", "s3:PutBucketPublicAccessBlock"},
    "aws_scheduler_schedule": {
        *("scheduler:CreateSchedule", "scheduler:DeleteSchedule", "scheduler:GetSchedule", "scheduler:UpdateSchedule"),
        "iam:PassRole",
    },
    "aws_scheduler_schedule_group": {
        *("scheduler:CreateScheduleGroup", "scheduler:DeleteScheduleGroup", "scheduler:GetScheduleGroup"),
        *("scheduler:TagResource", "scheduler:ListTagsForResource"),
    },
    "aws_security_group": ec2("CreateSecurityGroup", "DescribeSecurityGroups", "DeleteSecurityGroup"),
    "aws_subnet": ec2("CreateSubnet", "DescribeSubnets", "ModifySubnetAttribute", "DeleteSubnet"),
    "aws_vpc": ec2("CreateVpc", "DescribeVpcs", "DescribeVpcAttribute", "ModifyVpcAttribute", "DeleteVpc"),
    "aws_vpc_endpoint": ec2("CreateVpcEndpoint", "DescribeVpcEndpoints", "DescribePrefixLists", "DeleteVpcEndpoints"),
    "aws_vpc_peering_connection": ec2(
        "CreateVpcPeeringConnection", "DescribeVpcPeeringConnections", "DeleteVpcPeeringConnection"
    ),
    "aws_vpc_peering_connection_accepter": ec2("AcceptVpcPeeringConnection", "DescribeVpcPeeringConnections"),
    "aws_vpc_security_group_egress_rule": ec2(
        "AuthorizeSecurityGroupEgress", "DescribeSecurityGroupRules", "RevokeSecurityGroupEgress"
    ),
    "aws_vpc_security_group_ingress_rule": ec2(
        "AuthorizeSecurityGroupIngress", "DescribeSecurityGroupRules", "RevokeSecurityGroupIngress"
    ),
}
# What the program asks for without Terraform.
AWS_BESIDE = {
    "sweep": ec2("DeleteVolume"),
    "reap": {
        "iam:ListInstanceProfiles",
        "iam:ListRoles",
        "lambda:ListFunctions",
        "s3:ListAllMyBuckets",
        "scheduler:ListScheduleGroups",
    },
    "host keys": ec2("GetConsoleOutput"),
    "images": {"ssm:GetParameter"},
    "results": {"s3:GetObject"},
    "tunnel": {*(f"ssm:{verb}Session" for verb in ("Resume", "Start", "Terminate")), "ssmmessages:OpenDataChannel"},
    "prices and quotas": {
        *ec2("DescribeAvailabilityZones", "DescribeInstanceTypeOfferings", "DescribeRegions"),
        *ec2("DescribeSpotPriceHistory"),
        "pricing:GetProducts",
        "servicequotas:GetServiceQuota",
    },
}


def compute(collection: str, *verbs: str) -> set[str]:
    return {f"compute.{collection}.{verb}" for verb in verbs}


LIFE = ("create", "get", "list", "delete")
GCP_PERMISSIONS = {
    "google_cloud_scheduler_job": {f"cloudscheduler.jobs.{verb}" for verb in ("create", "get", "delete")},
    "google_cloudfunctions2_function": {
        *(f"cloudfunctions.functions.{verb}" for verb in LIFE),
        *("cloudfunctions.operations.get", "iam.serviceAccounts.actAs"),
    },
    "google_project_iam_custom_role": {f"iam.roles.{verb}" for verb in ("create", "get", "delete", "undelete")},
    "google_project_iam_member": {f"resourcemanager.projects.{verb}IamPolicy" for verb in ("get", "set")},
    "google_compute_firewall": compute("firewalls", *LIFE, "update") | compute("networks", "updatePolicy"),
    "google_compute_instance": {
        *compute("instances", *LIFE, "setLabels", "setMetadata", "setServiceAccount", "setTags"),
        *compute("disks", "create", "delete", "list", "setLabels"),
        *compute("images", "getFromFamily", "useReadOnly"),
        *compute("subnetworks", "use", "useExternalIp"),
        *compute("resourcePolicies", "use"),
        *compute("machineTypes", "get"),
        *compute("zones", "get"),
        *compute("zoneOperations", "get"),
        "iam.serviceAccounts.actAs",
    },
    "google_compute_network": compute("networks", *LIFE) | compute("globalOperations", "get"),
    "google_compute_resource_policy": compute("resourcePolicies", *LIFE) | compute("regionOperations", "get"),
    "google_compute_router": compute("routers", *LIFE) | compute("regionOperations", "get"),
    "google_compute_router_nat": compute("routers", "get", "update"),
    "google_compute_subnetwork": compute("subnetworks", *LIFE) | compute("regionOperations", "get"),
    "google_service_account": {f"iam.serviceAccounts.{verb}" for verb in LIFE},
    "google_storage_bucket": {
        *(f"storage.buckets.{verb}" for verb in LIFE),
        *("storage.objects.list", "storage.objects.delete"),
    },
    "google_storage_bucket_object": {f"storage.objects.{verb}" for verb in ("create", "get", "delete")},
    "google_storage_bucket_iam_member": {"storage.buckets.getIamPolicy", "storage.buckets.setIamPolicy"},
}
GCP_BESIDE = {
    "host keys": compute("instances", "getGuestAttributes"),
    "results": {"storage.objects.get"},
    "tunnel": {"iap.tunnelInstances.accessViaIAP"},
    "prices and quotas": {
        *compute("acceleratorTypes", "list"),
        *compute("machineTypes", "list"),
        *compute("projects", "get"),
        *compute("regions", "get"),
        *compute("zones", "list"),
    },
}


def made_by_terraform(provider: str) -> set[str]:
    text = "".join(path.read_text() for path in (ROOT / "terraform").rglob("*.tf"))
    return set(re.findall(rf'^resource "({provider}_[a-z0-9_]+)"', text, re.MULTILINE))


def statements() -> Iterator[dict[str, Any]]:
    yield from json.loads((PERMISSIONS / "aws-policy.json").read_text())["Statement"]


def test_the_aws_policy_allows_what_terraform_and_the_program_need_and_nothing_else() -> None:
    assert made_by_terraform("aws") == set(AWS_ACTIONS)
    allowed = {action for statement in statements() for action in statement["Action"]}
    assert allowed == set().union(*AWS_ACTIONS.values(), *AWS_BESIDE.values())
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


def test_the_gcp_role_allows_what_terraform_and_the_program_need_and_nothing_else() -> None:
    role = yaml.safe_load((PERMISSIONS / "gcp-role.yaml").read_text())
    allowed = role["includedPermissions"]
    assert allowed == sorted(set(allowed))
    assert made_by_terraform("google") == set(GCP_PERMISSIONS)
    assert set(allowed) == set().union(*GCP_PERMISSIONS.values(), *GCP_BESIDE.values())
