"""The nodes of a run: requests them, connects to them, and releases those that no plan needs any more."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TypeVar

from sailor_cloud import catalog
from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.fleet.fleet import Health
from sailor_cloud.launch.fleet.software import job_of_one_build
from sailor_cloud.launch.replanning.replan import Situation
from sailor_cloud.launch.replanning.spot import spot_history
from sailor_cloud.launch.spend.lifetime import with_affordable_rate
from sailor_cloud.launch.telemetry.notify import Notice
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Node, Plan
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.terraform.progress import ProvisionInterrupted
from sailor_cloud.run.journal import Event, read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.state import ResourceState, fold
from sailor_cloud.units import SECONDS_PER_HOUR, counted, duration_text, usd_text

_T = TypeVar("_T")


class ShortfallError(ProvisionError):
    """The remaining budget or time can't finish the run; `ending` says which of them."""

    def __init__(self, message: str, ending: Ending) -> None:
        self.ending = ending
        super().__init__(message)


async def query_fleet(context: RunContext, ask: Callable[[], Awaitable[_T]]) -> _T:
    """Return the fleet's answer about its nodes; retries for minutes if a provider does not answer."""
    failed = 0
    while True:
        try:
            return await ask()
        except CredentialsError:
            raise
        except ProvisionError as error:
            failed += 1
            pause_s = context.options.fault_pause(failed)
            if pause_s is None:
                raise
            context.observer.note(f"{error}\nasking again in {pause_s:.0f} s")
            await context.stop.unless_stopped(asyncio.sleep(pause_s))


async def has_lost_nodes(context: RunContext, document: PlanDocument) -> bool:
    """Whether nodes of the plan existed and no longer do; a name is never reused."""
    created = {row.key for row in fold(read(context.folder.journal_file)).resources if row.created_at is not None}
    running = await query_fleet(context, partial(context.fleet.running, document))
    return any(node.id in created and node.id not in running for node in plan_nodes(document))


async def alive(context: RunContext, document: PlanDocument, *, without: tuple[str, ...] = ()) -> tuple[Node, ...]:
    """Return the plan's running nodes, except those about to end."""
    running = await query_fleet(context, partial(context.fleet.running, document))
    return tuple(node for node in plan_nodes(document) if node.id in running and node.id not in without)


async def find_lost_nodes(context: RunContext, document: PlanDocument) -> tuple[str, ...]:
    """Return the lost nodes of a plan after one did not answer; empty once all connected nodes answer again.

    A connection ends before the provider reports the node's end. A node silent for `lost_after_s` counts as lost.
    """
    until = context.clock.monotonic_s() + context.options.lost_after_s
    while True:
        running = await query_fleet(context, partial(context.fleet.running, document))
        missing = {node.id for node in plan_nodes(document)} - running
        states = await asyncio.gather(*(link.health() for link in context.links.values()))
        silent = {name for name, state in zip(context.links, states, strict=True) if state is Health.UNREACHABLE}
        if missing or not silent or context.clock.monotonic_s() >= until:
            return tuple(sorted(missing | silent))
        await context.stop.unless_stopped(asyncio.sleep(context.options.ask_s))


async def running_nodes(context: RunContext) -> tuple[Node, ...]:
    """Return all running nodes of the run, of any plan, those of the newest plan first."""
    rows = {row.key: row for row in fold(read(context.folder.journal_file)).resources if row.resource == NODE}
    offers = {(o.zone, o.instance_type, o.market.value): o for o in offers_of(context, context.document).values()}
    found = list(await alive(context, context.document))
    for name in await query_fleet(context, context.fleet.all_running):
        if name in {node.id for node in found} or name not in rows:
            continue
        data = rows[name].data
        offer = offers.get((data.get("zone", ""), data.get("instance_type", ""), data.get("market", "")))
        if offer is not None:
            found.append(Node(id=name, offer=offer.id, devices=offer.accelerator_count))
    return tuple(found)


def stated_plan(context: RunContext) -> Plan | None:
    """Return the confirmed plan if a user gave its layout, else None."""
    return context.job_document.plan if context.job_document.status is Status.GIVEN else None


