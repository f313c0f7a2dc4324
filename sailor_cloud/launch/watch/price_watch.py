"""Refreshes spot prices during a run: open nodes are charged at them, and re-plans need not wait for them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from sailor_cloud import resources
from sailor_cloud.catalog.providers import of as sold_by
from sailor_cloud.errors import SailorError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.recovery import nodes
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.provision.bookkeeping import ledger_key
from sailor_cloud.units import usd_text

logger = logging.getLogger(__name__)

# AWS moves spot prices gradually, over hours; Google at most once a day
# (docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-spot-instances-history.html,
# cloud.google.com/compute/docs/instances/spot).
INTERVAL_S = 3600.0


@dataclass(slots=True)
class PriceWatch:
    """Runs in the background. A failure is reported once and retried an hour later."""

    context: RunContext
    interval_s: float = INTERVAL_S
    _failure_reported: bool = False

    @property
    def enabled(self) -> bool:
        """Whether the job may buy at moving prices, and the user gave no prices of their own."""
        context = self.context
        moving = any(
            sold_by(entry.provider).has_account and Market.SPOT in entry.markets
            for entry in context.job_document.job.resources
        )
        refreshes = context.refresh is not None and resources.folders().pricing is None
        return moving and refreshes and context.search is not None

    async def run(self) -> None:
        # After a takeover, open nodes have prices from before.
        wait_s = 0.0 if self.context.ledger.usd_per_hour() else self.interval_s
        while self.enabled:
            await asyncio.sleep(wait_s)
            await self.refresh()
            wait_s = self.interval_s

    async def refresh(self) -> None:
        """Refresh once; from now on charge open nodes the new prices of their offers."""
        context = self.context
        assert context.search is not None
        assert context.refresh is not None
        job = context.job_document.job
        providers = tuple(sorted({entry.provider for entry in job.resources if sold_by(entry.provider).has_account}))
        regions = tuple(sorted({offer.region for offer in context.search.offers(job)}))
        try:
            await context.fleet.in_background(context.refresh, providers, regions)
        except SailorError as error:
            if not self._failure_reported:
                self._failure_reported = True
                context.observer.note(
                    f"spot prices could not be refreshed; the plan continues with older ones: {error}"
                )
            logger.info("refresh of spot prices failed: %s", error)
            return
        await nodes.learn_prices(context)
        self._reprice()

    def _reprice(self) -> None:
        context = self.context
        offers = nodes.offers_of(context, context.document)
        changed = {}
        for node in nodes.plan_nodes(context.document):
            offer = offers[node.offer]
            if offer.market is Market.SPOT and context.ledger.reprice(
                ledger_key(node.id),
                usd_per_hour=offer.usd_per_hour,
                at=context.clock.now(),
                price_source=offer.source,
                price_as_of=offer.as_of_from,
            ):
                changed[offer.id] = offer
        for offer in changed.values():
            context.observer.note(
                f"{offer.instance_type} spot in {offer.zone} now costs {usd_text(offer.usd_per_hour)} USD/h"
            )


def refresh_from_providers(providers: tuple[Provider, ...], regions: tuple[str, ...]) -> None:
    """Write a new price snapshot for some regions. Raises the errors of `catalog.refresh`."""
    from sailor_cloud.catalog.refresh import refresh
    from sailor_cloud.clock import SystemClock

    refresh(
        providers=providers,
        regions=regions,
        clock=SystemClock(),
        progress=lambda what, done, of: None,
        with_public=False,
    )
