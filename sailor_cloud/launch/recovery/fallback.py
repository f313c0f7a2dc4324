"""The loop that gets a run its nodes: it plans around refused or lost nodes and shows every step.

It handles stockouts, types that a zone doesn't sell, quotas and preemptions. The number of attempts and the remaining
money and time bound it.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from sailor_cloud.errors import NotSoldError, ProvisionError, QuotaError, StockoutError, TerraformError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.fleet.fleet import UnreachableError
from sailor_cloud.launch.recovery import nodes
from sailor_cloud.launch.recovery.nodes import ShortfallError, plan_nodes
from sailor_cloud.launch.replanning.refusals import Choice, Refusal, refusal, refusals
from sailor_cloud.launch.replanning.replan import Option, Rates, decide
from sailor_cloud.launch.replanning.stated import dropped_settings_note
from sailor_cloud.model.document import Pick, PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Node
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.terraform.progress import ProvisionInterrupted
from sailor_cloud.run.journal import Event, read
from sailor_cloud.run.options import Ending, LaunchOptions
from sailor_cloud.run.state import fold
from sailor_cloud.units import SECONDS_PER_HOUR, usd_text

# The interval between checks for the end of lost nodes during a wait.
_LOOK_S = 60.0


@dataclass(slots=True)
class _Attempts:
    """Counts failed attempts to get nodes, and limits them."""

    options: LaunchOptions
    recoveries: int = 0
    faults: int = 0

    def recovered(self, why: Exception | str) -> None:
        """Count an abandoned plan. Raises ProvisionError after too many."""
        self.recoveries += 1
        if self.recoveries > self.options.most_recoveries:
            most = self.options.most_recoveries
            raise ProvisionError(f"gave up after {most} plans whose nodes were unavailable; the last reason: {why}")

    def pause_s(self, error: ProvisionError) -> float:
        """Return the pause after an error of Terraform or a cloud. Raises the error after too many repeats."""
        self.faults += 1
        pause_s = self.options.fault_pause(self.faults)
        if pause_s is None:
            raise ProvisionError(
                f"the same operation failed {self.faults} times in a row, the last time: {error}"
            ) from error
        return pause_s


async def obtain_nodes(context: RunContext, document: PlanDocument) -> None:
    """Get all nodes of a plan running and their agents started; the plan may change if nodes are unavailable.

    Sets the context's document and links. Raises ShortfallError, stopping.Stopped, or the error that prevents it.
    """
    attempts = _Attempts(context.options)
    while True:
        if await nodes.has_lost_nodes(context, document):
            attempts.recovered("nodes were lost while others were being created")
            document = await next_plan(context, document)
        try:
            await nodes.create(context, document)
            await nodes.connect(context)
            return
        except (StockoutError, QuotaError) as error:
            _refuse_fallback(context, error)
            block_refused(context, document, error)
            attempts.recovered(error)
        except UnreachableError as error:
            gone = await nodes.find_lost_nodes(context, document)
            if not gone and context.links.keys() != {node.id for node in plan_nodes(document)}:
                # The node runs but never accepted a connection; another one would not either.
                raise
            context.observer.note(str(error))
            attempts.recovered(error)
            if not gone:
                continue
            await nodes.disconnect(context, gone)
            document = await next_plan(context, document, without=gone)
            continue
        except (ShortfallError, ProvisionInterrupted):
            raise
        except ProvisionError as error:
            if not await nodes.has_lost_nodes(context, document):
                # Clouds sometimes fail with an error of their own; a repeated apply continues.
                if not isinstance(error, TerraformError):
                    raise
                pause_s = attempts.pause_s(error)
                context.observer.note(f"{error}\ntrying again in {pause_s:.0f} s")
                await context.stop.unless_stopped(asyncio.sleep(pause_s))
                continue
            context.observer.note(str(error))
            attempts.recovered(error)
            continue
        document = await next_plan(context, document)


async def next_plan(context: RunContext, document: PlanDocument, *, without: tuple[str, ...] = ()) -> PlanDocument:
    """Return a plan without the missing nodes; waits if that is best, or if nothing is available."""
    while True:
        survivors = await nodes.alive(context, document, without=without)
        option = await _decision(context, document, survivors)
        if option is not None and not option.wait_s:
            break
        await _wait(context, option, survivors)
    kept = {node.id for node in survivors}
    gone = [node.id for node in plan_nodes(document) if node.id not in kept]
    bought = [node for node in plan_nodes(option.document) if node.id not in kept]
    context.journal.append(
        Event.REPLANNED, choice=option.label, lost=gone, bought=[node.id for node in bought], seconds=option.seconds
    )
    offers = nodes.offers_of(context, option.document)
    context.observer.note(
        f"{option.label}: {len(survivors)} nodes stay, {_purchase_text(bought, offers)}; "
        f"{option.seconds:.0f} s and {usd_text(option.usd)} USD to the end"
    )
    if (lacking := dropped_settings_note(option.document, nodes.stated_plan(context))) is not None:
        context.observer.note(lacking)
    context.document = option.document
    context.settled = True
    return option.document


async def _wait(context: RunContext, option: Option | None, survivors: tuple[Node, ...]) -> None:
    """Wait until refused capacity may be requested again; without an option, for the first pause after a stockout.

    Lost nodes are charged until their provider confirms their end, not until the next nodes are bought.
    """
    pause_s = context.options.stockout_pause_s if option is None else option.wait_s
    why = "nothing that fits is available now"
    if option is not None:
        why = f"{option.label}: {option.seconds:.0f} s and {usd_text(option.usd)} USD to the end, the best option now"
        context.journal.append(Event.REPLANNED, choice=option.label, lost=[], bought=[], seconds=option.seconds)
    context.observer.note(f"{why}; trying again in {pause_s / 60:.0f} min")
    context.show("waiting for capacity")
    until_s = context.clock.monotonic_s() + pause_s
    while (left_s := until_s - context.clock.monotonic_s()) > 0.0:
        settled = await nodes.retire_lost_nodes(context, survivors)
        await context.stop.unless_stopped(asyncio.sleep(left_s if settled else min(left_s, _LOOK_S)))


def block_refused(context: RunContext, document: PlanDocument, error: StockoutError | QuotaError) -> None:
    """Block refused choices: for a while if capacity is lacking, else for the whole run."""
    offers, now = nodes.offers_of(context, document), context.clock.now()
    asked = [offers[name] for name in error.offers] or [offers[node.offer] for node in _refused(context, document)]
    if isinstance(error, StockoutError) and not isinstance(error, NotSoldError):
        known = refusals(read(context.folder.journal_file))
        refused = refusal(asked, known, now=now, pause_s=context.options.stockout_pause_s)
        how_long = f"for {(refused.until - now).total_seconds() / 60:.0f} min"
    else:
        if isinstance(error, QuotaError):
            places = {(offer.provider, offer.region) for offer in asked if offer.region in error.regions}
            asked += [offer for offer in offers.values() if (offer.provider, offer.region) in places]
        refused = Refusal(frozenset(Choice.of(offer) for offer in asked), context.expires_at)
        how_long = "for the rest of the run"
    context.journal.append(Event.NO_CAPACITY, message=str(error), **refused.to_data())
    names = ", ".join(str(choice) for choice in sorted(refused.choices))
    context.observer.note(f"refused: {names}; not tried again {how_long}: {error}")


def _refuse_fallback(context: RunContext, error: ProvisionError) -> None:
    """Raise the error if the user allows no other plan."""
    if not context.options.fallback:
        raise ProvisionError(f"{error}; --no-fallback forbids another plan") from error


async def _decision(context: RunContext, document: PlanDocument, survivors: tuple[Node, ...]) -> Option | None:
    await nodes.learn_prices(context)
    left = context.remaining()
    if left.usd is not None:
        left = replace(left, usd=left.usd - _reserve_usd(context, document))
    situation = replace(nodes.situation_of(context, document, survivors), remaining=left)
    decision = await context.fleet.in_background(
        decide, situation, context.search or _NoSearch(), policy=context.policy
    )
    if decision.option is None and decision.shortfall:
        raise ShortfallError(decision.shortfall, Ending.DEADLINE if decision.of_time else Ending.BUDGET)
    return decision.option


def _reserve_usd(context: RunContext, document: PlanDocument) -> float:
    rate = document.cost.usd_per_hour if document.cost else 0.0
    return rate * context.options.teardown_reserve_s / SECONDS_PER_HOUR


def _refused(context: RunContext, document: PlanDocument) -> tuple[Node, ...]:
    """Return the nodes refused in the newest attempt; if none is named, all that were not created."""
    entries = read(context.folder.journal_file)
    begun = max((entry.seq for entry in entries if entry.event is Event.PROVISION_STARTED), default=0)
    failed = {entry.key for entry in entries if entry.seq > begun and entry.event is Event.CREATE_FAILED and entry.key}
    came = {row.key for row in fold(entries).resources if row.resource == NODE and row.created_at is not None}
    missing = tuple(node for node in plan_nodes(document) if node.id not in came)
    named = tuple(node for node in missing if node.id in failed)
    return named or missing or plan_nodes(document)


def _purchase_text(bought: Iterable[Node], offers: dict[str, Offer]) -> str:
    counted = Counter(Choice.of(offers[node.offer]) for node in bought)
    if not counted:
        return "buys no node"
    return "buys " + ", ".join(f"{number} x {choice}" for choice, number in sorted(counted.items()))


class _NoSearch:
    """A search for policies that never search."""

    def __call__(self, job: Job, choose: Pick | None = None) -> PlanDocument:
        raise AssertionError("a controller without a search never re-plans")

    def offers(self, job: Job) -> tuple[Offer, ...]:
        return ()

    def purchase(self, job: Job, refused: Callable[[Offer], bool]) -> PlanDocument:
        return self(job)

    def update_link_speeds(self, rates: Rates) -> None:
        pass

    def predict(self, document: PlanDocument) -> PlanDocument:
        return document

    def migration_cost(self, document: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        return 0.0, 0.0
