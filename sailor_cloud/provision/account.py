"""Facts about a user's account: the end of its credentials, its permissions, and its bill."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsExpiry:
    """Credentials that only the user can renew: their name, their end (None: unknown), and what to do."""

    credentials: str
    expires_at: datetime | None
    renewal_hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingPermissions:
    """Permissions that the caller lacks; `unchecked_reason` says why some or all could not be checked."""

    names: tuple[str, ...] = ()
    unchecked_reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderBill:
    """A provider's bill for resources with a run's tag.

    `lines` are amounts by service, in `currency`. `until` is the last billed use, None if there is none; `final_until`
    the last one that the provider calls final, if it says so. `switch_on` is what the account must enable before
    anything can be found; `notes` say what the figures leave out. `ledger_usd` is the ledger's amount until then for
    this provider's machines, disks and addresses.
    """

    provider: str
    currency: str
    lines: tuple[tuple[str, float], ...]
    until: datetime | None
    final_until: datetime | None = None
    switch_on: str = ""
    notes: tuple[str, ...] = ()
    ledger_usd: float = 0.0

    @property
    def total(self) -> float:
        return sum(amount for _, amount in self.lines)
