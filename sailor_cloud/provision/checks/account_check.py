"""Checks the account before a purchase, and reads its bill afterwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from sailor_cloud.clock import Clock
from sailor_cloud.errors import CredentialsError, MissingPriceError, ProvisionError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.provision import providers
from sailor_cloud.provision.account import CredentialsExpiry, ProviderBill
from sailor_cloud.provision.bookkeeping import cloud_filter
from sailor_cloud.provision.rendering.preview import preview
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.provision.scopes import places_of
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.ledger import Ledger

# The longest duration of a teardown after the TTL.
_TEARDOWN = timedelta(minutes=15)
_RUN = "check-00000000-000000-0000"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountCheck:
    """Notes for the user before the purchase, a sentence each, and missing permissions."""

    notes: tuple[str, ...]
    missing: tuple[str, ...]

    def refusal(self, now: str = "nothing was bought", *, anyway: str = "buys anyway") -> str:
        """Return the error for a caller who lacks permissions; `now` describes the state of the run."""
        listed = "\n".join(f"  {permission}" for permission in self.missing)
        return (
            f"you lack permissions that the run needs; {now}:\n{listed}\n"
            f"docs/permissions.md has a role and a policy with all of them; --allow-missing-permissions {anyway}"
        )


def check_credentials(job: Job, *, now: datetime, tell: Callable[[str], None]) -> None:
    """Check before the search for a plan that each cloud of a job can be asked and accepts the caller's credentials.

    `tell` gets a sentence for each cloud that does not if a plan can do without it. Raises CredentialsError if no
    plan can.
    """
    used = sorted({entry.provider for entry in job.resources})
    refused: list[CredentialsError] = []
    for provider in used:
        if not providers.is_cloud(provider):
            continue
        machine_provider = providers.of(provider)
        if missing := providers.missing_packages(provider):
            refused += missing
            continue
        try:
            _refuse_ended(machine_provider.credentials_expiry(), now)
            machine_provider.check_caller(job.cloud)
        except CredentialsError as error:
            refused.append(error)
    if refused and len(refused) == len(used):
        raise CredentialsError("\n".join(str(error) for error in refused)) from refused[0]
    for each in refused:
        tell(f"{each}; a plan with nodes there can't be bought")


def _refuse_ended(end: CredentialsExpiry | None, now: datetime) -> None:
    """Raise CredentialsError if credentials have expired."""
    if end is not None and end.expires_at is not None and end.expires_at <= now:
        raise CredentialsError(f"{end.credentials} expired at {end.expires_at:%Y-%m-%d %H:%M} UTC; {end.renewal_hint}")


def check_account(document: PlanDocument, *, now: datetime, ssh_from: str | None) -> AccountCheck:
    """Check each cloud of a plan: whether credentials last, and suffice for everything until the run's end.

    Raises CredentialsError if they have ended, or a cloud refuses them.
    """
    used = sorted({placed.offer.provider for placed in placed_nodes(document)})
    clouds = [provider for provider in used if providers.is_cloud(provider)]
    if not clouds:
        return AccountCheck(notes=(), missing=())
    ends_at = now + timedelta(seconds=document.ttl_s or 0.0) + _TEARDOWN
    kinds = _kinds(document, now=now, ssh_from=ssh_from)
    notes: list[str] = []
    missing: list[str] = []
    for provider in clouds:
        machine_provider = providers.of(provider)
        end = machine_provider.credentials_expiry()
        _refuse_ended(end, now)
        if end is not None and (end.expires_at is None or end.expires_at < ends_at):
            when = "at an unknown time" if end.expires_at is None else f"at {end.expires_at:%Y-%m-%d %H:%M} UTC"
            notes.append(
                f"{end.credentials} expire {when}, and the run may last until {ends_at:%Y-%m-%d %H:%M} UTC: from "
                f"then on nothing can be bought, watched or deleted from here; {end.renewal_hint}"
            )
        rights = machine_provider.missing_permissions(document, kinds.get(provider, frozenset()))
        missing += [f"{provider}: {permission}" for permission in rights.names]
        if rights.unchecked_reason:
            notes.append(f"the permissions on {provider} can't be checked beforehand: {rights.unchecked_reason}")
    return AccountCheck(notes=tuple(notes), missing=tuple(missing))


def fetch_bills(folder: RunFolder, *, clock: Clock) -> tuple[ProviderBill, ...]:
    """Return the bill for a run from each cloud that it has used, or may have.

    Raises CredentialsError or ProvisionError if no cloud could be asked; otherwise a cloud that could not says why.
    """
    document, ledger, now = folder.read_document(), Ledger.of(folder, clock), clock.now()
    entries = read(folder.journal_file)
    found: list[ProviderBill] = []
    refused: list[ProvisionError] = []
    for cloud in sorted({scope.provider for scope in places_of(folder).scopes}):
        try:
            bill = providers.of(cloud).fetch_bill(folder.run_id, document.job.cloud, now.date())
        except ProvisionError as error:
            refused.append(error)
            bill = ProviderBill(provider=cloud, currency="USD", lines=(), until=None, switch_on=str(error))
        if bill is not None and bill.until is not None:
            used_usd = ledger.used_usd(min(bill.until, now), counted=cloud_filter(entries, cloud))
            bill = replace(bill, ledger_usd=used_usd)
        if bill is not None:
            found.append(bill)
    if refused and len(refused) == len(found):
        raise refused[0]
    return tuple(found)


def _kinds(document: PlanDocument, *, now: datetime, ssh_from: str | None) -> dict[str, frozenset[str]]:
    """Return the types of a run's resources, by provider."""
    folder = RunFolder(run_id=_RUN, path=Path(_RUN))
    try:
        roots = preview(document, folder, public_key="", expires_at=now, ssh_from=ssh_from or "0.0.0.0/32")
    except MissingPriceError:
        # Shown together with the bill.
        return {}
    found: dict[str, set[str]] = {}
    for root in roots:
        found.setdefault(root.provider, set()).update(resource.type for resource in root.resources)
    return {provider: frozenset(kinds) for provider, kinds in found.items()}
