"""The providers' errors, told apart by their own codes; the texts are those that users of Terraform reported."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest

from factories.cloud_plans import aws_document, gcp_document
from sailor_cloud.errors import CredentialsError, NotSoldError, ProvisionError, QuotaError, StockoutError
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.provision.errors.causes import Cause, Fault, classify, error_of, most_severe
from sailor_cloud.provision.live_resources import Scopes
from sailor_cloud.provision.outcomes import grouped
from sailor_cloud.provision.providers import of
from sailor_cloud.provision.providers.aws import quota as aws_quota
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.provision.terraform.driver import Diagnostic

VCPU = (
    "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 400, RequestID: r, "
    "api error VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of 32 allows for "
    "the instance bucket that the specified instance type belongs to."
)
NO_CAPACITY = (
    "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 500, RequestID: r, "
    "api error InsufficientInstanceCapacity: We currently do not have sufficient p4d.24xlarge capacity in the "
    "Availability Zone you requested (us-east-1a)."
)
VPCS = "creating EC2 VPC: api error VpcLimitExceeded: The maximum number of VPCs has been reached."
GPU_QUOTA = (
    "Error waiting for instance to create: Quota 'NVIDIA_A100_GPUS' exceeded.  Limit: 8.0 in region us-central1."
)
STOCKOUT = (
    "Error waiting for instance to create: The zone 'projects/p/zones/us-central1-a' does not have enough resources "
    "available to fulfill the request.  Try a different zone, or try again later."
)

# What the real hashicorp/google 6.50 and 7.45 said.
INTERNAL = (
    "Error waiting for instance to create: Internal error. Please try again or contact Google Support. "
    "(Code: '5D0B2B1E5F2F6.A1B2C3.D4E5F6')"
)
NOT_SOLD = (
    "Error loading machine type 'a2-highgpu-1g': googleapi: Error 400: Invalid value for field 'resource.machineType': "
    "'projects/p/zones/us-west2-a/machineTypes/a2-highgpu-1g'. Machine type with name 'a2-highgpu-1g' does not exist "
    "in zone 'us-west2-a'., invalid"
)
POLICY = (
    "Error creating instance: googleapi: Error 412: Constraint constraints/compute.vmExternalIpAccess violated for "
    "project 1. Add instance projects/p/zones/us-central1-a/instances/n0 to the constraint to use external IP with it"
    "., conditionNotMet"
)
# What gcloud and the CSI driver report (googleapis, 2023-2026).
LOCATION = (
    "Error creating instance: googleapi: Error 412: Location ZONE:us-east1-b violates constraint "
    "constraints/gcp.resourceLocations on the resource projects/p/zones/us-east1-b/instances/n0., conditionNotMet"
)
SHIELDED = (
    "Constraint constraints/compute.requireShieldedVm violated for project projects/p. Secure Boot is not enabled in "
    "the 'shielded_instance_config' field."
)
IMAGES = (
    "Constraint constraints/compute.trustedImageProjects violated for project p. Use of images from project "
    "deeplearning-platform-release is prohibited."
)


def fault(provider: Provider, text: str) -> Fault:
    return classify(
        provider, of(provider).errors, Diagnostic(summary=text, detail="", address="google_compute_instance.node")
    )


# What users of Terraform were told, by what is behind it; every row of the table decides at least one of them.
TOLD = {
    Provider("gcp"): {
        Cause.STOCKOUT: (
            STOCKOUT,
            "code: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS",
            "A a2-highgpu-1g VM instance is currently unavailable in the us-central1-a zone.",
            "googleapi: Error 503: insufficientCapacity",
        ),
        Cause.QUOTA: (
            GPU_QUOTA,
            "googleapi: Error 403: quota, quotaExceeded",
            "googleapi: Error 429: Maximum number of service accounts on project reached., rateLimitExceeded",
        ),
        Cause.THROTTLED: (
            "googleapi: Error 403: Rate Limit Exceeded, rateLimitExceeded",
            "googleapi: Error 429: Quota exceeded for quota metric 'Queries', RATE_LIMIT_EXCEEDED",
        ),
        Cause.CREDENTIALS: (
            "google: could not find default credentials. See https://developers.google.com",
            "googleapi: Error 403: Required 'compute.instances.create' permission for 'projects/p'",
            "googleapi: Error 403: Permission 'iam.serviceAccounts.create' denied on resource (or it may not exist).",
            "googleapi: Error 403: me@example.org does not have storage.buckets.create access., forbidden",
            "googleapi: Error 403: Compute Engine API has not been used in project 1 before., accessNotConfigured",
            "googleapi: Error 401: Request had invalid authentication credentials.",
            'oauth2: "invalid_grant" "Token has been expired or revoked."',
        ),
        Cause.EXISTS: (
            "googleapi: Error 409: The resource 'projects/p/x' already exists, alreadyExists",
            "googleapi: Error 409: Your previous request to create the named bucket succeeded and you already own it.",
        ),
        Cause.SERVER: (
            "googleapi: Error 503: Backend Error, backendError",
            "googleapi: Error 500: internalError",
            INTERNAL,
            "Error waiting to create function: Error code 3, message: Build failed with status: FAILURE. Could not "
            "build the function due to a missing permission on the build service account.",
        ),
        Cause.POLICY: (POLICY, LOCATION),
        Cause.NOT_SOLD: (NOT_SOLD,),
        Cause.SLOW: (
            "Error waiting for instance to create: timeout while waiting for state to become 'DONE' (last state: "
            "'RUNNING', timeout: 15m0s)",
            'Get "https://compute.googleapis.com/compute/v1/projects/p": net/http: request canceled (Client.Timeout '
            "exceeded while awaiting headers)",
        ),
        Cause.OTHER: ("googleapi: Error 400: Invalid value for field 'resource.machineType'",),
    },
    Provider("aws"): {
        Cause.STOCKOUT: (
            NO_CAPACITY,
            "api error InsufficientVolumeCapacity: not enough capacity to fulfil your EBS volume provision request",
            "api error SpotMaxPriceTooLow: Your Spot request price of 1.5 is lower than required",
            "waiting for EC2 Instance (i-1) create: unexpected state 'shutting-down', wanted target 'running'. last "
            "error: Server.InsufficientInstanceCapacity: There was insufficient capacity to satisfy the launch request",
            "waiting for EC2 Instance (i-1) create: unexpected state 'shutting-down', wanted target 'running'. last "
            "error: Server.SpotInstanceTermination: Spot instance termination",
        ),
        Cause.QUOTA: (
            VCPU,
            "api error MaxSpotInstanceCountExceeded: Max spot instance count exceeded",
            VPCS,
            "api error LimitExceeded: Cannot exceed quota for RolesPerAccount: 1000",
            "api error TooManyBuckets: You have attempted to create more buckets than allowed",
            "ServiceQuotaExceededException: You have reached the number of schedule groups",
        ),
        Cause.THROTTLED: (
            "api error RequestLimitExceeded: Request limit exceeded.",
            "StatusCode: 503, RequestID: r, api error SlowDown: Please reduce your request rate.",
        ),
        Cause.CREDENTIALS: (
            "api error AuthFailure: AWS was not able to validate the provided access credentials",
            "api error UnauthorizedOperation: You are not authorized to perform this operation.",
            "api error AccessDenied: User: arn:aws:iam::1:user/me is not authorized to perform: iam:CreateRole",
            "api error InvalidAccessKeyId: The AWS Access Key Id you provided does not exist in our records.",
            "Error: No valid credential sources found",
        ),
        Cause.EXISTS: ("api error InvalidKeyPair.Duplicate: The keypair already exists",),
        Cause.SERVER: (
            "https response error StatusCode: 503, RequestID: r, api error Unavailable: try later",
            "exceeded maximum number of attempts, 4, https response error StatusCode: 500, api error InternalError: r",
        ),
        Cause.SLOW: (
            "waiting for EC2 Instance (i-1) create: timeout while waiting for state to become 'running' (last state: "
            "'pending', timeout: 15m0s)",
            "operation error EC2: RunInstances, exceeded maximum number of attempts, 4, dial tcp: i/o timeout",
        ),
        Cause.NOT_SOLD: (
            "api error Unsupported: Your requested instance type (p5.48xlarge) is not supported in your requested "
            "Availability Zone (us-east-1e).",
        ),
        Cause.OTHER: ("api error InvalidParameterValue: Value () for parameter groupId is invalid.",),
    },
}


@pytest.mark.parametrize(
    ("provider", "cause", "text"),
    [(provider, cause, text) for provider, told in TOLD.items() for cause, texts in told.items() for text in texts],
)
def test_the_providers_errors_are_distinguished(provider: Provider, cause: Cause, text: str) -> None:
    assert fault(provider, text).cause is cause


def test_every_row_of_the_table_names_its_source_and_classifies_a_known_message() -> None:
    for provider, told in TOLD.items():
        rules = of(provider).errors.rules
        deciding = set()
        only_google = {Cause.POLICY} if provider is Provider("aws") else set()
        assert set(told) == set(Cause) - only_google, "each cause on each cloud"
        for text in (text for texts in told.values() for text in texts):
            deciding.add(next((rule for rule in rules if re.search(rule.pattern, text, re.S)), None))
        assert [rule for rule in rules if rule not in deciding] == []
        assert all("/" in rule.source and "." in rule.source for rule in rules)


def test_a_quota_on_networks_is_not_taken_for_the_one_on_instances() -> None:
    refused = grouped(placed_nodes(aws_document()), {"n0": VPCS})
    told = of(Provider("aws")).quota_numbers(
        fault(Provider("aws"), VPCS), placed_nodes(aws_document()), refused, Scopes()
    )
    assert (told.fault.quota, told.limit, told.usage, told.need) == ("VpcLimitExceeded", None, None, None)


@pytest.mark.parametrize(
    ("quota", "whole"),
    [("SSD_TOTAL_GB", True), ("IN_USE_ADDRESSES", True), ("A2_CPUS", False), ("NVIDIA_A100_GPUS", False)],
)
def test_a_quota_without_gpus_or_cpus_in_its_name_refuses_all_types_of_its_region(quota: str, whole: bool) -> None:
    text = f"Error waiting for instance to create: Quota '{quota}' exceeded.  Limit: 1.0 in region us-central1."
    nodes = placed_nodes(gcp_document())
    told = of("gcp").quota_numbers(fault(Provider("gcp"), text), nodes, grouped(nodes, {"n0": text}), Scopes())
    assert told.whole_region is whole


@pytest.mark.parametrize(
    ("code", "market", "vcpus"),
    [("L-C4BD4855", "spot", 192.0), ("L-7212CCBC", "spot", 96.0), ("L-417A185B", "on-demand", 8.0)],
)
def test_the_use_of_a_quota_counts_its_own_families(
    monkeypatch: pytest.MonkeyPatch, code: str, market: str, vcpus: float
) -> None:
    def instance(name: str, cores: int, **more: str) -> dict[str, object]:
        options = {"CoreCount": cores, "ThreadsPerCore": 2}
        return {"InstanceType": name, "CpuOptions": options, "State": {"Name": "running"}, **more}

    running = [
        instance("p5.48xlarge", 96, InstanceLifecycle="spot"),
        instance("p4d.24xlarge", 48, InstanceLifecycle="spot"),
        instance("p3.2xlarge", 4),
        instance("g5.xlarge", 2),
    ]
    pages = SimpleNamespace(paginate=lambda: [{"Reservations": [{"Instances": running}]}])
    client = SimpleNamespace(get_paginator=lambda name: pages)
    monkeypatch.setattr(aws_quota, "boto_client", lambda region, service="ec2": client)
    assert aws_quota._usage_aws(code, "us-east-1", Market(market)) == vcpus


def test_only_what_may_pass_is_worth_another_try() -> None:
    texts = {
        "api error RequestLimitExceeded: slow down": True,
        "api error InternalError: sorry": True,
        "net/http: TLS handshake timeout": True,
        NO_CAPACITY: False,
        VCPU: False,
    }
    assert {text: fault(Provider("aws"), text).is_retryable for text in texts} == texts


def test_a_quota_error_names_quota_limit_place_and_the_way_to_more() -> None:
    error = error_of(fault(Provider("gcp"), GPU_QUOTA))
    assert isinstance(error, QuotaError)
    assert str(error).startswith(
        "google_compute_instance.node: the quota NVIDIA_A100_GPUS of 8 in us-central1 does not allow the plan; "
        "ask for more at console.cloud.google.com/iam-admin/quotas"
    )
    vcpu = error_of(fault(Provider("aws"), VCPU))
    assert isinstance(vcpu, QuotaError)
    assert "the quota VcpuLimitExceeded of 32 does not allow the plan" in str(vcpu)


def test_each_cause_becomes_its_own_error() -> None:
    stockout = error_of(fault(Provider("aws"), NO_CAPACITY))
    assert isinstance(stockout, StockoutError)
    assert "aws has no capacity now" in str(stockout)
    login = error_of(fault(Provider("gcp"), "google: could not find default credentials."))
    assert isinstance(login, CredentialsError)
    assert "gcloud auth application-default login" in str(login)
    not_sold = error_of(fault(Provider("gcp"), NOT_SOLD))
    assert isinstance(not_sold, NotSoldError)
    assert "gcp does not sell this type in this zone" in str(not_sold)
    other = error_of(fault(Provider("gcp"), "something else"))
    assert type(other) is ProvisionError
    assert str(other) == "google_compute_instance.node: something else"


@pytest.mark.parametrize(
    ("text", "policy", "way_out"),
    [
        (POLICY, "compute.vmExternalIpAccess", "'cloud: {network: private}'"),
        (SHIELDED, "compute.requireShieldedVm", "ask for an exception for the project: nodes run without Secure Boot"),
        (IMAGES, "compute.trustedImageProjects", "an image of an allowed project"),
        (LOCATION, "gcp.resourceLocations", "name regions that it allows"),
        (POLICY.replace("vmExternalIpAccess", "new"), "compute.new", "ask an administrator of the organization"),
    ],
)
def test_a_policy_of_the_organization_is_named_with_the_way_out(text: str, policy: str, way_out: str) -> None:
    told = str(error_of(fault(Provider("gcp"), text)))
    assert f"a policy of your organization, constraints/{policy}, forbids this; " in told
    assert way_out in told


def test_fatal_faults_come_before_those_that_another_zone_would_solve() -> None:
    faults = [fault(Provider("gcp"), text) for text in ("something else", STOCKOUT, GPU_QUOTA)]
    assert most_severe(faults).cause is Cause.QUOTA
    assert most_severe(faults[:2]).cause is Cause.STOCKOUT
