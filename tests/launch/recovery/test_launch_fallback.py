"""The loop that gets nodes: what is refused is left alone, planned around, and told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from factories.chaos import START
from factories.quick_search import PRICE, QuickSearch, job
from sailor_cloud.errors import NotSoldError, ProvisionError, QuotaError, StockoutError, TerraformError
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.fleet.fleet import Health, UnreachableError
from sailor_cloud.launch.recovery.growth import Growth
from sailor_cloud.launch.recovery.nodes import has_extra
from sailor_cloud.launch.replanning.replan import Option, Policy
from sailor_cloud.launch.simulation.fleet import SimulatedFleet, SimulatedLink
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import OPTIONS, SilentObserver, simulated_context
from sailor_cloud.launch.simulation.time import SimulatedClock, run_simulated
from sailor_cloud.launch.simulation.world import World
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.provision.provisioner import Applied
from sailor_cloud.provision.terraform.progress import Interrupt
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.options import Ending, LaunchOptions, Outcome
from sailor_cloud.workload import decoder

A, B = "us-central1-a", "us-central1-b"
ALL = {Place(A, "A100-40"): 4, Place(B, "A100-40"): 4, Place(A, "V100-16"): 6, Place(B, "V100-16"): 6}


@dataclass(slots=True)
class Simulated:
    """A run in simulated time, whose calls to the cloud go wrong as `trouble` says."""

    root: Path
    trace: Trace
    options: LaunchOptions = OPTIONS
    policy: Policy = Policy.BEST
    trouble: Callable[[str], None] = lambda call: None
    search: QuickSearch = field(default_factory=QuickSearch)
    notes: list[str] = field(default_factory=list)
    folder: RunFolder = field(init=False)
    clock: SimulatedClock = field(init=False)

    def run(self, wanted: Job | None = None) -> Outcome:
        self.clock = SimulatedClock(START)
        self.folder = RunFolder.create("fallback", root=self.root)
        document = self.search(wanted or job(budget_usd=200.0))
        self.folder.write_document(document)
        Journal.of(self.folder, self.clock).append(Event.RUN_CREATED, job="fallback")
        context = simulated_context(
            self.folder,
            document,
            World(clock=self.clock, trace=self.trace),
            clock=self.clock,
            decoder=decoder(document.job.model),
            search=self.search,
            policy=self.policy,
            observer=SilentObserver(self.notes.append),
            options=self.options,
            trouble=self.trouble,
        )
        return run_simulated(Controller(context).run(), self.clock)

    def told(self, words: str) -> list[str]:
        return [note for note in self.notes if words in note]

    def refused(self) -> list[list[str]]:
        entries = read(self.folder.journal_file)
        return [row for entry in entries if entry.event is Event.NO_CAPACITY for row in entry.data["refused"]]


def trace(**changes: int) -> Trace:
    """All that the job allows from the start on, except for what `changes` name."""
    named = {Place(zone, name): f"{zone[-1]}_{name[0].lower()}" for zone in (A, B) for name in ("A100-40", "V100-16")}
    return Trace(times_s=(0.0,), devices={place: (changes.get(key, ALL[place]),) for place, key in named.items()})


class Failing:
    """Refuses creations with what it is given, one after the other."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    def __call__(self, call: str) -> None:
        if self.errors and call == "create":
            raise self.errors.pop(0)


def test_a_stockout_is_planned_around_and_every_step_is_reported(tmp_path: Path) -> None:
    run = Simulated(tmp_path, trace(a_a=0))
    outcome = run.run()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert run.refused()[0] == ["vm-a100-40", "A100-40", A, "spot"]
    refused = run.told("refused: vm-a100-40 (A100-40, spot) in us-central1-a; not tried again for ")
    assert "not tried again for 10 min: no capacity for" in refused[0]
    step = run.told("re-plan: ")[0]
    assert "x vm-v100-16 (V100-16, spot) in us-central1-a" in step
    assert "USD to the end" in step
    assert outcome.receipt.clean


def test_without_fallback_a_stockout_ends_the_run_and_what_had_come_is_removed(tmp_path: Path) -> None:
    options = LaunchOptions(fallback=False)
    run = Simulated(tmp_path, trace(a_a=0), options=options, policy=Policy.NEVER)
    outcome = run.run()
    assert (outcome.ending, outcome.exit_code) == (Ending.FAILED, 1)
    assert "no capacity for" in outcome.message
    assert "--no-fallback forbids another plan" in outcome.message
    assert outcome.receipt.clean
    assert outcome.receipt.resources, "the nodes of the other zone had come"


