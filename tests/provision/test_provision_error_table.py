"""The providers' errors, told apart by their own codes; the texts are those that users of Terraform reported."""

from __future__ import annotations

import pytest

from sailor_cloud.errors import CredentialsError, ProvisionError, QuotaError, StockoutError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.error_table import RULES, Cause, Fault, classify, error_of, gravest
from sailor_cloud.provision.terraform_driver import Diagnostic

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
GPU_QUOTA = (
    "Error waiting for instance to create: Quota 'NVIDIA_A100_GPUS' exceeded.  Limit: 8.0 in region us-central1."
)
STOCKOUT = (
    "Error waiting for instance to create: The zone 'projects/p/zones/us-central1-a' does not have enough resources "
    "available to fulfill the request.  Try a different zone, or try again later."
)


def fault(provider: Provider, text: str) -> Fault:
    return classify(provider, Diagnostic(summary=text, detail="", address="google_compute_instance.node"))


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (STOCKOUT, Cause.STOCKOUT),
        ("code: ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS", Cause.STOCKOUT),
        ("A a2-highgpu-1g VM instance is currently unavailable in the us-central1-a zone.", Cause.STOCKOUT),
        (GPU_QUOTA, Cause.QUOTA),
        ("googleapi: Error 403: quota, quotaExceeded", Cause.QUOTA),
        ("googleapi: Error 403: Rate Limit Exceeded, rateLimitExceeded", Cause.THROTTLED),
        ("google: could not find default credentials. See https://developers.google.com", Cause.CREDENTIALS),
        ("googleapi: Error 403: Required 'compute.instances.create' permission for 'projects/p'", Cause.CREDENTIALS),
        ("googleapi: Error 401: Request had invalid authentication credentials.", Cause.CREDENTIALS),
        ("googleapi: Error 409: The resource 'projects/p/x' already exists, alreadyExists", Cause.EXISTS),
        ("googleapi: Error 503: Backend Error, backendError", Cause.SERVER),
        ("googleapi: Error 400: Invalid value for field 'resource.machineType'", Cause.OTHER),
    ],
)
def test_errors_of_google_cloud_are_told_apart(text: str, cause: Cause) -> None:
    assert fault(Provider.GCP, text).cause is cause


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (NO_CAPACITY, Cause.STOCKOUT),
        (
            "api error Unsupported: Your requested instance type (p5.48xlarge) is not supported in zone x",
            Cause.STOCKOUT,
        ),
        ("api error SpotMaxPriceTooLow: Your Spot request price of 1.5 is lower than required", Cause.STOCKOUT),
        (VCPU, Cause.QUOTA),
        ("api error MaxSpotInstanceCountExceeded: Max spot instance count exceeded", Cause.QUOTA),
        ("api error VpcLimitExceeded: The maximum number of VPCs has been reached.", Cause.QUOTA),
        ("api error RequestLimitExceeded: Request limit exceeded.", Cause.THROTTLED),
        ("api error AuthFailure: AWS was not able to validate the provided access credentials", Cause.CREDENTIALS),
        ("api error UnauthorizedOperation: You are not authorized to perform this operation.", Cause.CREDENTIALS),
        ("Error: No valid credential sources found", Cause.CREDENTIALS),
        ("api error InvalidKeyPair.Duplicate: The keypair already exists", Cause.EXISTS),
        ("https response error StatusCode: 503, RequestID: r, api error Unavailable: try later", Cause.SERVER),
        ("api error InvalidParameterValue: Value () for parameter groupId is invalid.", Cause.OTHER),
    ],
)
def test_errors_of_aws_are_told_apart(text: str, cause: Cause) -> None:
    assert fault(Provider.AWS, text).cause is cause


def test_only_what_may_pass_is_worth_another_try() -> None:
    texts = {
        "api error RequestLimitExceeded: slow down": True,
        "api error InternalError: sorry": True,
        NO_CAPACITY: False,
        VCPU: False,
    }
    assert {text: fault(Provider.AWS, text).worth_retrying for text in texts} == texts


def test_a_quota_error_names_quota_limit_place_and_the_way_to_more() -> None:
    error = error_of(fault(Provider.GCP, GPU_QUOTA))
    assert isinstance(error, QuotaError)
    assert str(error).startswith(
        "google_compute_instance.node: the quota NVIDIA_A100_GPUS of 8 in us-central1 does not allow the plan; "
        "ask for more at console.cloud.google.com/iam-admin/quotas"
    )
    vcpu = error_of(fault(Provider.AWS, VCPU))
    assert isinstance(vcpu, QuotaError)
    assert "the quota VcpuLimitExceeded of 32 does not allow the plan" in str(vcpu)


def test_each_cause_becomes_its_own_error() -> None:
    stockout = error_of(fault(Provider.AWS, NO_CAPACITY))
    assert isinstance(stockout, StockoutError)
    assert "aws has no capacity now" in str(stockout)
    login = error_of(fault(Provider.GCP, "google: could not find default credentials."))
    assert isinstance(login, CredentialsError)
    assert "gcloud auth application-default login" in str(login)
    other = error_of(fault(Provider.GCP, "something else"))
    assert type(other) is ProvisionError
    assert str(other) == "google_compute_instance.node: something else"


def test_what_stops_everything_comes_before_what_another_zone_would_cure() -> None:
    faults = [fault(Provider.GCP, text) for text in ("something else", STOCKOUT, GPU_QUOTA)]
    assert gravest(faults).cause is Cause.QUOTA
    assert gravest(faults[:2]).cause is Cause.STOCKOUT


def test_every_rule_names_its_source() -> None:
    assert all("/" in rule.source and "." in rule.source for rule in RULES)
