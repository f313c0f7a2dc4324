"""The meaning of Google Cloud's own error codes, with the source of each row, and what to do about them."""

from __future__ import annotations

from sailor_cloud.provision.errors.rules import NO_ANSWER, Cause, ErrorGuide, Rule

_GCE = "cloud.google.com/compute/docs/resource-error"
_GCE_BULK = "cloud.google.com/compute/docs/troubleshooting/troubleshooting-bulk-vm-creation"
_GCE_QUOTA = "github.com/hashicorp/terraform-provider-google/issues/20573"
_GCE_RIGHTS = "github.com/hashicorp/terraform-provider-google/issues/4825"
_GCE_SERVICE = "github.com/hashicorp/terraform/issues/29006"
_GCE_ZONES = "cloud.google.com/compute/docs/gpus/gpu-regions-zones"
_GCE_SLOW = "github.com/hashicorp/terraform-provider-google/issues/8358"
_GCP_LOCATIONS = "cloud.google.com/resource-manager/docs/organization-policy/defining-locations"
_GCP_POLICY = "cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints"
_GCP_RIGHTS = "cloud.google.com/iam/docs/permission-error-messages"
_GCP_ACCOUNTS = "cloud.google.com/iam/quotas"
_GCP_BUILDS = "cloud.google.com/functions/docs/securing/build-custom-sa"
_GOOGLE_LOGIN = "developers.google.com/accounts/docs/application-default-credentials"
_GOOGLE_HTTP = "cloud.google.com/apis/design/errors"

_RULES = (
    Rule(Cause.POLICY, r"Constraint (?P<policy>constraints/[\w.]+) violated", _GCP_POLICY),
    Rule(Cause.POLICY, r"violates constraint '?(?P<policy>constraints/[\w.]+)", _GCP_LOCATIONS),
    Rule(
        Cause.NOT_SOLD,
        r"(?:Machine|Accelerator) type with name '[\w-]+' does not exist in zone '[\w-]+'",
        _GCE_ZONES,
    ),
    Rule(
        Cause.STOCKOUT,
        r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources available to fulfill the request"
        r"|is currently unavailable in the [\w-]+ zone",
        _GCE,
    ),
    Rule(Cause.STOCKOUT, r"\binsufficientCapacity\b", _GCE_BULK),
    Rule(
        Cause.QUOTA,
        r"Quota '(?P<quota>[\w-]+)' exceeded\."
        r"(?:\s+Limit: (?P<limit>[\d.]+) (?:in region (?P<region>[\w-]+)|globally))?",
        _GCE_QUOTA,
    ),
    Rule(Cause.QUOTA, r"\bquotaExceeded\b|\bQUOTA_EXCEEDED\b", _GCE_BULK),
    Rule(Cause.QUOTA, r"Maximum number of service accounts on project reached", _GCP_ACCOUNTS),
    Rule(
        Cause.THROTTLED,
        r"\brateLimitExceeded\b|\bRATE_LIMIT_EXCEEDED\b|googleapi: Error 429\b",
        _GCE_BULK,
    ),
    Rule(Cause.CREDENTIALS, r"could not find default credentials", _GOOGLE_LOGIN),
    Rule(Cause.CREDENTIALS, r"Required '[\w.]+' permission", _GCE_RIGHTS),
    Rule(Cause.CREDENTIALS, r"Permission '[\w.]+' denied|does not have [\w.]+ access", _GCP_RIGHTS),
    Rule(Cause.CREDENTIALS, r"\baccessNotConfigured\b|\bSERVICE_DISABLED\b", _GCE_SERVICE),
    Rule(
        Cause.CREDENTIALS,
        r"googleapi: Error 401\b|\binvalid_grant\b|\bACCESS_TOKEN_\w+|\bBILLING_DISABLED\b",
        _GOOGLE_HTTP,
    ),
    Rule(
        Cause.EXISTS,
        r"googleapi: Error 409\b.*(?:\balreadyExists\b|you already own it)"
        r"|Unable to create RouterNat, existing object already found",
        _GOOGLE_HTTP,
    ),
    Rule(Cause.SERVER, r"googleapi: Error 50[0234]\b|\bbackendError\b|\binternalError\b", _GOOGLE_HTTP),
    # The provider forwards an operation that failed with INTERNAL_ERROR without that code.
    Rule(Cause.SERVER, r"\bINTERNAL_ERROR\b|Internal error\. Please try again or contact Google Support", _GCE_BULK),
    # New bindings take minutes to work; the watchdog's build begins before.
    Rule(Cause.SERVER, r"missing permission on the build service account", _GCP_BUILDS),
    Rule(Cause.SLOW, NO_ANSWER, _GCE_SLOW),
)

# What a job can change so that an organization policy allows it.
_ALLOWED_BY = {
    "constraints/compute.vmExternalIpAccess": "give nodes no public address with 'cloud: {network: private}'",
    "constraints/compute.requireShieldedVm": "ask for an exception for the project: nodes run without Secure Boot, for "
    "which NVIDIA's driver would have to be signed",
    "constraints/compute.trustedImageProjects": "name an image of an allowed project in 'cloud: {image: …}'",
    "constraints/gcp.resourceLocations": "name regions that it allows under 'resources'",
}

ERRORS = ErrorGuide(
    rules=_RULES,
    login="run 'gcloud auth application-default login' or set GOOGLE_APPLICATION_CREDENTIALS, and let the "
    "account have the role Compute Admin in the project",
    quota_page=lambda quota, region: "console.cloud.google.com/iam-admin/quotas",
    allowed_by=_ALLOWED_BY,
)
