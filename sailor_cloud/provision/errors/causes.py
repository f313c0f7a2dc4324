"""Tells the providers' errors apart by their own codes: no capacity, no quota, no credentials, or worth another try.

Terraform passes an error of the provider on as text, in which the provider's code stands as a word or a sentence that
the provider documents; `error_rules` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from sailor_cloud.errors import CredentialsError, ProvisionError, QuotaError, StockoutError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.errors.rules import RULES, Cause
from sailor_cloud.provision.terraform.driver import Diagnostic

__all__ = ["RULES", "Cause", "Fault", "classify", "error_of", "gravest"]

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
        return self.cause in (Cause.THROTTLED, Cause.SERVER, Cause.SLOW)


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
