"""Runs a job against an availability trace: the whole controller, in simulated time."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.replanning.replan import Policy, Rates, Search
from sailor_cloud.launch.simulation.fleet import SimulatedFleet
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.time import SimulatedClock, run_simulated
from sailor_cloud.launch.simulation.world import World
from sailor_cloud.launch.spend.lifetime import life_s
from sailor_cloud.launch.telemetry.generation_log import recorded_generations
from sailor_cloud.launch.telemetry.notify import NoNotifier
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.document import Pick, PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Offer
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.options import LaunchOptions
from sailor_cloud.run.progress import Replayed, ResourceNews, RunProgress

# The controller looks at this interval in simulated time, so that a day takes seconds. On average it sees events later
# than in reality, by half of the interval.
LOOK_S = 20.0

OPTIONS = LaunchOptions(
    poll_s=LOOK_S,
    watch_s=LOOK_S,
    settle_s=0.0,
    silence_s=1e9,
    agent_timeout_s=1e9,
    growth_interval_s=600.0,
    teardown_reserve_s=180.0,
    most_recoveries=100_000,
)


@dataclass(slots=True)
class SilentObserver:
    """Keeps the time of the last step and passes notes on."""

    say: Callable[[str], None] = lambda text: None

    def note(self, text: str) -> None:
        self.say(text)

    def resource(self, news: ResourceNews) -> None:
        pass

    def progress(self, progress: RunProgress) -> None:
        pass

    def step(self, progress: RunProgress) -> None:
        pass

    def close(self) -> None:
        pass


def at_start(job: Job, trace: Trace) -> Job | None:
    """Return the job with the devices that a trace has at its start; None if it has none then.

    Raises RequestError if the trace never has any that the job allows.
    """
    allowed = {Place(zone, name) for entry in job.resources for zone in entry.zones for name in entry.accelerators}
    if not allowed & set(trace.places):
        raise RequestError(
            f"the trace names {_listed(trace.places)}, and the job allows {_listed(allowed)}: nothing is in both"
        )
    left: dict[Place, int] = {}
    entries = []
    for entry in job.resources:
        for zone in entry.zones:
            for name, most in entry.accelerators.items():
                place = Place(zone, name)
                here = min(most, left.setdefault(place, trace.available(place, 0.0)))
                left[place] -= here
                if here:
                    entries.append(entry.model_copy(update={"zones": (zone,), "accelerators": {name: here}}))
    return job.model_copy(update={"resources": tuple(entries)}) if entries else None


def _listed(places: Iterable[Place]) -> str:
    return ", ".join(f"{place.accelerator} in {place.zone}" for place in sorted(places)) or "no devices"


@dataclass(slots=True)
class CachedSearch:
    """A search with a cache, because policies ask similar questions."""

    search: Search
    _known: dict[str, PlanDocument] = field(default_factory=dict)

    def __call__(self, job: Job, choose: Pick | None = None) -> PlanDocument:
        key = f"{choose} {job.model_dump_json()}"
        if key not in self._known:
            self._known[key] = self.search(job, choose)
        return self._known[key]

    def purchase(self, job: Job, refused: Callable[[Offer], bool]) -> PlanDocument:
        return self.search.purchase(job, refused)

    def offers(self, job: Job) -> tuple[Offer, ...]:
        return self.search.offers(job)

    def update_link_speeds(self, rates: Rates) -> None:
        self.search.update_link_speeds(rates)
        self._known.clear()

    def predict(self, document: PlanDocument) -> PlanDocument:
        return self.search.predict(document)

    def migration_cost(self, document: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        return self.search.migration_cost(document, current)


def replay(
    document: PlanDocument,
    trace: Trace,
    *,
    decoder: Decoder,
    search: Search,
    policy: Policy,
    say: Callable[[float, str], None] = lambda at_s, text: None,
    options: LaunchOptions = OPTIONS,
) -> Replayed:
    """Carry out a plan while the trace's capacity changes, and return the result."""
    clock = SimulatedClock(document.as_of)
    with tempfile.TemporaryDirectory(prefix="sailor-replay-") as root:
        folder = RunFolder.create("replay", root=Path(root) / "runs")
        folder.write_document(document)
        Journal.of(folder, clock).append(Event.RUN_CREATED, job=document.job.name)
        world = World(clock=clock, trace=trace)
        observer = SilentObserver(lambda text: say(clock.elapsed_s, text))
        context = simulated_context(
            folder,
            document,
            world,
            clock=clock,
            decoder=decoder,
            search=search,
            policy=policy,
            observer=observer,
            options=options,
        )
        # The plan may be smaller than the job allows, because the trace began with little capacity.
        context.settled = True
        outcome = run_simulated(Controller(context).run(), clock)
        seconds = math.fsum(leg.monitor.trained_s for leg in recorded_generations(folder))
        done = sum(leg.monitor.steps_done for leg in recorded_generations(folder))
        return Replayed(
            policy=policy.value,
            ending=outcome.ending.value,
            message=outcome.message,
            steps=world.checkpoint_step,
            steps_again=max(0, done - world.checkpoint_step),
            seconds=clock.elapsed_s,
            downtime_s=clock.elapsed_s - seconds,
            usd=outcome.receipt.spent_usd,
            generations=len(recorded_generations(folder)),
            preemptions=world.preemptions,
        )


def simulated_context(
    folder: RunFolder,
    document: PlanDocument,
    world: World,
    *,
    clock: SimulatedClock,
    decoder: Decoder,
    search: Search,
    policy: Policy,
    observer: SilentObserver,
    options: LaunchOptions = OPTIONS,
    trouble: Callable[[str], None] = lambda call: None,
) -> RunContext:
    """Return the context of a controller that acts on a simulated world."""
    return RunContext(
        folder=folder,
        job_document=document,
        document=document,
        decoder=decoder,
        clock=clock,
        observer=observer,
        options=options,
        fleet=SimulatedFleet(world=world, folder=folder, trouble=trouble),
        search=search,
        policy=policy,
        notifier=NoNotifier(),
        started_at=clock.started_at,
        expires_at=clock.started_at + timedelta(seconds=life_s(document)),
    )
