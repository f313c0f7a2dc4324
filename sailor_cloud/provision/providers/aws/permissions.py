"""The permissions that the caller needs on AWS, for Terraform's resources and for the program itself.

`docs/permissions/aws-policy.json` allows exactly this.
"""

from __future__ import annotations

from collections.abc import Mapping, Set


def _ec2(*actions: str) -> set[str]:
    return {f"ec2:{action}" for action in actions}


# Actions to create, read, tag and delete each resource (docs.aws.amazon.com/service-authorization, and the calls that
# hashicorp/aws 5.100 makes).
ACTIONS: Mapping[str, Set[str]] = {
    "aws_eip": _ec2(
        *("AllocateAddress", "AssociateAddress", "DescribeAddresses", "DescribeAddressesAttribute"),
        *("DisassociateAddress", "ReleaseAddress", "DescribeNetworkInterfaces"),
    ),
    "aws_ec2_capacity_block_reservation": _ec2(
        *("DescribeAvailabilityZones", "DescribeCapacityBlockOfferings", "DescribeCapacityReservations"),
        *("PurchaseCapacityBlock", "CreateTags"),
    ),
    "aws_ec2_capacity_reservation": _ec2(
        *("CancelCapacityReservation", "CreateCapacityReservation", "DescribeAvailabilityZones"),
        *("DescribeCapacityReservations", "CreateTags"),
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
        *_ec2("RunInstances", "RequestSpotInstances", "TerminateInstances", "ModifyInstanceAttribute", "CreateTags"),
        *_ec2("DescribeInstances", "DescribeInstanceAttribute", "DescribeInstanceCreditSpecifications"),
        *_ec2("DescribeInstanceTypes", "DescribeImages", "DescribeVolumes", "DescribeTags"),
        *_ec2("DescribeSpotInstanceRequests", "CancelSpotInstanceRequests"),
    },
    "aws_internet_gateway": _ec2(
        *("CreateInternetGateway", "AttachInternetGateway", "DescribeInternetGateways"),
        *("DetachInternetGateway", "DeleteInternetGateway"),
    ),
    "aws_key_pair": _ec2("ImportKeyPair", "DescribeKeyPairs", "DeleteKeyPair"),
    "aws_launch_template": _ec2(
        *("CreateLaunchTemplate", "DescribeLaunchTemplates", "DescribeLaunchTemplateVersions"), "DeleteLaunchTemplate"
    ),
    "aws_nat_gateway": _ec2("CreateNatGateway", "DescribeNatGateways", "DeleteNatGateway"),
    "aws_cloudwatch_log_group": {
        *("logs:CreateLogGroup", "logs:DeleteLogGroup", "logs:DescribeLogGroups", "logs:ListTagsForResource"),
        *("logs:PutRetentionPolicy", "logs:TagResource"),
    },
    "aws_lambda_function": {
        *("lambda:CreateFunction", "lambda:DeleteFunction", "lambda:GetFunction", "lambda:TagResource"),
        *("lambda:GetFunctionCodeSigningConfig", "lambda:ListVersionsByFunction", "iam:PassRole"),
    },
    "aws_placement_group": _ec2("CreatePlacementGroup", "DescribePlacementGroups", "DeletePlacementGroup"),
    "aws_route": _ec2("CreateRoute", "DeleteRoute", "DescribeRouteTables"),
    "aws_route_table": _ec2("CreateRouteTable", "DescribeRouteTables", "DeleteRouteTable"),
    "aws_route_table_association": _ec2("AssociateRouteTable", "DisassociateRouteTable", "DescribeRouteTables"),
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
    "aws_security_group": _ec2("CreateSecurityGroup", "DescribeSecurityGroups", "DeleteSecurityGroup"),
    "aws_subnet": _ec2("CreateSubnet", "DescribeSubnets", "ModifySubnetAttribute", "DeleteSubnet"),
    "aws_vpc": _ec2("CreateVpc", "DescribeVpcs", "DescribeVpcAttribute", "ModifyVpcAttribute", "DeleteVpc"),
    "aws_vpc_endpoint": _ec2("CreateVpcEndpoint", "DescribeVpcEndpoints", "DescribePrefixLists", "DeleteVpcEndpoints"),
    "aws_vpc_peering_connection": _ec2(
        "CreateVpcPeeringConnection", "DescribeVpcPeeringConnections", "DeleteVpcPeeringConnection"
    ),
    "aws_vpc_peering_connection_accepter": _ec2("AcceptVpcPeeringConnection", "DescribeVpcPeeringConnections"),
    "aws_vpc_security_group_egress_rule": _ec2(
        "AuthorizeSecurityGroupEgress", "DescribeSecurityGroupRules", "RevokeSecurityGroupEgress"
    ),
    "aws_vpc_security_group_ingress_rule": _ec2(
        "AuthorizeSecurityGroupIngress", "DescribeSecurityGroupRules", "RevokeSecurityGroupIngress"
    ),
}
# Actions on resources without the run's tag, each with such a resource: aws_instance tags no spot request, and only the
# requester's region has the tags of a peering connection.
UNTAGGED: Mapping[str, str] = {
    "ec2:AcceptVpcPeeringConnection": "vpc-peering-connection/pcx-0",
    "ec2:CancelSpotInstanceRequests": "spot-instances-request/sir-0",
}
# Actions of the program itself, without Terraform.
PROGRAM_ACTIONS: Mapping[str, Set[str]] = {
    "sweep": _ec2(
        *(
            "DeleteVolume",
            "DescribeAddresses",
            "DescribeCapacityReservations",
            "DescribeInstances",
            "DescribeInternetGateways",
            "DescribeKeyPairs",
        ),
        *("DescribeLaunchTemplates", "DescribeNatGateways", "DescribePlacementGroups", "DescribeRouteTables"),
        *("DescribeSecurityGroups", "DescribeSubnets", "DescribeVolumes", "DescribeVpcEndpoints"),
        *("DescribeVpcPeeringConnections", "DescribeVpcs"),
    ),
    # By name, whether or not the run has created them.
    "sweep of other kinds": {
        *("iam:GetInstanceProfile", "iam:GetRole", "lambda:GetFunction", "s3:GetBucketTagging"),
        "scheduler:GetScheduleGroup",
    },
    "reap": {
        "iam:ListInstanceProfiles",
        "iam:ListRoles",
        "lambda:ListFunctions",
        "s3:ListAllMyBuckets",
        "scheduler:ListScheduleGroups",
    },
    "host keys": _ec2("GetConsoleOutput"),
    "images": {"ssm:GetParameter"},
    "results": {"s3:GetObject"},
    "tunnel": {*(f"ssm:{verb}Session" for verb in ("Resume", "Start", "Terminate")), "ssmmessages:OpenDataChannel"},
    "prices and quotas": {
        *_ec2("DescribeAvailabilityZones", "DescribeInstanceTypeOfferings", "DescribeRegions"),
        *_ec2("DescribeCapacityReservations", "DescribeSpotPriceHistory"),
        "pricing:GetProducts",
        "servicequotas:GetServiceQuota",
    },
}
