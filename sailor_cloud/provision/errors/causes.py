"""Classifies the providers' errors by their codes: no capacity, no quota, no credentials, or retryable.

Terraform forwards a provider's error as text that contains the provider's code, a word or a documented sentence; each
provider's `ErrorGuide` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from sailor_cloud.errors import CredentialsError, NotSoldError, ProvisionError, QuotaError, StockoutError
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.errors.rules import Cause, ErrorGuide
from sailor_cloud.provision.terraform.driver import Diagnostic

__all__ = ["Cause", "Fault", "classify", "error_of", "most_severe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One error of a provider with its cause; `address` is the Terraform resource."""

    provider: Provider
    guide: ErrorGuide = field(repr=False, compare=False)
    cause: Cause
    address: str
    text: str
    quota: str = ""
    limit: str = ""
    region: str = ""
    policy: str = ""

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed a little later."""
        return self.cause in (Cause.THROTTLED, Cause.SERVER, Cause.SLOW)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaNumbers:
    """Limit, usage and need as far as known, in the quota's own unit; `fault` names the quota itself.

    `whole_region`: the quota refuses all instance types of its region.
    """

    fault: Fault
    limit: float | None
    usage: float | None
    need: float | None
    whole_region: bool = False


def classify(provider: Provider, guide: ErrorGuide, diagnostic: Diagnostic) -> Fault:
    """Return the cause of a provider's error, by the provider's guide."""
    text = f"{diagnostic.summary} {diagnostic.detail}".strip()
    cause, kept = Cause.OTHER, dict[str, str]()
    for rule in guide.rules:
        found = re.search(rule.pattern, text, re.S)
        if found is not None:
            cause, kept = rule.cause, {name: value for name, value in found.groupdict().items() if value}
            break
    return Fault(provider=provider, guide=guide, cause=cause, address=diagnostic.address, text=text, **kept)


def most_severe(faults: Sequence[Fault]) -> Fault:
    """Return the fault to act on: fatal faults come before those that another zone would solve."""
    return min(faults, key=lambda fault: list(Cause).index(fault.cause))


def error_of(fault: Fault) -> ProvisionError:
    """Return the error that says what is wrong and what to do."""
    where = f"{fault.address}: " if fault.address else ""
    guide = fault.guide
    match fault.cause:
        case Cause.STOCKOUT:
            return StockoutError(f"{where}{fault.provider} has no capacity now: {fault.text}")
        case Cause.NOT_SOLD:
            return NotSoldError(f"{where}{fault.provider} does not sell this type in this zone: {fault.text}")
        case Cause.QUOTA:
            page = guide.quota_page(fault.quota, fault.region)
            return QuotaError(f"{where}{_quota_text(fault)}; ask for more at {page}: {fault.text}")
        case Cause.CREDENTIALS:
            return CredentialsError(f"{where}{fault.provider} refused the request; {guide.login}: {fault.text}")
        case Cause.POLICY:
            way_out = guide.allowed_by.get(fault.policy, "ask an administrator of the organization for an exception")
            return ProvisionError(
                f"{where}a policy of your organization, {fault.policy}, forbids this; {way_out}: {fault.text}"
            )
    return ProvisionError(f"{where}{fault.text}")


def _quota_text(fault: Fault) -> str:
    name = f"the quota {fault.quota}" if fault.quota else "a quota"
    limit = f" of {float(fault.limit):g}" if fault.limit else ""
    region = f" in {fault.region}" if fault.region else ""
    return f"{name}{limit}{region} does not allow the plan"