def test_repeated_refusals_block_longer(tmp_path: Path) -> None:
    run = Simulated(tmp_path, trace(a_a=0))
    run.run()
    pauses = [note.partition("not tried again for ")[2].partition(" min")[0] for note in run.told("refused: ")]
    assert pauses[:4] == ["10", "20", "40", "40"]


def test_a_quota_is_named_and_left_alone_for_the_rest_of_the_run(tmp_path: Path) -> None:
    run = Simulated(tmp_path, trace(), trouble=Failing(QuotaError("NVIDIA_A100_GPUS in us-central1: limit 0, need 8")))
    outcome = run.run()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert run.told("not tried again for the rest of the run: NVIDIA_A100_GPUS in us-central1: limit 0, need 8")
    nodes = {line.part.partition(" ")[0] for line in outcome.receipt.lines if line.kind is CostKind.COMPUTE}
    assert nodes == {"vm-v100-16"}


def test_a_quota_on_all_types_of_a_region_refuses_them_all(tmp_path: Path) -> None:
    error = QuotaError("SSD_TOTAL_GB in us-central1: limit 500, need 600", regions=["us-central1"])
    run = Simulated(tmp_path, trace(), trouble=Failing(error))
    run.run()
    first = next(entry for entry in read(run.folder.journal_file) if entry.event is Event.NO_CAPACITY)
    refused = {(accelerator, zone) for _, accelerator, zone, _ in first.data["refused"]}
    assert refused == {(name, zone) for name in ("A100-40", "V100-16") for zone in (A, B)}


def test_a_type_that_its_zone_does_not_sell_is_left_alone_for_the_rest_of_the_run(tmp_path: Path) -> None:
    run = Simulated(tmp_path, trace(), trouble=Failing(NotSoldError("gcp does not sell this type in this zone")))
    outcome = run.run()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert run.told("not tried again for the rest of the run: gcp does not sell this type in this zone")


def test_a_refusal_is_forgotten_after_its_time_and_outlives_its_controller_until_then(tmp_path: Path) -> None:
    run = Simulated(tmp_path, trace(), trouble=Failing(StockoutError("none")))
    run.run()
    entries = [entry for entry in read(run.folder.journal_file) if entry.event is Event.NO_CAPACITY]
    from sailor_cloud.launch.replanning.refusals import blocked, refusals

    known = refusals(entries)
    begun = entries[0].ts
    assert {choice.zone for choice in blocked(known, begun)} == {A, B}
    assert blocked(known, begun + timedelta(seconds=OPTIONS.stockout_pause_s - 1))
    assert not blocked(known, begun + timedelta(seconds=OPTIONS.stockout_pause_s))


def test_errors_of_a_cloud_are_tried_again_with_longer_and_longer_pauses(tmp_path: Path) -> None:
    run = Simulated(tmp_path, trace(), trouble=Failing(*(TerraformError("googleapi: Error 503") for _ in range(6))))
    assert run.run().ending is Ending.COMPLETED
    assert [note.rpartition(" in ")[2] for note in run.told("trying again")] == [
        "10 s",
        "20 s",
        "40 s",
        "80 s",
        "160 s",
        "160 s",
    ]


def test_a_cloud_that_only_answers_with_errors_ends_the_run_with_its_words(tmp_path: Path) -> None:
    run = Simulated(tmp_path, trace(), trouble=Failing(*(TerraformError("googleapi: Error 503") for _ in range(7))))
    outcome = run.run()
    assert outcome.ending is Ending.FAILED
    assert outcome.message == "the same operation failed 7 times in a row, the last time: googleapi: Error 503"
    assert outcome.receipt.spent_usd == 0.0


def test_a_cloud_that_does_not_say_what_exists_is_asked_again(tmp_path: Path) -> None:
    silent = [ProvisionError("googleapi: Error 503"), ProvisionError("googleapi: Error 503")]

    def trouble(call: str) -> None:
        if call == "running" and silent:
            raise silent.pop()

    run = Simulated(tmp_path, trace(), trouble=trouble)
    assert run.run().ending is Ending.COMPLETED
    assert len(run.told("asking again in")) == 2


