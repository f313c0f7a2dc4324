"""Plans again if the preflight finds links far below the plan's bandwidth, before hours are paid for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from sailor_cloud.errors import SailorError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.generation import Generation
from sailor_cloud.launch.recovery import nodes
from sailor_cloud.launch.recovery.background import background_task
from sailor_cloud.launch.recovery.growth import LEAST_GAIN_S, hand_over
from sailor_cloud.launch.replanning.replan import Option, Policy, growth
from sailor_cloud.launch.telemetry.preflight import slow_links
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.run.journal import Event, read


@dataclass(slots=True)
class SlowLinks:
    """Watches a generation's preflight; `document` is a better plan to switch to, once found.

    Training continues meanwhile: switching saves a checkpoint first. Each slow link triggers one re-plan at most.
    """

    context: RunContext
    generation: Generation
    document: PlanDocument | None = None

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        context = self.context
        if not context.options.replan_slow_links or context.search is None or context.policy is Policy.NEVER:
            yield
            return
        async with background_task(self._look()):
            yield

    async def _look(self) -> None:
        context, monitor = self.context, self.generation.monitor
        while monitor.preflight is None:
            await asyncio.sleep(context.options.poll_s)
        known = known_slow_links(context)
        slow = slow_links(self.generation.document, monitor.preflight)
        if not slow.keys() - known.keys():
            return
        context.journal.append(Event.LINKS_SLOW, links=[[*zones, rate] for zones, rate in sorted(slow.items())])
        try:
            option = await self._better({**known, **slow})
        except SailorError as error:
            context.observer.note(f"planning again for slow links failed, the plan stays: {error}")
            return
        if option is None:
            context.observer.note("with the measured links no other plan is better after the cost of switching")
            return
        self.document = hand_over(context, self.generation, option)

    async def _better(self, rates: dict[tuple[str, str], float]) -> Option | None:
        """Return a plan worth the switch, with the present plan judged by the same links; None without one."""
        context = self.context
        assert context.search is not None
        context.search.update_link_speeds(rates)
        await nodes.learn_prices(context)
        present = await context.fleet.in_background(context.search.predict, context.document)
        running = await nodes.running_nodes(context)
        gain_s = LEAST_GAIN_S if context.policy is Policy.BEST else 0.0
        return await context.fleet.in_background(
            growth,
            nodes.situation_of(context, present, running),
            context.search,
            least_gain_s=gain_s,
            label="re-plan for slow links",
        )


def known_slow_links(context: RunContext) -> dict[tuple[str, str], float]:
    """Return the slow links that earlier preflights of the run found, under any controller."""
    return {
        (src, dst): rate
        for entry in read(context.folder.journal_file)
        if entry.event is Event.LINKS_SLOW
        for src, dst, rate in entry.data["links"]
    }
