"""The first steps of a controller that takes over: find out what still runs and what is lost."""

from __future__ import annotations

from functools import partial

from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.fleet.fleet import Health, UnreachableError
from sailor_cloud.launch.recovery import fallback, nodes
from sailor_cloud.launch.telemetry.generation_log import generations, read_plan, recorded_generations
from sailor_cloud.launch.telemetry.monitor import Monitor
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.run.journal import Event, read


async def running_generation(context: RunContext) -> Monitor | None:
    """Return the state of the generation that runs without a controller; None if none does.

    Sets the context's document and links.
    """
    number = max(generations(context.folder), default=0)
    ended = [e.data["generation"] for e in read(context.folder.journal_file) if e.event is Event.GENERATION_ENDED]
    if number == 0 or number in ended:
        return None
    context.document = document = read_plan(context.folder, number)
    assert document.plan is not None
    running = await nodes.query_fleet(context, partial(context.fleet.running, document))
    context.show("connecting")
    if running != {node.id for node in document.plan.nodes} or not await _reconnected(context, document):
        return None
    return next(leg.monitor for leg in recorded_generations(context.folder) if leg.generation == number)


async def initial_plan(context: RunContext) -> PlanDocument:
    """Return the newest plan, or another one if an earlier controller's nodes are lost."""
    document = context.document
    if not generations(context.folder):
        return document
    assert document.plan is not None
    survivors = await nodes.alive(context, document)
    if len(survivors) == len(document.plan.nodes):
        return document
    gone = tuple(sorted({node.id for node in document.plan.nodes} - {node.id for node in survivors}))
    nodes.report_lost_nodes(
        context, gone, f"{len(gone)} nodes were lost while no controller was there: {', '.join(gone)}"
    )
    return await fallback.next_plan(context, document)


async def _reconnected(context: RunContext, document: PlanDocument) -> bool:
    """Connect to the agents of a plan; False if one has died or does not answer."""
    applied = await nodes.query_fleet(context, partial(context.fleet.reachable_nodes, document))
    try:
        links = await context.stop.unless_stopped(context.fleet.connect(applied))
    except UnreachableError as error:
        context.observer.note(str(error))
        return False
    context.links.update((link.node.id, link) for link in links)
    context.applied_nodes = {node.id: node for node in applied}
    states = [await link.health() for link in context.links.values()]
    return all(state is Health.WELL for state in states)
