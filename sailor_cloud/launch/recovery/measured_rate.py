"""Plans a command again with the pace of its first steps if the job asks for it: `throughput: measured`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace

from sailor_cloud.errors import SailorError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.generation import Generation
from sailor_cloud.launch.recovery import nodes
from sailor_cloud.launch.recovery.background import background_task
from sailor_cloud.launch.recovery.growth import LEAST_GAIN_S, hand_over
from sailor_cloud.launch.replanning.replan import Policy, growth
from sailor_cloud.launch.telemetry.monitor import Monitor
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.run.journal import Event
from sailor_cloud.units import SECONDS_PER_HOUR, duration_text, usd_text

logger = logging.getLogger(__name__)

MEASURED_STEPS = 20
# The journal's name for seconds per step.
MEASURED = "measured"


@dataclass(slots=True)
class MeasuredRate:
    """Watches a generation until it has reported enough steps; `document` is a better plan, if any."""

    context: RunContext
    generation: Generation
    document: PlanDocument | None = None

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        if self.context.document.job.throughput != MEASURED or self.context.search is None:
            yield
            return
        async with background_task(self._look()):
            yield

    async def _look(self) -> None:
        context, monitor = self.context, self.generation.monitor
        while monitor.steps_done < MEASURED_STEPS or not monitor.measured_iteration_s:
            await asyncio.sleep(context.options.poll_s)
        try:
            await self._replan(monitor, monitor.measured_iteration_s)
        except SailorError as error:
            logger.warning("planning again with the measured rate failed: %s", error)

    async def _replan(self, monitor: Monitor, iteration_s: float) -> None:
        context = self.context
        assert context.search is not None
        running = {node.offer for node in nodes.plan_nodes(context.document)}
        job = context.document.job.model_copy(update={"throughput": 1.0 / iteration_s})
        steps = None if context.steps is None else max(1, context.steps - monitor.step)
        rest = job.model_copy(
            update={
                "training": job.training.model_copy(update={"steps": steps}),
                "constraints": job.constraints.model_copy(update={"budget_usd": None, "deadline": None}),
            }
        )
        same = await context.fleet.in_background(context.search.purchase, rest, lambda offer: offer.id not in running)
        if same.cost is None:
            return
        context.document = replace(context.document, job=job, cost=same.cost)
        context.observer.note(cost_note(same, monitor, iteration_s))
        choice = f"continue at the measured {iteration_s:.4g} s per step"
        context.journal.append(Event.REPLANNED, choice=choice, lost=[], bought=[], seconds=iteration_s)
        if context.policy is Policy.NEVER:
            return
        situation = nodes.situation_of(context, context.document, await nodes.running_nodes(context))
        option = await context.fleet.in_background(growth, situation, context.search, least_gain_s=LEAST_GAIN_S)
        if option is not None:
            self.document = hand_over(context, self.generation, option)


def cost_note(rest: PlanDocument, monitor: Monitor, iteration_s: float) -> str:
    """Return a note on the cost of a step, of tokens and of the remaining steps, by the first steps' pace."""
    assert rest.cost is not None
    usd = rest.cost.usd_per_hour * iteration_s / SECONDS_PER_HOUR
    parts = [f"measured over {monitor.steps_done} steps: {iteration_s:.3g} s and {usd_text(usd)} USD each"]
    if monitor.tokens_per_iteration:
        parts.append(f"{usd_text(1e6 * usd / monitor.tokens_per_iteration)} USD per million tokens")
    steps = rest.job.training.steps
    if steps is not None and rest.cost.total_usd is not None:
        parts.append(
            f"the other {steps} steps need {duration_text(round(steps * iteration_s))} and {usd_text(usd * steps)} USD"
        )
    return ", ".join(parts)
