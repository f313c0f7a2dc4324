"""Links that are found far below their profile: what is told, and what a run does about it where it may."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date
from pathlib import Path

import pytest

from factories.chaos import START
from factories.documents import NOW
from factories.quick_runs import planned
from factories.quick_search import QuickSearch, job
from sailor_cloud import network, workload
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.controller import Controller
from sailor_cloud.launch.replanning.replan import Policy, Rates
from sailor_cloud.launch.replanning.search import CatalogSearch
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import OPTIONS, SilentObserver, simulated_context
from sailor_cloud.launch.simulation.time import SimulatedClock, run_simulated
from sailor_cloud.launch.simulation.world import World
from sailor_cloud.launch.telemetry.preflight import PROBE_BYTES
from sailor_cloud.model.document import LinkUse, Pick, PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.network import Place as Device
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal, read
from sailor_cloud.run.options import Ending, Outcome

A, B = "us-central1-a", "us-central1-b"
PLANNED = 2e9


@dataclass(slots=True)
class TwoZones:
    """A search whose plans over both zones take as much longer as the link between them is slower."""

    alone_s: float
    share: float = 1.0
    one: QuickSearch = field(default_factory=QuickSearch)

    def __call__(self, wanted: Job, choose: Pick | None = None) -> PlanDocument:
        entries = wanted.resources
        alone = [entry.model_copy(update={"zones": tuple(z for z in entry.zones if z == A)}) for entry in entries]
        within = wanted.model_copy(update={"resources": tuple(entry for entry in alone if entry.zones)})
        found = [self.predict(self.one(wanted)), self.predict(self.one(within))]
        return min((one for one in found if one.prediction), key=lambda one: one.prediction.iteration_s_replay)  # type: ignore[union-attr]

    def offers(self, wanted: Job) -> tuple[object, ...]:
        return self.one.offers(wanted)

    def update_link_speeds(self, rates: Rates) -> None:
        self.share = min(rates.values()) / PLANNED

    def migration_cost(self, known: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        return 0.0, 0.0

    def predict(self, known: PlanDocument) -> PlanDocument:
        if known.plan is None or known.prediction is None:
            return known
        offers = {offer.id: offer for offer in known.inputs.offers}
        joined = len({offers[node.offer].zone for node in known.plan.nodes}) > 1
        link = LinkUse(
            src_zone=A,
            dst_zone=B,
            bytes_per_iteration=1e6,
            bandwidth_bytes_per_s=PLANNED,
            rtt_ms=1.0,
            usd_per_gb=0.01,
            measured=True,
            source="test",
            as_of=date(2026, 11, 1),
        )
        seconds = 6.0 / self.share if joined else self.alone_s
        prediction = replace(known.prediction, iteration_s=seconds, iteration_s_replay=seconds)
        inputs = replace(known.inputs, links=(link,) if joined else ())
        return replace(known, prediction=prediction, inputs=inputs)


@dataclass(slots=True)
class Run:
    root: Path
    allowed: bool = True
    rate: float = 0.1 * PLANNED
    alone_s: float = 8.0
    notes: list[str] = field(default_factory=list)
    folder: RunFolder = field(init=False)

    def carry_out(self) -> Outcome:
        clock, search = SimulatedClock(START), TwoZones(self.alone_s)
        self.folder = RunFolder.create("links", root=self.root)
        document = search(job(budget_usd=200.0))
        assert document.inputs.links, "the plan has nodes in both zones"
        self.folder.write_document(document)
        Journal.of(self.folder, clock).append(Event.RUN_CREATED, job="links")
        places = {Place(zone, name): (9,) for zone in (A, B) for name in ("A100-40", "V100-16")}
        world = World(clock=clock, trace=Trace(times_s=(0.0,), devices=places), links={(A, B): self.rate})
        context = simulated_context(
            self.folder,
            document,
            world,
            clock=clock,
            decoder=workload.decoder(document.job.model),
            search=search,  # type: ignore[arg-type]
            policy=Policy.BEST,
            observer=SilentObserver(self.notes.append),
            options=replace(OPTIONS, replan_slow_links=self.allowed),
        )
        return run_simulated(Controller(context).run(), clock)

    def journal(self, event: Event) -> list[dict[str, object]]:
        return [entry.data for entry in read(self.folder.journal_file) if entry.event is event]


def test_a_slow_link_is_planned_around_once_where_that_is_wanted(tmp_path: Path) -> None:
    run = Run(tmp_path)
    outcome = run.carry_out()
    assert outcome.ending is Ending.COMPLETED, outcome.message
    assert run.journal(Event.LINKS_SLOW) == [{"links": [[A, B, 0.1 * PLANNED]]}]
    (decided,) = run.journal(Event.REPLANNED)
    assert decided["choice"] == "re-plan for slow links"
    assert len(run.journal(Event.GENERATION_STARTED)) == 2
    ended = run.journal(Event.GENERATION_ENDED)[0]
    assert ended["end"] == "handed over"
    steps = job().training.steps
    assert steps is not None
    assert int(str(ended["step"])) < 0.05 * steps, "long before hours are paid for"
    assert any(note.startswith("re-plan for slow links: switching") for note in run.notes)
    assert outcome.receipt.clean


def test_without_the_option_a_slow_link_is_only_reported(tmp_path: Path) -> None:
    run = Run(tmp_path, allowed=False)
    assert run.carry_out().ending is Ending.COMPLETED
    assert any("links far below the plan" in note and "90 % less" in note for note in run.notes)
    assert run.journal(Event.REPLANNED) == []


def test_a_link_near_its_profile_changes_nothing(tmp_path: Path) -> None:
    run = Run(tmp_path, rate=0.75 * PLANNED)
    assert run.carry_out().ending is Ending.COMPLETED
    assert run.journal(Event.LINKS_SLOW) == []


def test_a_slow_link_is_kept_where_every_other_plan_is_worse(tmp_path: Path) -> None:
    run = Run(tmp_path, rate=0.5 * PLANNED, alone_s=20.0)
    assert run.carry_out().ending is Ending.COMPLETED
    assert len(run.journal(Event.LINKS_SLOW)) == 1
    assert len(run.journal(Event.GENERATION_STARTED)) == 1
    assert "with the measured links no other plan is better after the cost of switching" in run.notes


@pytest.mark.parametrize("nbytes", [1e5, 8e6, 1e9])
def test_a_network_as_measured_is_slower_by_the_same_factor_and_never_faster(nbytes: float) -> None:
    known = network.load()
    src = Device(zone=A, node="n0", accelerator="A100-40", instance_type="a2-highgpu-1g")
    dst = Device(zone=B, node="n1", accelerator="A100-40", instance_type="a2-highgpu-1g")
    before = known.link(src, dst)
    rate = PROBE_BYTES / before.transfer_s(PROBE_BYTES)
    slow = known.as_measured({(A, B): rate / 4}, probe_bytes=PROBE_BYTES)
    assert slow.link(src, dst).bandwidth_bytes_per_s == pytest.approx(before.bandwidth_bytes_per_s / 4)
    assert slow.link(src, dst).transfer_s(nbytes) > 2 * before.transfer_s(nbytes)
    assert slow.link(dst, src) == known.link(dst, src), "the way back was not measured"
    assert known.link(src, dst) == before
    fast = known.as_measured({(A, B): rate * 4}, probe_bytes=PROBE_BYTES)
    assert fast.link(src, dst) == before


def test_a_plan_is_judged_by_the_links_that_were_learned() -> None:
    known = planned(steps=10)
    search = CatalogSearch(workload.decoder(known.job.model), FixedClock(NOW))
    before = search.predict(known)
    assert before.prediction is not None
    (link, *_) = before.inputs.links
    search.update_link_speeds({(link.src_zone, link.dst_zone): link.bandwidth_bytes_per_s / 1000})
    after = search.predict(known)
    assert after.prediction is not None
    assert after.prediction.iteration_s_replay > before.prediction.iteration_s_replay
    assert after.inputs.links[0].bandwidth_bytes_per_s < link.bandwidth_bytes_per_s / 100
