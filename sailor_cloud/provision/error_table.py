"""Tells the providers' errors apart by their own codes: no capacity, no quota, no credentials, or worth another try.

Terraform passes an error of the provider on as text, in which the provider's code stands as a word or a sentence that
the provider documents. The first rule that fits decides, because AWS reports missing capacity as a server error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sailor_cloud.errors import CredentialsError, ProvisionError, QuotaError, StockoutError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.terraform_driver import Diagnostic

_GCE = "cloud.google.com/compute/docs/resource-error"
_GCE_BULK = "cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-vm-creation"
_GCE_QUOTA = "github.com/hashicorp/terraform-provider-google/issues/20573"
_GCE_RIGHTS = "github.com/hashicorp/terraform-provider-google/issues/4825"
_GCE_LOGIN = "developers.google.com/accounts/docs/application-default-credentials"
_GOOGLE_HTTP = "cloud.google.com/apis/design/errors"
_EC2 = "docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"
_AWS_LOGIN = "registry.terraform.io/providers/hashicorp/aws/latest/docs#authentication-and-configuration"


class Cause(StrEnum):
    """What is behind an error, in the order of what matters most when there are several."""

    CREDENTIALS = "credentials"
    QUOTA = "quota"
    STOCKOUT = "stockout"
    THROTTLED = "throttled"
    EXISTS = "exists"
    SERVER = "server"
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A pattern in an error's text and what it means; named groups `quota`, `limit` and `region` are kept."""

    provider: Provider
    cause: Cause
    pattern: str
    source: str


