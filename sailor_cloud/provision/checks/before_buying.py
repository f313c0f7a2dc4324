"""Refuses a plan before any purchase: two clouds, prices, budgets, zones, credentials and permissions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from sailor_cloud import catalog, network, resources
from sailor_cloud.catalog import Catalog
from sailor_cloud.catalog.job_check import resource_problems
from sailor_cloud.clock import Clock
from sailor_cloud.errors import CredentialsError, DataError, Problem, RequestError, StalePriceError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Offer
from sailor_cloud.planner.space.candidates import collect
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.checks.account_check import check_account, check_credentials
from sailor_cloud.provision.checks.capacity_check import bought_separately, check_capacity
from sailor_cloud.provision.checks.zone_check import check_zones
from sailor_cloud.provision.guards import refuse_prices, refuse_stale_offers, refuse_two_clouds
from sailor_cloud.provision.jobs import check_scheduler
from sailor_cloud.provision.providers import is_cloud, on_this_machine
from sailor_cloud.provision.provisioner import check_supported
from sailor_cloud.provision.rendering.rendered_roots import missing_from_request
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.run import budgets
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import read
from sailor_cloud.run.state import fold


def faults_beside(missing: Sequence[Problem], job: Job, *, clock: Clock, allow_stale: bool) -> list[Problem]:
    """Return missing settings of a purchase with the job's unknown names, or else its stale prices."""
    prices = catalog.load()
    if unknown := resource_problems(job, prices):
        return [*missing, *unknown]
    try:
        if not allow_stale:
            refuse_stale_offers(_offers(job, prices), clock.now().date())
    except StalePriceError as error:
        return [*missing, Problem(path="", message=str(error))]
    return list(missing)


def _offers(job: Job, prices: Catalog) -> list[Offer]:
    return [pool.offer for pool in collect(job, prices).pools]


def check_before_searching(
    job: Job, *, clock: Clock, allow_stale: bool = False, tell: Callable[[str], None] = lambda note: None
) -> None:
    """Check what every plan of a job needs: known resources, fresh prices, and credentials.

    `tell` is as in `check_credentials`. Raises RequestError, StalePriceError and CredentialsError.
    """
    prices, now = catalog.load(), clock.now()
    if problems := resource_problems(job, prices):
        raise RequestError(problems)
    if not allow_stale:
        refuse_stale_offers(_offers(job, prices), now.date())
    check_credentials(job, now=now, tell=tell)


def check_before_buying(
    document: PlanDocument,
    *,
    clock: Clock,
    ssh_from: str | None = None,
    allow_stale: bool = False,
    allow_doubtful: bool = False,
    allow_missing_permissions: bool = False,
    buy_reserved: bool = False,
    tell: Callable[[str], None] = lambda note: None,
) -> None:
    """Check everything that can be known before a purchase; `tell` gets notes for the buyer, a sentence each.

    Without `buy_reserved` no capacity is bought separately from nodes. Asks each cloud of the plan for its zones, its
    capacity and the caller's permissions. Raises RequestError for a plan that can't be bought, StalePriceError and
    DoubtfulPriceError for its prices, CredentialsError if the caller lacks permissions.
    """
    now = clock.now()
    if not buy_reserved and (apart := bought_separately(document, now + timedelta(seconds=document.ttl_s or 0.0))):
        listed = "\n".join(f"  {one}" for one in apart)
        raise RequestError(
            f"the plan buys capacity separately from its nodes:\n{listed}\ngive --buy-reserved to buy it"
        )
    refuse_two_clouds(document, network.load())
    clouds = any(is_cloud(placed.offer.provider) for placed in placed_nodes(document))
    missing = missing_from_request(document.job, ssh_from) if clouds else []
    try:
        refuse_prices(document, now.date(), allow_stale=allow_stale, allow_doubtful=allow_doubtful)
    except DataError as error:
        if missing:
            raise RequestError([*missing, Problem(path="", message=str(error))]) from error
        raise
    if missing:
        raise RequestError(missing)
    check_supported(document)
    check_scheduler(document)
    check_capacity(document, now)
    for note in reserve(document, "", now, only_ask=True).notes:
        tell(note)
    for note in check_zones(document):
        tell(note)
    check = check_account(document, now=now, ssh_from=ssh_from)
    if check.missing and not allow_missing_permissions:
        raise CredentialsError(check.refusal())
    for note in check.notes:
        tell(note)


def check_before_taking_over(
    folder: RunFolder, document: PlanDocument, *, now: datetime, expires_at: datetime | None, allowed: bool
) -> tuple[str, ...]:
    """Check the account before a run continues, and return notes for the user.

    `allowed`: the user accepted missing permissions. Raises CredentialsError if credentials have ended, or if
    permissions are missing while the run lacks nodes and would have to buy some.
    """
    lasting = document if expires_at is None else replace(document, ttl_s=(expires_at - now).total_seconds())
    check = check_account(lasting, now=now, ssh_from=None)
    if not check.missing:
        return check.notes
    state = fold(read(folder.journal_file))
    there = {row.key for row in state.live if row.resource == NODE and row.created_at is not None}
    whole = there >= {placed.node.id for placed in placed_nodes(document)}
    if not whole and not allowed:
        down = f"'sailor-cloud down {folder.run_id}' removes what it has"
        left = f"run {folder.run_id} was left as it is, and {down}"
        raise CredentialsError(check.refusal(left, anyway="continues anyway"))
    return (*check.notes, f"you lack permissions that the run may need: {', '.join(check.missing)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReservation:
    """Whether a budget is reserved for a run, and notes for the buyer."""

    held: bool
    notes: tuple[str, ...]


def reserve(document: PlanDocument, run_id: str, now: datetime, *, only_ask: bool = False) -> BudgetReservation:
    """Reserve the run's possible cost in the budgets of its owner and project, and note the remainders.

    Runs on this machine only, or on nodes that are free of charge, cost nothing. Raises RequestError if a budget has
    too little left.
    """
    if all(on_this_machine(offer.provider) or offer.usd_per_hour == 0 for offer in document.inputs.offers):
        return BudgetReservation(held=False, notes=())
    of_job = budgets.budgets_of(document.job.cloud, resources.home())
    usd = budgets.most_usd(document)
    if usd is None:
        if not any(allowances for _, allowances in of_job.books):
            return BudgetReservation(held=False, notes=(of_job.unread,) if of_job.unread else ())
        raise RequestError("the cost of this run is unknown, so its budget can't be checked; give --budget USD")
    notes = of_job.reserve(run_id, usd, now, only_ask=only_ask)
    return BudgetReservation(held=bool(notes), notes=(of_job.unread, *notes) if of_job.unread else notes)
