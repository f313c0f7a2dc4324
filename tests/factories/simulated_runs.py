"""A run that was carried out in simulated time and left a whole run folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from factories.quick_search import QuickSearch, job
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.replanning.replan import Policy
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import SilentObserver, simulated_context
from sailor_cloud.launch.simulation.time import SimulatedClock, run_simulated
from sailor_cloud.launch.simulation.world import World
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.workload import decoder


def simulated_run(home: Path, run_id: str = "chaos-20261121-000000-a1b2", *, budget_usd: float = 200.0) -> RunFolder:
    """Train the job of `quick_search` where one node is lost on the way, and tear everything down."""
    clock = SimulatedClock(datetime(2026, 11, 21, tzinfo=UTC))
    document = QuickSearch()(job(budget_usd=budget_usd))
    folder = RunFolder.create(run_id, root=home / "runs")
    folder.write_document(document)
    Journal.of(folder, clock).append(Event.RUN_CREATED, job=document.job.name)
    devices = {
        Place(zone, name): (4, 3, 4) for zone in ("us-central1-a", "us-central1-b") for name in ("A100-40", "V100-16")
    }
    context = simulated_context(
        folder,
        document,
        World(clock=clock, trace=Trace(times_s=(0.0, 3000.0, 3100.0), devices=devices)),
        clock=clock,
        decoder=decoder(document.job.model),
        search=QuickSearch(),
        policy=Policy.BEST,
        observer=SilentObserver(),
    )
    run_simulated(Controller(context).run(), clock)
    return folder
