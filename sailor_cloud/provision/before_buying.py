"""Refuses a plan before anybody pays for it: two clouds, prices, zones, credentials and permissions."""

from __future__ import annotations

from collections.abc import Callable

from sailor_cloud import network
from sailor_cloud.clock import Clock
from sailor_cloud.errors import CredentialsError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision.account_check import check_account
from sailor_cloud.provision.guards import refuse_doubtful_prices, refuse_stale_prices, refuse_two_clouds
from sailor_cloud.provision.provisioner import check_supported
from sailor_cloud.provision.zone_check import check_zones


def check_before_buying(
    document: PlanDocument,
    *,
    clock: Clock,
    ssh_from: str | None = None,
    allow_stale: bool = False,
    allow_doubtful: bool = False,
    allow_missing_permissions: bool = False,
    tell: Callable[[str], None] = lambda note: None,
) -> None:
    """Check all that can be known before a plan is paid for; `tell` gets what the buyer should know, a sentence each.

    Asks each cloud of the plan for its zones and for the caller's permissions. Raises RequestError for a plan that
    can't be bought, StalePriceError and DoubtfulPriceError for its prices, CredentialsError where the caller may not.
    """
    now = clock.now()
    refuse_two_clouds(document, network.load())
    if not allow_stale:
        refuse_stale_prices(document, now.date())
    if not allow_doubtful:
        refuse_doubtful_prices(document)
    check_supported(document)
    for note in check_zones(document):
        tell(note)
    check = check_account(document, now=now, ssh_from=ssh_from)
    if check.missing and not allow_missing_permissions:
        raise CredentialsError(check.refusal)
    for note in check.notes:
        tell(note)