@pytest.mark.parametrize("silent", [False, True], ids=["at once", "at the next look"])
def test_nodes_bought_to_grow_without_use_are_released(
    silent: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {Place(A, "A100-40"): 1, Place(B, "A100-40"): 1}
    devices = {place: (most, small.get(place, 0), most) for place, most in ALL.items()}
    run = Simulated(tmp_path, Trace(times_s=(0.0, 1800.0, 3600.0), devices=devices))
    create, better = SimulatedFleet.create, Growth._better
    asked: list[float] = []
    idle_s: list[float] = []

    async def unjoined(fleet: SimulatedFleet, document: PlanDocument, **how: Any) -> Applied:
        """Buy, and fail afterwards once the run has lost nodes and grows."""
        world = fleet.world
        before = len(world.running())
        growing = world.now_s > 3600.0 and document.plan is not None and len(document.plan.nodes) > before > 0
        if growing and not asked:
            asked.append(world.now_s)
            await create(fleet, document, **how)
            raise ProvisionError("the clouds can't be joined: no")
        if asked and silent and len(asked) == 1:
            asked.append(world.now_s)
            raise TerraformError("googleapi: Error 503")
        applied = await create(fleet, document, **how)
        if asked and not idle_s:
            idle_s.append(world.now_s - asked[0])
            assert len(world.running()) < before, "what is idle goes before anything else is bought"
        return applied

    async def nothing_later(growth: Growth) -> Option | None:
        return None if asked else await better(growth)

    monkeypatch.setattr(SimulatedFleet, "create", unjoined)
    monkeypatch.setattr(Growth, "_better", nothing_later)
    outcome = run.run(job(budget_usd=200.0, deadline=36000.0))
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert idle_s[0] < (1300.0 if silent else 200.0)


def test_a_controller_that_takes_over_releases_what_another_had_bought_to_grow(tmp_path: Path) -> None:
    clock, search = SimulatedClock(START), QuickSearch()
    folder, many = RunFolder.create("grown", root=tmp_path), search(job(budget_usd=200.0))
    assert many.plan is not None
    few = replace(many, plan=replace(many.plan, nodes=many.plan.nodes[:1]))
    context = simulated_context(
        folder,
        few,
        World(clock=clock, trace=trace()),
        clock=clock,
        decoder=decoder(few.job.model),
        search=search,
        policy=Policy.NEVER,
        observer=SilentObserver(lambda note: None),
    )

    async def takes_over() -> None:
        await context.fleet.create(
            many, expires_at=context.expires_at, interrupt=Interrupt(), on_progress=lambda progress: None
        )
        assert has_extra(context, few)
        growth = Growth(context, SimpleNamespace(), idle=True)  # type: ignore[arg-type]
        async with growth.watching():
            await asyncio.sleep(600.0)

    run_simulated(takes_over(), clock)
    (kept,) = few.plan.nodes if few.plan is not None else ()
    assert not has_extra(context, few)
    assert set(context.fleet.world.running()) == {kept.id}  # type: ignore[attr-defined]


def test_growth_that_fails_makes_no_lost_node_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = {Place(A, "A100-40"): 1, Place(B, "A100-40"): 1}
    devices = {place: (most, small.get(place, 0), most) for place, most in ALL.items()}
    run = Simulated(tmp_path, Trace(times_s=(0.0, 1800.0, 3600.0), devices=devices))
    create, lost = SimulatedFleet.create, []

    async def losing(fleet: SimulatedFleet, document: PlanDocument, **how: Any) -> Applied:
        there = sorted(fleet.world.running())
        growing = document.plan is not None and len(document.plan.nodes) > len(there) > 0
        applied = await create(fleet, document, **how)
        if fleet.world.now_s > 3600.0 and growing and not lost:
            lost.append(there[0])
            fleet.world.remove(there[0])
            raise ProvisionError(f"1 of {len(applied.nodes)} nodes do not run: {there[0]}")
        return applied

    monkeypatch.setattr(SimulatedFleet, "create", losing)
    outcome = run.run(job(budget_usd=200.0, deadline=36000.0))
    assert outcome.ending is Ending.COMPLETED, outcome.message
    created = [entry.key for entry in read(run.folder.journal_file) if entry.event is Event.CREATED]
    assert lost
    assert sorted(set(created)) == sorted(created), "a name never stands for two nodes"


def test_refusals_without_end_are_bounded(tmp_path: Path) -> None:
    def refuse(call: str) -> None:
        if call == "create":
            raise StockoutError("never any")

    options = LaunchOptions(most_recoveries=3, stockout_pause_s=1.0, poll_s=20.0, watch_s=20.0)
    outcome = Simulated(tmp_path, trace(), options=options, trouble=refuse).run()
    assert outcome.ending is Ending.FAILED
    assert "gave up after 3 plans whose nodes were unavailable; the last reason: never any" in outcome.message


def test_a_run_waits_for_its_nodes_where_nothing_else_can_be_had(tmp_path: Path) -> None:
    times = (0.0, 2000.0, 2900.0)
    gone = Trace(times_s=times, devices={place: (most, 0, most) for place, most in ALL.items()})
    run = Simulated(tmp_path, gone)
    outcome = run.run()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    waited = run.told("wait and replace: ")
    assert waited
    assert all("USD to the end, the best option now; trying again in " in note for note in waited)
    decided = [e.data["choice"] for e in read(run.folder.journal_file) if e.event is Event.REPLANNED]
    assert decided[-2:] == ["wait and replace", "replace"]


@pytest.mark.parametrize("dearer", [False, True])
def test_today_s_prices_decide_between_replacing_and_replanning(dearer: bool, tmp_path: Path) -> None:
    """A zone's nodes are lost; bought again they cost what they cost now, not what they did at the start."""
    clock: list[SimulatedClock] = []

    def prices(zone: str, accelerator: str) -> float:
        moved = dearer and bool(clock) and clock[0].elapsed_s > 1000.0 and zone == A
        return PRICE[accelerator] * (100.0 if moved else 1.0)

    times = (0.0, 2000.0, 2001.0)
    devices = {place: (most, 0 if place == Place(A, "A100-40") else most, most) for place, most in ALL.items()}
    run = Simulated(tmp_path, Trace(times_s=times, devices=devices), search=QuickSearch(prices))
    original = run_simulated

    def watched(work: object, at: SimulatedClock) -> object:
        clock.append(at)
        return original(work, at)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("test_launch_fallback.run_simulated", watched)
        outcome = run.run(job(budget_usd=40.0))
    assert outcome.ending is Ending.COMPLETED, outcome.message
    second = [line for line in outcome.receipt.lines if line.kind is CostKind.COMPUTE][8:]
    assert any(f"in {A}" in line.what for line in second) is not dearer


@dataclass(slots=True)
class Silence:
    """The first four nodes do not answer while `lasts` says so, although their provider still has them."""

    lasts: Callable[[], bool]
    nodes: set[str] = field(default_factory=set)
    calls: int = 0

    def install(self, patch: pytest.MonkeyPatch, call: str) -> None:
        real_call, health = getattr(SimulatedLink, call), SimulatedLink.health

        async def silent(link: SimulatedLink, *arguments: object, **details: object) -> object:
            self.calls += 1
            if len(self.nodes) < 4:
                self.nodes.add(link.node.id)
            if link.node.id in self.nodes and self.lasts():
                raise UnreachableError(f"node {link.node.id}: connection lost")
            return await real_call(link, *arguments, **details)

        async def seen(link: SimulatedLink) -> Health:
            self.calls += 1
            return Health.UNREACHABLE if link.node.id in self.nodes and self.lasts() else await health(link)

        patch.setattr(SimulatedLink, call, silent)
        patch.setattr(SimulatedLink, "health", seen)


@pytest.mark.parametrize("call", ["ensure_agent", "command"])
def test_nodes_that_fall_silent_before_training_begins_are_planned_around(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A preempted node's connection ends seconds before its provider says that the node does."""
    run = Simulated(tmp_path, trace())
    Silence(lambda: True).install(monkeypatch, call)
    outcome = run.run()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    lost = [name for e in read(run.folder.journal_file) if e.event is Event.REPLANNED for name in e.data["lost"]]
    assert len(lost) >= 4
    assert run.told("connection lost")
    assert outcome.receipt.clean


@pytest.mark.parametrize("call", ["ensure_agent", "command"])
def test_a_node_that_answers_again_is_kept(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Simulated(tmp_path, trace())
    silence = Silence(lambda: silence.calls <= 40)
    silence.install(monkeypatch, call)
    outcome = run.run()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert run.told("connection lost")
    assert not any(e.event is Event.REPLANNED for e in read(run.folder.journal_file))
