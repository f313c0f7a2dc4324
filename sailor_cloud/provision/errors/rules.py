"""What the providers' own error codes mean: a table with the source of each row, for both clouds.

The first rule that fits decides, because AWS reports missing capacity as a server error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sailor_cloud.model.offer import Provider

_GCE = "cloud.google.com/compute/docs/resource-error"
_GCE_BULK = "cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-vm-creation"
_GCE_QUOTA = "github.com/hashicorp/terraform-provider-google/issues/20573"
_GCE_RIGHTS = "github.com/hashicorp/terraform-provider-google/issues/4825"
_GCE_SERVICE = "github.com/hashicorp/terraform/issues/29006"
_GCE_SLOW = "github.com/hashicorp/terraform-provider-google/issues/8358"
_GCP_RIGHTS = "cloud.google.com/iam/docs/permission-error-messages"
_GCP_ACCOUNTS = "cloud.google.com/iam/quotas"
_GOOGLE_LOGIN = "developers.google.com/accounts/docs/application-default-credentials"
_GOOGLE_HTTP = "cloud.google.com/apis/design/errors"
_EC2 = "docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"
_EC2_STATE = "docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html"
_IAM = "docs.aws.amazon.com/IAM/latest/APIReference/CommonErrors.html"
_S3 = "docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html"
_SCHEDULER = "docs.aws.amazon.com/scheduler/latest/APIReference/API_CreateSchedule.html"
_AWS_LOGIN = "registry.terraform.io/providers/hashicorp/aws/latest/docs#authentication-and-configuration"
_AWS_SLOW = "github.com/hashicorp/terraform-provider-aws/issues/40465"

# How Go's HTTP client and the waiters of Terraform's plugin SDK say that nobody answered in time.
_NO_ANSWER = (
    r"timeout while waiting for state to become|\bcontext deadline exceeded\b|Client\.Timeout exceeded"
    r"|\bi/o timeout\b|TLS handshake timeout|connection reset by peer|\bunexpected EOF\b"
)


class Cause(StrEnum):
    """What is behind an error, in the order of what matters most when there are several."""

    CREDENTIALS = "credentials"
    QUOTA = "quota"
    STOCKOUT = "stockout"
    THROTTLED = "throttled"
    EXISTS = "exists"
    SERVER = "server"
    SLOW = "slow"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern in an error's text and what it means; named groups `quota`, `limit` and `region` are kept."""

    provider: Provider
    cause: Cause
    pattern: str
    source: str


