"""The meaning of AWS's own error codes, with the source of each row, and what to do about them."""

from __future__ import annotations

import re

from sailor_cloud.provision.errors.rules import NO_ANSWER, Cause, ErrorGuide, Rule

_EC2 = "docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html"
_EC2_STATE = "docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html"
_IAM = "docs.aws.amazon.com/IAM/latest/APIReference/CommonErrors.html"
_S3 = "docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html"
_SCHEDULER = "docs.aws.amazon.com/scheduler/latest/APIReference/API_CreateSchedule.html"
_AWS_LOGIN = "registry.terraform.io/providers/hashicorp/aws/latest/docs#authentication-and-configuration"
_AWS_SLOW = "github.com/hashicorp/terraform-provider-aws/issues/40465"
# Codes of Service Quotas; the errors of EC2 have other names.
_QUOTA = re.compile(r"L-[0-9A-F]{8}")

_RULES = (
    Rule(
        Cause.STOCKOUT,
        r"\b(?:Insufficient(?:Instance|Host|Volume|Address)?Capacity|SpotMaxPriceTooLow|ReservationCapacityExceeded)\b",
        _EC2,
    ),
    Rule(Cause.NOT_SOLD, r"\bUnsupported: Your requested instance type", _EC2),
    # An instance that was granted and preempted before it ran.
    Rule(Cause.STOCKOUT, r"\bServer\.SpotInstance(?:Termination|Shutdown)\b", _EC2_STATE),
    Rule(
        Cause.THROTTLED,
        r"\b(?:RequestLimitExceeded|Throttling|ThrottlingException|EC2ThrottledException)\b",
        _EC2,
    ),
    Rule(Cause.THROTTLED, r"\b(?:SlowDown|TooManyRequests|TooManyRequestsException)\b", _S3),
    Rule(Cause.QUOTA, r"\b(?P<quota>VcpuLimitExceeded)\b.*?current vCPU limit of (?P<limit>\d+)", _EC2),
    Rule(Cause.QUOTA, r"\b(?P<quota>MaxSpotInstanceCountExceeded|[A-Z]\w*LimitExceeded)\b", _EC2),
    Rule(
        Cause.QUOTA,
        r"\b(?:LimitExceeded(?:Exception)?: .*?for (?P<quota>\w+)|TooManyBuckets)\b",
        _IAM,
    ),
    Rule(Cause.QUOTA, r"\bServiceQuotaExceededException\b", _SCHEDULER),
    Rule(
        Cause.CREDENTIALS,
        r"\b(?:AuthFailure|UnauthorizedOperation|InvalidClientTokenId|ExpiredToken|ExpiredTokenException"
        r"|RequestExpired|OptInRequired|PendingVerification)\b",
        _EC2,
    ),
    Rule(
        Cause.CREDENTIALS,
        r"\b(?:AccessDenied|AccessDeniedException|UnrecognizedClientException|IncompleteSignature"
        r"|MissingAuthenticationToken)\b",
        _IAM,
    ),
    Rule(Cause.CREDENTIALS, r"\b(?:InvalidAccessKeyId|SignatureDoesNotMatch|InvalidToken)\b", _S3),
    Rule(Cause.CREDENTIALS, r"No valid credential sources found", _AWS_LOGIN),
    Rule(
        Cause.EXISTS,
        r"\bInvalid(?:KeyPair|Group|PlacementGroup|Permission)\.Duplicate\b|\bRouteAlreadyExists\b"
        r"|\bResource\.AlreadyAssociated\b|\bInvalidLaunchTemplateName\.AlreadyExistsException\b"
        r"|\bEntityAlreadyExists\b|\bBucketAlreadyOwnedByYou\b|\bConflictException: .*already exists",
        _EC2,
    ),
    Rule(
        Cause.SERVER,
        r"\b(?:InternalError|InternalFailure|ServiceUnavailable|ServiceFailure|Unavailable)\b|StatusCode: 50[0234]\b",
        _EC2,
    ),
    Rule(Cause.SLOW, NO_ANSWER, _AWS_SLOW),
)


def _quota_page(quota: str, region: str) -> str:
    page = "console.aws.amazon.com/servicequotas"
    return f"{page}/home/services/ec2/quotas/{quota}?region={region}" if _QUOTA.fullmatch(quota) else page


ERRORS = ErrorGuide(
    rules=_RULES,
    login="run 'aws sso login' or set AWS_PROFILE, and let the account create EC2 instances and networks",
    quota_page=_quota_page,
)
