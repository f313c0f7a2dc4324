"""A run in a seeded storm: nodes taken away, no capacity, API errors, dead controllers, slow nodes, moving prices."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from factories.quick_search import PRICE, QuickSearch, job
from sailor_cloud.errors import ProvisionError, TerraformError
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.replanning.replan import Policy
from sailor_cloud.launch.simulation.fleet import SimulatedFleet
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import OPTIONS, SilentObserver, simulated_context
from sailor_cloud.launch.simulation.time import SimulatedClock, run_simulated
from sailor_cloud.launch.simulation.world import World
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.teardown import close_books
from sailor_cloud.launch.telemetry.generation_log import generations, read_plan
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Goal
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.options import Ending
from sailor_cloud.run.receipt import Receipt
from sailor_cloud.run.state import OVER, fold
from sailor_cloud.workload import decoder

START = datetime(2026, 11, 21, tzinfo=UTC)
HORIZON_S = 14 * 3600.0
PLACES = {
    Place(zone, name): most
    for zone in ("us-central1-a", "us-central1-b")
    for name, most in (("A100-40", 4), ("V100-16", 6))
}


@dataclass(slots=True)
class Storm:
    """What a seed makes happen, and what came of it."""

    seed: int
    root: Path
    say: Callable[[str], None] = lambda text: None
    kills: int = 0
    faults: int = 0
    receipt: Receipt | None = None
    world: World = field(init=False)
    folder: RunFolder = field(init=False)
    document: PlanDocument = field(init=False)
    clock: SimulatedClock = field(init=False)
    _dice: random.Random = field(init=False)
    _search: QuickSearch = field(init=False)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.seed)
        dice = random.Random(self.seed + 1_000_000)
        self.clock = SimulatedClock(START)
        self._search = QuickSearch(self._price)
        goal = {"goal": dice.choice(list(Goal))}
        free = self._search(job(budget_usd=1e6, deadline=1e6).model_copy(update=goal))
        assert free.cost is not None
        assert free.cost.total_usd is not None
        assert free.prediction is not None
        # Limits between a little and a lot above what the undisturbed run needs.
        limits = {
            "budget_usd": free.cost.total_usd * dice.uniform(1.05, 3.0),
            "deadline": (600 + 3000 * free.prediction.iteration_s) * dice.uniform(1.1, 4.0),
        }
        self.document = replace(self._search(job(**limits).model_copy(update=goal)), as_of=START)
        slow = dice.uniform(0.0, 0.2)
        self.world = World(
            clock=self.clock,
            trace=_trace(dice),
            notice_s=dice.choice([0.0, 30.0]),
            slowness_of=lambda name: 1.6 if random.Random(f"{self.seed}{name}").random() < slow else 1.0,
        )
        self.folder = RunFolder.create(f"chaos-{self.seed}", root=self.root)

    def run(self) -> Receipt:
        assert self.document.plan is not None, "every storm begins with a plan"
        self.folder.write_document(self.document)
        Journal.of(self.folder, self.clock).append(Event.RUN_CREATED, job="chaos")
        self.receipt = run_simulated(self._through(), self.clock)
        return self.receipt

    @property
    def budget_usd(self) -> float:
        assert self.document.constraints.budget_usd is not None
        return self.document.constraints.budget_usd

    @property
    def refusals(self) -> int:
        """How often something could not be had."""
        return sum(entry.event is Event.NO_CAPACITY for entry in read(self.folder.journal_file))

    @property
    def slow_nodes(self) -> int:
        return sum(node.slowness > 1.0 for node in self.world.nodes.values())

    def _price(self, zone: str, accelerator: str) -> float:
        """Prices move every hour, each place on its own, between 0.6 and 1.8 times the usual."""
        hour = int(self.clock.elapsed_s // 3600)
        return PRICE[accelerator] * random.Random(f"{self.seed}{zone}{accelerator}{hour}").uniform(0.6, 1.8)

    def _trouble(self, call: str) -> None:
        """One in seven creations fails for no reason, and one in twenty questions to the cloud is not answered."""
        if self._dice.random() < (0.15 if call == "create" else 0.05):
            self.faults += 1
            error = TerraformError if call == "create" else ProvisionError
            raise error("googleapi: Error 503: The service is currently unavailable")

    async def _through(self) -> Receipt:
        """Start controllers until one comes to the end."""
        while True:
            if fold(read(self.folder.journal_file)).phase in OVER:
                fleet = SimulatedFleet(world=self.world, folder=self.folder)
                destroyed = await fleet.destroy(lambda progress: None)
                outcome = fold(read(self.folder.journal_file)).outcome
                ending = Ending(outcome) if outcome in set(Ending) else Ending.TORN_DOWN
                return close_books(
                    self.folder, self.document, destroyed, clock=self.clock, prices=UsagePrices(), ending=ending
                )
            task = asyncio.ensure_future(self._controller().run())
            done, _ = await asyncio.wait({task}, timeout=self._dice.expovariate(1 / (4 * 3600)))
            if done:
                return task.result().receipt
            self.kills += 1
            self.say(f"{self.clock.elapsed_s:.0f} s: the controller is killed")
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await asyncio.sleep(self._dice.uniform(60, 5400))

    def _controller(self) -> Controller:
        context = simulated_context(
            self.folder,
            self.document,
            self.world,
            clock=self.clock,
            decoder=decoder(self.document.job.model),
            search=self._search,
            policy=Policy.BEST,
            observer=SilentObserver(lambda text: self.say(f"{self.clock.elapsed_s:.0f} s: {text}")),
            options=OPTIONS,
            trouble=self._trouble,
        )
        context.document = read_plan(self.folder, max(generations(self.folder), default=1))
        return Controller(context)

    def problems(self) -> list[str]:
        """Return what must never happen and did."""
        assert self.receipt is not None
        found = []
        if self.receipt.spent_usd > self.budget_usd:
            found.append(f"spent {self.receipt.spent_usd} of {self.budget_usd} USD")
        if self.world.running():
            found.append(f"left running: {sorted(self.world.running())}")
        if not self.receipt.clean:
            found.append(f"not confirmed gone: {[row.name for row in self.receipt.left]}")
        unpaid = self._true_usd() - self.receipt.spent_usd
        if unpaid > 1e-6:
            found.append(f"the ledger lacks {unpaid} USD of what the nodes cost")
        every_s = self.document.job.checkpoint.every
        for steps, seconds in self.world.lost_steps:
            if seconds > every_s + 1e-6:
                found.append(f"{steps} steps lost, {seconds} s after the last checkpoint")
        return found

    def _true_usd(self) -> float:
        """What the nodes cost from their creation to their end, at the prices they and what came with them had."""
        assert self.receipt is not None
        prices: dict[str, float] = {}
        for line in self.receipt.lines:
            if line.unit == "h":
                name = line.key.split("/")[1]
                prices[name] = prices.get(name, 0.0) + line.usd_per_unit
        nodes = math.fsum(
            max(60.0, (self.clock.elapsed_s if node.gone_s is None else node.gone_s) - node.created_s)
            * prices.get(name, math.inf)
            / 3600
            for name, node in self.world.nodes.items()
        )
        return nodes


def _trace(dice: random.Random) -> Trace:
    times, moment = [0.0], 0.0
    counts = {place: [most] for place, most in PLACES.items()}
    while moment < HORIZON_S:
        moment += dice.expovariate(1 / dice.choice([900.0, 2400.0, 7200.0]))
        times.append(moment)
        for place, most in PLACES.items():
            calm = dice.random() < 0.7
            counts[place].append(counts[place][-1] if calm else dice.randint(0, most))
    return Trace(times_s=tuple(times), devices={place: tuple(row) for place, row in counts.items()})
