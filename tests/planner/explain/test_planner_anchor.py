"""Anchors: pipelines on demand that continue while spot capacity is gone, planned and replayed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import pytest

from factories.planning import AS_OF, data, example, make_space
from sailor_cloud import planner, workload
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.replanning.replan import Policy
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import replay
from sailor_cloud.model.document import Pick, PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.explain.anchor import OUTAGE_S, _risk, anchored
from sailor_cloud.planner.explaining import reasons
from sailor_cloud.run.progress import Replayed

ZONE = "us-central1-a"
HOUR = 3600.0


def job(deadline: str, *markets: str, goal: str = "minimize-cost", devices: int = 4) -> Job:
    """Four single A100 of one zone, for half a day."""
    entry = {
        "provider": "gcp",
        "zones": [ZONE],
        "markets": list(markets or ("spot", "on-demand")),
        "accelerators": {"A100-40": devices},
        "instance_types": ["a2-highgpu-1g"],
    }
    return example(
        "gcp-a100-v100.yaml", resources=[entry], constraints={"deadline": deadline}, training__steps=12000, goal=goal,
        training__global_batch_size=256,
    )  # fmt: skip


@cache
def planned(deadline: str, *markets: str, goal: str = "minimize-cost", devices: int = 4) -> PlanDocument:
    catalog, network, profiles = data()
    return planner.search(
        job(deadline, *markets, goal=goal, devices=devices),
        catalog=catalog,
        network=network,
        profiles=profiles,
        clock=FixedClock(AS_OF),
        options=planner.SearchOptions(decide=True),
    )


def seconds(document: PlanDocument) -> float:
    assert document.prediction is not None
    assert document.prediction.duration_s is not None
    return document.prediction.duration_s


def usd(document: PlanDocument) -> float:
    assert document.cost is not None
    assert document.cost.total_usd is not None
    return document.cost.total_usd


def tight() -> str:
    """A deadline that an outage of four hours would break with all nodes on spot."""
    return f"{int(seconds(planned('400h', 'on-demand', goal='minimize-time')) + 3 * HOUR)}s"


def market_of(document: PlanDocument) -> list[str]:
    assert document.plan is not None
    offers = document.inputs.offers_by_id()
    return sorted(offers[node.offer].market.value for node in document.plan.nodes)


@dataclass(frozen=True)
class Known:
    """A search that knows the plan with the anchor, that of all nodes on demand, and that of the anchor alone."""

    anchored: PlanDocument
    on_demand: PlanDocument
    alone: PlanDocument

    def __call__(self, wanted: Job, choose: Pick | None = None) -> PlanDocument:
        devices = sum(most for entry in wanted.resources for most in entry.accelerators.values())
        with_spot = any(Market.SPOT in entry.markets for entry in wanted.resources)
        found = self.alone if devices < 4 else self.anchored if with_spot else self.on_demand
        return replace(found, job=wanted)

    def offers(self, wanted: Job) -> tuple[Offer, ...]:
        return (*self.anchored.inputs.offers, *self.on_demand.inputs.offers)

    def update_link_speeds(self, rates: object) -> None:
        """Take no notice."""

    def migration_cost(self, document: PlanDocument, current: PlanDocument) -> tuple[float, float]:
        return 0.0, 0.0


def replayed(document: PlanDocument, *changes: tuple[float, int]) -> Replayed:
    """What comes of a plan where the zone has four devices, and from some seconds on other numbers of them."""
    times, there = (0.0, *(at_s for at_s, _ in changes)), (4, *(devices for _, devices in changes))
    trace = Trace(times_s=times, devices={Place(ZONE, "A100-40"): there})
    on_demand = (planned("400h", "on-demand", goal="minimize-time", devices=devices) for devices in (4, 2))
    known = Known(document, *on_demand)
    decoder = workload.job_decoder(document.job)
    return replay(document, trace, decoder=decoder, search=known, policy=Policy.BEST)  # type: ignore[arg-type]


def test_an_anchor_is_planned_where_one_outage_would_break_the_deadline() -> None:
    document = planned(tight())
    assert market_of(document) == ["on-demand", "on-demand", "spot", "spot"]
    anchor = document.anchor
    assert anchor is not None
    assert document.constraints.deadline is not None
    assert anchor.duration_s <= document.constraints.deadline < anchor.without_s
    assert usd(document) + anchor.saves_usd == pytest.approx(
        usd(planned("400h", "on-demand", goal="minimize-time")), rel=0.01
    )
    (told,) = [line for line in reasons(document) if line.startswith("an anchor of 2 nodes on demand costs")]
    assert "saves" in told


def test_the_choice_of_a_plan_with_an_anchor_has_the_figures_of_the_plan() -> None:
    document = planned(tight())
    assert document.decision is not None
    assert document.totals is not None
    (choice,) = [choice for choice in document.decision.choices if choice.chosen]
    figures = (choice.duration_s, choice.total_usd, choice.within_deadline, choice.within_limits)
    totals = document.totals
    assert figures == (seconds(document), usd(document), totals.within_deadline, totals.within_limits)


def test_a_node_on_demand_of_the_same_kind_leaves_the_risk_of_the_spot_nodes() -> None:
    document, spot = planned(tight()), planned("400h")
    assert document.anchor is not None
    assert spot.plan is not None
    assert document.plan is not None
    scenario = make_space(job("400h")).scenario
    assert _risk(document.plan, scenario, 10 * HOUR) == _risk(spot.plan, scenario, 10 * HOUR) > 0.0


def test_no_anchor_is_paid_for_where_there_is_time_or_nothing_can_be_had_on_demand() -> None:
    assert planned("400h").anchor is None
    assert set(market_of(planned("400h"))) == {Market.SPOT.value}
    assert planned(tight(), "spot").anchor is None


def test_a_plan_with_an_anchor_survives_an_outage_in_time_and_costs_less_than_all_on_demand() -> None:
    document = planned(tight())
    outage = (5 * HOUR, 2), (5 * HOUR + 3 * HOUR, 4)
    ours = replayed(document, *outage)
    assert (ours.ending, ours.preemptions) == ("completed", 2)
    assert document.constraints.deadline is not None
    assert ours.seconds <= document.constraints.deadline
    # It trained through the three hours, but for its restarts.
    assert ours.downtime_s < 1.5 * HOUR
    assert ours.usd < 0.83 * usd(planned("400h", "on-demand", goal="minimize-time"))


def test_more_spot_nodes_that_end_before_the_outage_matters_are_chosen_where_they_cost_less_than_an_anchor() -> None:
    late, more = planned(tight()), planned(tight(), devices=16)
    assert set(market_of(more)) == {Market.SPOT.value}
    assert len(market_of(more)) > len(market_of(late))
    assert usd(more) < usd(late)
    assert more.anchor is None
    assert more.constraints.deadline is not None
    assert seconds(more) + OUTAGE_S < more.constraints.deadline
    assert more.decision is not None
    assert any("would miss the deadline if spot capacity is lost once" in note for note in more.decision.notes)


def test_another_choice_is_taken_if_no_time_is_left_to_search_again() -> None:
    """Its row is joined with that of the chosen plan, and all differences are those to it."""
    document = planned("400h", devices=16)
    assert document.decision is not None
    chosen = next(choice for choice in document.decision.choices if choice.chosen)
    slow = seconds(document)
    late = replace(document, constraints=document.constraints.model_copy(update={"deadline": slow + HOUR}))
    space = make_space(job("400h", devices=16))
    found = anchored(late, space.scenario, space.candidates, lambda lost_s: None)
    assert found.decision is not None
    taken = next(choice for choice in found.decision.choices if choice.chosen)
    assert taken.plan == found.plan != chosen.plan
    assert seconds(found) + OUTAGE_S < slow + HOUR
    assert set(chosen.picks) < set(taken.picks)
    assert [choice.usd for choice in found.decision.choices] == sorted(choice.usd for choice in found.decision.choices)
    assert all("-" not in choice.why for choice in found.decision.choices)


def test_a_plan_on_spot_alone_is_also_late_and_ends_sooner() -> None:
    late, more = planned(tight(), "spot"), planned(tight(), "spot", devices=16)
    assert len(market_of(more)) > len(market_of(late)) == 4
    assert more.constraints.deadline is not None
    assert seconds(more) + OUTAGE_S < more.constraints.deadline < seconds(late) + OUTAGE_S


def test_a_plan_that_still_is_late_is_searched_for_once_more() -> None:
    document = planned("400h", devices=16)
    late = replace(document, constraints=document.constraints.model_copy(update={"deadline": seconds(document) + HOUR}))
    space, asked = make_space(job("400h", devices=16)), []

    def sooner(lost_s: float) -> Plan | None:
        asked.append(lost_s)
        return document.plan

    anchored(late, space.scenario, space.candidates, sooner)
    assert len(asked) == 2
    assert asked[0] == asked[1] > OUTAGE_S