def situation_of(context: RunContext, document: PlanDocument, survivors: tuple[Node, ...]) -> Situation:
    entries = read(context.folder.journal_file)
    state, first = fold(entries), context.job_document
    return Situation(
        job=current_job(context),
        choose=None if first.decision is None else first.decision.asked,
        stated=stated_plan(context),
        document=document,
        survivors=survivors,
        blocked=context.blocked(),
        # A refused name never belonged to a node, so it is free again.
        used_names=frozenset(row.key for row in state.resources if row.live or row.created_at is not None),
        remaining=context.remaining(),
        offers=offers_of(context, document),
        spot_history=spot_history(entries, context.clock.now()),
        now=context.clock.now(),
        margin_s=(context.options.growth_interval_s or 0.0) + first.job.checkpoint.every,
    )


def current_job(context: RunContext) -> Job:
    """Return the run's job with the capacity that a new plan may use: the account's, and what the run has bought.

    It leaves out accelerators that need another build of torch than the confirmed plan.

    The user confirmed no further purchase. A block that was bought costs nothing more.
    """
    job = job_of_one_build(context.job_document, catalog.load())
    if not job.cloud.reserved:
        return job
    rows = fold(read(context.folder.journal_file)).resources
    bought = {row.capacity: row.data for row in rows if row.created_at is not None and row.gone_at is None}
    kept = []
    for entry in job.cloud.reserved:
        if entry.name in bought and entry.bought_separately:
            usd = None if entry.usd is None else 0.0
            nodes = bought[entry.name].get("nodes", entry.nodes)
            kept.append(entry.model_copy(update={"usd": usd, "nodes": nodes}))
        elif not entry.bought_separately:
            kept.append(entry)
    return job.model_copy(update={"cloud": job.cloud.model_copy(update={"capacity": tuple(kept)})})


def offers_of(context: RunContext, document: PlanDocument) -> dict[str, Offer]:
    """Return every offer that the run has seen, each at its newest price."""
    for known in (context.job_document, context.document, document):
        context.offers.update((offer.id, offer) for offer in known.inputs.offers)
    return {**context.offers, **context.quotes}


async def learn_prices(context: RunContext) -> None:
    """Fetch today's prices of everything that the job may buy."""
    if context.search is not None:
        quoted = await context.fleet.in_background(context.search.offers, current_job(context))
        context.quotes = {offer.id: offer for offer in quoted}


async def create(context: RunContext, document: PlanDocument) -> None:
    """Create missing nodes and remove those that the plan does not have."""
    try:
        if starts_s := _capacity_starts_s(context, document):
            context.show(f"waiting {duration_text(max(starts_s))} for capacity" if max(starts_s) > 0 else "capacity")
            await context.fleet.secure(
                with_affordable_rate(document, context.remaining()),
                expires_at=context.expires_at,
                interrupt=context.stop.interrupt,
                on_progress=context.on_resource,
            )
        context.show("creating nodes")
        with pending_cost(context, document):
            applied = await context.fleet.create(
                with_affordable_rate(document, context.remaining()),
                expires_at=context.expires_at,
                interrupt=context.stop.interrupt,
                on_progress=context.on_resource,
            )
    except ProvisionInterrupted:
        context.stop.check()
        raise
    context.stop.check()
    missing = {node.id for node in plan_nodes(document)} - {node.id for node in applied.nodes}
    if missing:
        raise ProvisionError(f"{len(missing)} nodes were lost right after their creation: {', '.join(sorted(missing))}")
    context.observer.note(f"{counted(len(applied.nodes), 'node')} up in {applied.seconds:.1f} s")
    context.document = document
    await release(context, document)
    context.applied_nodes = {node.id: node for node in applied.nodes}


def _capacity_starts_s(context: RunContext, document: PlanDocument) -> list[float]:
    """Return the waiting times of a plan's capacities that are bought separately or start later."""
    offers, now = offers_of(context, document), context.clock.now()
    used = [offers[node.offer] for node in plan_nodes(document)]
    return [
        (offer.terms.starts_at - now).total_seconds() if offer.terms.starts_at is not None else 0.0
        for offer in used
        if offer.terms is not None and (offer.bought_separately or offer.terms.starts_at is not None)
    ]