RULES = (
    Rule(
        provider=Provider.GCP,
        cause=Cause.STOCKOUT,
        pattern=r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources available to fulfill the request"
        r"|is currently unavailable in the [\w-]+ zone",
        source=_GCE,
    ),
    Rule(provider=Provider.GCP, cause=Cause.STOCKOUT, pattern=r"\binsufficientCapacity\b", source=_GCE_BULK),
    Rule(
        provider=Provider.GCP,
        cause=Cause.QUOTA,
        pattern=r"Quota '(?P<quota>[\w-]+)' exceeded\."
        r"(?:\s+Limit: (?P<limit>[\d.]+) (?:in region (?P<region>[\w-]+)|globally))?",
        source=_GCE_QUOTA,
    ),
    Rule(provider=Provider.GCP, cause=Cause.QUOTA, pattern=r"\bquotaExceeded\b|\bQUOTA_EXCEEDED\b", source=_GCE_BULK),
    Rule(
        provider=Provider.GCP,
        cause=Cause.THROTTLED,
        pattern=r"\brateLimitExceeded\b|\bRATE_LIMIT_EXCEEDED\b|googleapi: Error 429\b",
        source=_GCE_BULK,
    ),
    Rule(
        provider=Provider.GCP, cause=Cause.CREDENTIALS, pattern=r"could not find default credentials", source=_GCE_LOGIN
    ),
    Rule(provider=Provider.GCP, cause=Cause.CREDENTIALS, pattern=r"Required '[\w.]+' permission", source=_GCE_RIGHTS),
    Rule(
        provider=Provider.GCP,
        cause=Cause.CREDENTIALS,
        pattern=r"googleapi: Error 401\b|\binvalid_grant\b|\bACCESS_TOKEN_\w+",
        source=_GOOGLE_HTTP,
    ),
    Rule(
        provider=Provider.GCP,
        cause=Cause.EXISTS,
        pattern=r"googleapi: Error 409\b.*(?:\balreadyExists\b|you already own it)"
        r"|Unable to create RouterNat, existing object already found",
        source=_GOOGLE_HTTP,
    ),
    Rule(
        provider=Provider.GCP,
        cause=Cause.SERVER,
        pattern=r"googleapi: Error 50[0234]\b|\bbackendError\b|\binternalError\b",
        source=_GOOGLE_HTTP,
    ),
    Rule(
        provider=Provider.AWS,
        cause=Cause.STOCKOUT,
        pattern=r"\b(?:InsufficientInstanceCapacity|InsufficientHostCapacity|InsufficientCapacity|SpotMaxPriceTooLow"
        r"|ReservationCapacityExceeded)\b|\bUnsupported: Your requested instance type",
        source=_EC2,
    ),
    Rule(
        provider=Provider.AWS,
        cause=Cause.THROTTLED,
        pattern=r"\b(?:RequestLimitExceeded|Throttling|ThrottlingException|EC2ThrottledException)\b",
        source=_EC2,
    ),
    Rule(
        provider=Provider.AWS,
        cause=Cause.QUOTA,
        pattern=r"\b(?P<quota>VcpuLimitExceeded)\b.*?current vCPU limit of (?P<limit>\d+)",
        source=_EC2,
    ),
    Rule(
        provider=Provider.AWS,
        cause=Cause.QUOTA,
        pattern=r"\b(?P<quota>MaxSpotInstanceCountExceeded|[A-Z]\w*LimitExceeded)\b",
        source=_EC2,
    ),
    Rule(
        provider=Provider.AWS,
        cause=Cause.CREDENTIALS,
        pattern=r"\b(?:AuthFailure|UnauthorizedOperation|InvalidClientTokenId|ExpiredToken|ExpiredTokenException"
        r"|RequestExpired|OptInRequired)\b",
        source=_EC2,
    ),
    Rule(
        provider=Provider.AWS, cause=Cause.CREDENTIALS, pattern=r"No valid credential sources found", source=_AWS_LOGIN
    ),
    Rule(
        provider=Provider.AWS,
        cause=Cause.EXISTS,
        pattern=r"\bInvalid(?:KeyPair|Group|PlacementGroup|Permission)\.Duplicate\b|\bRouteAlreadyExists\b"
        r"|\bResource\.AlreadyAssociated\b|\bInvalidLaunchTemplateName\.AlreadyExistsException\b"
        r"|\bEntityAlreadyExists\b|\bBucketAlreadyOwnedByYou\b|\bConflictException: .*already exists",
        source=_EC2,
    ),
    Rule(
        provider=Provider.AWS,
        cause=Cause.SERVER,
        pattern=r"\b(?:InternalError|InternalFailure|ServiceUnavailable|Unavailable)\b|StatusCode: 50[0234]\b",
        source=_EC2,
    ),
)
_MORE_QUOTA = {
    Provider.GCP: "console.cloud.google.com/iam-admin/quotas",
    Provider.AWS: "console.aws.amazon.com/servicequotas",
}
# Codes of AWS's own quotas; its errors have other names.
_AWS_QUOTA = re.compile(r"L-[0-9A-F]{8}")
_LOGIN = {
    Provider.GCP: "run 'gcloud auth application-default login' or set GOOGLE_APPLICATION_CREDENTIALS, and let the "
    "account have the role Compute Admin in the project",
    Provider.AWS: "run 'aws sso login' or set AWS_PROFILE, and let the account create EC2 instances and networks",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One error of a provider with what is behind it; `address` is the Terraform resource."""

    provider: Provider
    cause: Cause
    address: str
    text: str
    quota: str = ""
    limit: str = ""
    region: str = ""

    @property
    def worth_retrying(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.cause in (Cause.THROTTLED, Cause.SERVER)


def classify(provider: Provider, diagnostic: Diagnostic) -> Fault:
    """Return what is behind an error of a provider."""
    text = f"{diagnostic.summary} {diagnostic.detail}".strip()
    for rule in RULES:
        found = re.search(rule.pattern, text, re.S) if rule.provider is provider else None
        if found is not None:
            kept = {name: value for name, value in found.groupdict().items() if value}
            return Fault(provider=provider, cause=rule.cause, address=diagnostic.address, text=text, **kept)
    return Fault(provider=provider, cause=Cause.OTHER, address=diagnostic.address, text=text)


def gravest(faults: Sequence[Fault]) -> Fault:
    """Return the fault to act on: what stops everything comes before what another zone would cure."""
    return min(faults, key=lambda fault: list(Cause).index(fault.cause))


def error_of(fault: Fault) -> ProvisionError:
    """Return the error that says what is wrong and what to do about it."""
    where = f"{fault.address}: " if fault.address else ""
    match fault.cause:
        case Cause.STOCKOUT:
            return StockoutError(f"{where}{fault.provider} has no capacity now: {fault.text}")
        case Cause.QUOTA:
            return QuotaError(f"{where}{_quota_text(fault)}; ask for more at {_more(fault)}: {fault.text}")
        case Cause.CREDENTIALS:
            return CredentialsError(
                f"{where}{fault.provider} refused the request; {_LOGIN[fault.provider]}: {fault.text}"
            )
    return ProvisionError(f"{where}{fault.text}")


def _more(fault: Fault) -> str:
    """Return where more of a quota is asked for; the page of that quota, where AWS's code of it is known."""
    place = _MORE_QUOTA[fault.provider]
    if not _AWS_QUOTA.fullmatch(fault.quota):
        return place
    return f"{place}/home/services/ec2/quotas/{fault.quota}?region={fault.region}"


def _quota_text(fault: Fault) -> str:
    name = f"the quota {fault.quota}" if fault.quota else "a quota"
    limit = f" of {float(fault.limit):g}" if fault.limit else ""
    region = f" in {fault.region}" if fault.region else ""
    return f"{name}{limit}{region} does not allow the plan"
