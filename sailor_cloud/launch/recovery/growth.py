"""Lets a reduced plan grow again: buys nodes while training continues, then switches to them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

from sailor_cloud.errors import ProvisionError, QuotaError, SailorError, StockoutError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.generation import Generation
from sailor_cloud.launch.recovery import fallback, nodes
from sailor_cloud.launch.recovery.background import background_task
from sailor_cloud.launch.replanning.replan import Option, Policy, growth
from sailor_cloud.launch.replanning.stated import dropped_settings_note
from sailor_cloud.launch.spend.lifetime import with_affordable_rate
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Market
from sailor_cloud.model.shown import Rows
from sailor_cloud.provision.terraform.progress import Interrupt, ProvisionInterrupted
from sailor_cloud.run.journal import Event
from sailor_cloud.units import usd_text

logger = logging.getLogger(__name__)

# A switch ends a generation and starts another. Measured: 7.5 s from death to training for small models (2 cores,
# 2026-11); minutes for large ones with their checkpoint.
LEAST_GAIN_S = 120.0


@dataclass(slots=True)
class Growth:
    """Checks regularly whether more nodes would pay; `document` is the plan to switch to, once found.

    `idle`: nodes may run that are in no plan; they are released first.
    """

    context: RunContext
    generation: Generation
    idle: bool = False
    document: PlanDocument | None = None
    _interrupt: Interrupt = field(default_factory=Interrupt)
    _buying: bool = False

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look for growth during a generation; unfinished purchases are dropped when it ends."""
        if not self._wanted and not self.idle:
            yield
            return
        async with background_task(self._look(), ends_itself=self._cancel_purchase):
            yield

    def _cancel_purchase(self) -> bool:
        """Stop buying; return whether to wait for Terraform: two runs at once would conflict over the state."""
        self._interrupt.request()
        return self._buying

    @property
    def _wanted(self) -> bool:
        """Whether to look: a reduced run can improve, and a run on spot has a deadline to watch."""
        context = self.context
        return (
            context.options.growth_interval_s is not None
            and context.search is not None
            and context.policy is not Policy.NEVER
            and (context.settled or context.policy is Policy.ALWAYS or self._watches_spot)
        )

    @property
    def _watches_spot(self) -> bool:
        offers, document = nodes.offers_of(self.context, self.context.document), self.context.document
        spot = any(offers[node.offer].market is Market.SPOT for node in nodes.plan_nodes(document))
        return (
            spot and self.context.options.fallback and nodes.situation_of(self.context, document, ()).uses_spot_policy
        )

    async def _look(self) -> None:
        if self.idle:
            await self._tried(self._release_extra)
        while self._wanted and self.document is None and not self._interrupt.requested:
            assert self.context.options.growth_interval_s is not None
            await asyncio.sleep(self.context.options.growth_interval_s)
            await self._tried(self._attempt)

    async def _tried(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except (StockoutError, QuotaError) as error:
            self.context.observer.note(f"no capacity to grow: {error}")
        except ProvisionInterrupted:
            self._interrupt.request()
        except SailorError as error:
            logger.warning("growing the run failed: %s", error)

    async def _attempt(self) -> None:
        """Buy a better plan's nodes and switch to it; nodes bought without success are released."""
        context = self.context
        try:
            option = await self._obtained()
        except ProvisionInterrupted:
            raise
        except ProvisionError:
            await self._release_extra()
            raise
        if option is None:
            await self._release_extra()
            return
        # The run may return to what it leaves now, such as spot capacity.
        context.settled = True
        self.document = hand_over(context, self.generation, option)

    async def _obtained(self) -> Option | None:
        """Buy a better plan's nodes; if some are refused, check whether the others are of use."""
        option = await self._better()
        if option is None:
            return None
        try:
            await self._buy(option.document)
        except (StockoutError, QuotaError) as error:
            fallback.block_refused(self.context, option.document, error)
            option = await self._better()
            if option is not None:
                await self._buy(option.document)
        return option

    async def _better(self) -> Option | None:
        """Return a plan over all running nodes that is worth the switch; None without one."""
        context = self.context
        assert context.search is not None
        await nodes.learn_prices(context)
        running = await nodes.running_nodes(context)
        situation = nodes.situation_of(context, context.document, running)
        # A switch saves a checkpoint, so steps since the newest one are kept.
        left = situation.remaining
        if context.steps is not None:
            left = replace(left, steps=max(1, context.steps - self.generation.monitor.step))
        gain_s = LEAST_GAIN_S if context.policy is Policy.BEST else 0.0
        return await context.fleet.in_background(
            growth,
            replace(situation, remaining=left),
            context.search,
            least_gain_s=gain_s,
            settled=context.settled or context.policy is Policy.ALWAYS,
        )

    async def _buy(self, wanted: PlanDocument) -> None:
        """Create the nodes of the wanted plan in addition to those that train now."""
        assert wanted.plan is not None
        current = self.context.document.plan
        assert current is not None
        kept = {node.id for node in current.nodes}
        added = tuple(node for node in wanted.plan.nodes if node.id not in kept)
        both = replace(wanted, plan=replace(wanted.plan, nodes=(*current.nodes, *added)))
        await self._create(_with_offers(both, self.context.document))

    async def _release_extra(self) -> None:
        """Release nodes that were bought in addition to the plan's; after a failure, the next check repeats it.

        If the plan has lost a node, this would create it again; then recovery releases the others.
        """
        if not self.idle or await nodes.has_lost_nodes(self.context, self.context.document):
            return
        await self._create(self.context.document)
        self.idle = False
        await nodes.release(self.context, self.context.document)

    async def _create(self, document: PlanDocument) -> None:
        context = self.context
        self._buying = True
        try:
            with nodes.pending_cost(context, document):
                self.idle = True
                await context.fleet.create(
                    with_affordable_rate(document, context.remaining()),
                    expires_at=context.expires_at,
                    interrupt=self._interrupt,
                    on_progress=context.on_resource,
                )
        finally:
            self._buying = False


def hand_over(context: RunContext, generation: Generation, option: Option) -> PlanDocument:
    """End a generation for a better plan, and return that plan."""
    assert option.document.plan is not None
    context.journal.append(Event.REPLANNED, choice=option.label, seconds=option.seconds)
    context.observer.note(
        f"{option.label}: switching to a plan with {len(option.document.plan.nodes)} nodes; "
        f"{option.seconds:.0f} s and {usd_text(option.usd)} USD to the end"
    )
    if (lacking := dropped_settings_note(option.document, nodes.stated_plan(context))) is not None:
        context.observer.note(lacking)
    generation.handover.set()
    return option.document


def _with_offers(document: PlanDocument, other: PlanDocument) -> PlanDocument:
    """Return a document that also contains the offers of another one."""
    offers = {offer.id: offer for offer in (*other.inputs.offers, *document.inputs.offers)}
    return replace(document, inputs=replace(document.inputs, offers=Rows(offers.values())))