@contextlib.contextmanager
def pending_cost(context: RunContext, document: PlanDocument) -> Iterator[None]:
    """Count the cost of requested nodes until the ledger has them. Raises ShortfallError beforehand."""
    offers = offers_of(context, document)
    new = [node for node in plan_nodes(document) if node.id not in context.links]
    rate = sum(offers[node.offer].usd_per_hour for node in new if not offers[node.offer].bought_separately)
    _check_affordable(context, rate)
    context.pending_usd_per_hour, context.pending_since = rate, context.clock.now()
    try:
        yield
    finally:
        context.pending_since = None


async def release(context: RunContext, document: PlanDocument) -> None:
    """Release nodes that are not in the plan: close their connections and stop charging."""
    kept = {node.id for node in plan_nodes(document)}
    for name in [name for name in context.links if name not in kept]:
        await context.links.pop(name).close()
    await context.fleet.retire(sorted({row.key for row in _live(context)} - kept))


def has_extra(context: RunContext, document: PlanDocument) -> bool:
    """Whether the journal has nodes that may run and are not in the plan."""
    return not {row.key for row in _live(context)} <= {node.id for node in plan_nodes(document)}


async def retire_lost_nodes(context: RunContext, survivors: tuple[Node, ...]) -> bool:
    """Stop charging deleted nodes; return whether only the survivors are charged now."""
    kept = {node.id for node in survivors}

    def charged() -> list[str]:
        return sorted({row.key for row in _live(context) if row.created_at is not None} - kept)

    if lost := charged():
        await query_fleet(context, partial(context.fleet.retire, lost))
    return not charged()


def _live(context: RunContext) -> list[ResourceState]:
    return [row for row in fold(read(context.folder.journal_file)).resources if row.resource == NODE and row.live]


async def connect(context: RunContext) -> None:
    context.journal.append(Event.DEPLOY_STARTED)
    context.show("connecting")
    missing = [node for name, node in context.applied_nodes.items() if name not in context.links]
    for link in await context.stop.unless_stopped(context.fleet.connect(missing)):
        context.links[link.node.id] = link
    context.show("starting agents")

    await context.stop.unless_stopped(all_done(link.ensure_agent() for link in context.links.values()))
    context.observer.note(f"runtime on {counted(len(context.links), 'node')}, agents started")


def _check_affordable(context: RunContext, new_usd_per_hour: float) -> None:
    """Raise ShortfallError rather than buy nodes that the budget guard would remove immediately.

    A VM is billed for at least a minute, and teardown takes the guard's reserve.
    """
    budget = context.job_document.constraints.budget_usd
    if budget is None or not context.ledger.lines():
        return
    reserve_s = context.options.teardown_reserve_s
    rate = context.ledger.usd_per_hour() + new_usd_per_hour
    needed = context.spent_usd + rate * max(60.0, reserve_s) / SECONDS_PER_HOUR
    if needed >= budget:
        raise ShortfallError(
            f"{usd_text(needed)} USD would be spent before new nodes could do anything, "
            f"of a budget of {usd_text(budget)} USD",
            Ending.BUDGET,
        )


async def all_done(work: Iterable[Awaitable[None]]) -> None:
    """Await everything; raise the first error only after all have ended."""
    for answer in await asyncio.gather(*work, return_exceptions=True):
        if isinstance(answer, BaseException):
            raise answer


async def disconnect(context: RunContext, names: tuple[str, ...]) -> None:
    """Close the connections to lost nodes."""
    for name in names:
        if name in context.links:
            await context.links.pop(name).close()


def report_lost_nodes(context: RunContext, names: tuple[str, ...], why: str) -> None:
    """Journal and report that nodes are lost or about to be."""
    context.journal.append(Event.NODES_LOST, nodes=list(names), why=why)
    context.observer.note(why)
    context.notifier.notify(Notice.PREEMPTED, run=context.folder.run_id, text=why, nodes=list(names))


def plan_nodes(document: PlanDocument) -> tuple[Node, ...]:
    assert document.plan is not None
    return document.plan.nodes
