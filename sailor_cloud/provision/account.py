"""What a user's account tells: how long its credentials last, what they allow, and what it was billed."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialsEnd:
    """Credentials that nobody can renew without the user: what they are, when they end (None: unknown), what to do."""

    what: str
    at: datetime | None
    renew: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """Permissions that the caller lacks; `unasked` says why some or all could not be asked for."""

    missing: tuple[str, ...] = ()
    unasked: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Billed:
    """What a provider has billed for what carries a run's tag.

    `lines` are amounts by service, in `currency`. `until`: the last use that is in the bill, None where nothing is;
    `final_until`: the last of it that the provider calls final, where it says so. `switch_on` is what the account must
    do before anything can be found; `notes` say what the figures leave out. `ledger_usd`: what the run's ledger has
    until then for this provider's machines, disks and addresses.
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