_GCP_RULES = (
    (
        Cause.STOCKOUT,
        r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources available to fulfill the request"
        r"|is currently unavailable in the [\w-]+ zone",
        _GCE,
    ),
    (Cause.STOCKOUT, r"\binsufficientCapacity\b", _GCE_BULK),
    (
        Cause.QUOTA,
        r"Quota '(?P<quota>[\w-]+)' exceeded\."
        r"(?:\s+Limit: (?P<limit>[\d.]+) (?:in region (?P<region>[\w-]+)|globally))?",
        _GCE_QUOTA,
    ),
    (Cause.QUOTA, r"\bquotaExceeded\b|\bQUOTA_EXCEEDED\b", _GCE_BULK),
    (Cause.QUOTA, r"Maximum number of service accounts on project reached", _GCP_ACCOUNTS),
    (
        Cause.THROTTLED,
        r"\brateLimitExceeded\b|\bRATE_LIMIT_EXCEEDED\b|googleapi: Error 429\b",
        _GCE_BULK,
    ),
    (Cause.CREDENTIALS, r"could not find default credentials", _GOOGLE_LOGIN),
    (Cause.CREDENTIALS, r"Required '[\w.]+' permission", _GCE_RIGHTS),
    (Cause.CREDENTIALS, r"Permission '[\w.]+' denied|does not have [\w.]+ access", _GCP_RIGHTS),
    (Cause.CREDENTIALS, r"\baccessNotConfigured\b|\bSERVICE_DISABLED\b", _GCE_SERVICE),
    (
        Cause.CREDENTIALS,
        r"googleapi: Error 401\b|\binvalid_grant\b|\bACCESS_TOKEN_\w+|\bBILLING_DISABLED\b",
        _GOOGLE_HTTP,
    ),
    (
        Cause.EXISTS,
        r"googleapi: Error 409\b.*(?:\balreadyExists\b|you already own it)"
        r"|Unable to create RouterNat, existing object already found",
        _GOOGLE_HTTP,
    ),
    (Cause.SERVER, r"googleapi: Error 50[0234]\b|\bbackendError\b|\binternalError\b", _GOOGLE_HTTP),
    (Cause.SLOW, _NO_ANSWER, _GCE_SLOW),
)
_AWS_RULES = (
    (
        Cause.STOCKOUT,
        r"\b(?:Insufficient(?:Instance|Host|Volume|Address)?Capacity|SpotMaxPriceTooLow|ReservationCapacityExceeded)\b"
        r"|\bUnsupported: Your requested instance type",
        _EC2,
    ),
    # An instance that was given and taken back before it ran.
    (Cause.STOCKOUT, r"\bServer\.SpotInstance(?:Termination|Shutdown)\b", _EC2_STATE),
    (
        Cause.THROTTLED,
        r"\b(?:RequestLimitExceeded|Throttling|ThrottlingException|EC2ThrottledException)\b",
        _EC2,
    ),
    (Cause.THROTTLED, r"\b(?:SlowDown|TooManyRequests|TooManyRequestsException)\b", _S3),
    (Cause.QUOTA, r"\b(?P<quota>VcpuLimitExceeded)\b.*?current vCPU limit of (?P<limit>\d+)", _EC2),
    (Cause.QUOTA, r"\b(?P<quota>MaxSpotInstanceCountExceeded|[A-Z]\w*LimitExceeded)\b", _EC2),
    (
        Cause.QUOTA,
        r"\b(?:LimitExceeded(?:Exception)?: .*?for (?P<quota>\w+)|TooManyBuckets)\b",
        _IAM,
    ),
    (Cause.QUOTA, r"\bServiceQuotaExceededException\b", _SCHEDULER),
    (
        Cause.CREDENTIALS,
        r"\b(?:AuthFailure|UnauthorizedOperation|InvalidClientTokenId|ExpiredToken|ExpiredTokenException"
        r"|RequestExpired|OptInRequired|PendingVerification)\b",
        _EC2,
    ),
    (
        Cause.CREDENTIALS,
        r"\b(?:AccessDenied|AccessDeniedException|UnrecognizedClientException|IncompleteSignature"
        r"|MissingAuthenticationToken)\b",
        _IAM,
    ),
    (Cause.CREDENTIALS, r"\b(?:InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken)\b", _S3),
    (Cause.CREDENTIALS, r"No valid credential sources found", _AWS_LOGIN),
    (
        Cause.EXISTS,
        r"\bInvalid(?:KeyPair|Group|PlacementGroup|Permission)\.Duplicate\b|\bRouteAlreadyExists\b"
        r"|\bResource\.AlreadyAssociated\b|\bInvalidLaunchTemplateName\.AlreadyExistsException\b"
        r"|\bEntityAlreadyExists\b|\bBucketAlreadyOwnedByYou\b|\bConflictException: .*already exists",
        _EC2,
    ),
    (
        Cause.SERVER,
        r"\b(?:InternalError|InternalFailure|ServiceUnavailable|ServiceFailure|Unavailable)\b|StatusCode: 50[0234]\b",
        _EC2,
    ),
    (Cause.SLOW, _NO_ANSWER, _AWS_SLOW),
)
RULES = (
    *(Rule(Provider.GCP, *row) for row in _GCP_RULES),
    *(Rule(Provider.AWS, *row) for row in _AWS_RULES),
)
