"""Runs under a deadline: when they wait for spot capacity, when they pay for on-demand, and when they go back."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from factories.quick_search import ON_DEMAND, PRICE, SPEED, QuickSearch, job, search
from sailor_cloud.launch.replanning.refusals import Choice
from sailor_cloud.launch.replanning.replan import Option, Policy, Situation, decide, growth
from sailor_cloud.launch.replanning.spot import Continuation, Kind, Pool, SpotHistory, SpotOutlook, spot_history
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import replay
from sailor_cloud.launch.spend.lifetime import Remaining
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.offer import Market
from sailor_cloud.run.journal import Entry, Event
from sailor_cloud.run.progress import Replayed
from sailor_cloud.workload import decoder

ZONE, NAME = "us-central1-a", "A100-40"
POOL = Pool(ZONE, f"vm-{NAME.lower()}")
HOUR = 3600.0
# One node, 12.5 s per iteration.
ITERATION_S = SPEED[NAME] * 24 + 0.5
NOW = datetime(2026, 11, 24, tzinfo=UTC)


def spot_job(*markets: Market, hours: float, deadline_h: float) -> Job:
    """So many hours of work on one node, at the least cost."""
    base = job(budget_usd=1e6, deadline=deadline_h * HOUR)
    (entry,) = base.resources
    entry = entry.model_copy(update={"zones": (ZONE,), "accelerators": {NAME: 1}, "markets": markets})
    training = base.training.model_copy(update={"steps": round(hours * HOUR / ITERATION_S)})
    return base.model_copy(update={"goal": Goal.MINIMIZE_COST, "resources": (entry,), "training": training})


BOTH = (Market.SPOT, Market.ON_DEMAND)


def document_of(found: Job, market: Market) -> PlanDocument:
    (entry,) = found.resources
    return replace(
        search(found.model_copy(update={"resources": (entry.model_copy(update={"markets": (market,)}),)})), job=found
    )


def situation(
    *,
    left_h: float,
    work_h: float,
    held: Market | None = None,
    refused_s: float = 0.0,
    known: SpotHistory | None = None,
) -> tuple[Situation, QuickSearch]:
    """A run whose node on spot was lost, unless one is `held`; `refused_s`: spot can't be asked for so long."""
    wanted, quick = spot_job(*BOTH, hours=work_h, deadline_h=left_h), QuickSearch()
    document = document_of(wanted, held or Market.SPOT)
    offers = {offer.id: offer for offer in quick.offers(wanted)}
    assert document.plan is not None
    spot = next(offer for offer in offers.values() if offer.market is Market.SPOT)
    found = Situation(
        job=wanted,
        document=document,
        survivors=document.plan.nodes if held else (),
        blocked={Choice.of(spot): refused_s} if refused_s else {},
        used_names=frozenset(node.id for node in document.plan.nodes),
        remaining=Remaining(steps=wanted.training.steps, usd=1e6, seconds=left_h * HOUR),
        offers=offers,
        spot_history=known or {POOL: ((10 * HOUR, True), (0.0, False))},
        margin_s=1200.0,
    )
    return found, quick


def markets_of(option: Option) -> list[Market]:
    assert option.document.plan is not None
    offers = option.document.inputs.offers_by_id()
    return sorted({offers[node.offer].market for node in option.document.plan.nodes})


@pytest.mark.parametrize(
    ("left_h", "refused_s", "best"),
    [
        # Twenty hours of work. There is time to wait, and spot costs a third.
        (60.0, 1200.0, "wait"),
        (60.0, 0.0, "spot"),
        # Spot that is there is taken as long as on-demand could still finish if it were lost at once.
        (24.0, 0.0, "spot"),
        (20.4, 0.0, "on-demand"),
        (20.75, 1200.0, "on-demand"),
    ],
)
def test_a_run_waits_for_spot_while_there_is_time_and_then_pays_for_on_demand(
    left_h: float, refused_s: float, best: str
) -> None:
    option = decide(*situation(left_h=left_h, work_h=20.0, refused_s=refused_s)).option
    assert option is not None
    assert ("wait" if option.wait_s else ", ".join(markets_of(option))) == best


def test_other_goals_and_jobs_without_on_demand_decide_as_before() -> None:
    found, quick = situation(left_h=20.4, work_h=20.0)
    assert found.uses_spot_policy
    fast = replace(found, job=found.job.model_copy(update={"goal": Goal.MINIMIZE_TIME}))
    (entry,) = found.job.resources
    alone = found.job.model_copy(update={"resources": (entry.model_copy(update={"markets": (Market.SPOT,)}),)})
    for other in (fast, replace(found, job=alone)):
        assert not other.uses_spot_policy
        option = decide(other, quick).option
        assert option is not None
        assert option.label == "replace"


@pytest.mark.parametrize(
    ("left_h", "held", "to"),
    [
        # Spot that is held is kept until on-demand could no longer make up for its loss.
        (24.0, Market.SPOT, None),
        (20.3, Market.SPOT, Market.ON_DEMAND),
        # On demand, the run goes back to spot where that may be asked again and there is time.
        (40.0, Market.ON_DEMAND, Market.SPOT),
        (20.3, Market.ON_DEMAND, None),
    ],
)
def test_a_run_leaves_spot_in_time_and_goes_back_to_it(left_h: float, held: Market, to: Market | None) -> None:
    found, quick = situation(left_h=left_h, work_h=20.0, held=held, known={POOL: ((10 * HOUR, True),)})
    option = growth(found, quick, least_gain_s=120.0)
    assert (None if option is None else markets_of(option)) == (None if to is None else [to])


def test_a_journal_s_observations_of_spot_are_grouped_by_pool() -> None:
    def entry(seq: int, event: Event, **changes: object) -> Entry:
        values = {"resource": "", "key": "", "data": {}} | changes
        return Entry(seq=seq, ts=NOW + timedelta(seconds=seq), event=event, **values)  # type: ignore[arg-type]

    place = {"zone": ZONE, "instance_type": POOL.instance_type}
    entries = [
        entry(1, Event.CREATE_INTENDED, resource="node", key="n0", data={**place, "market": "spot"}),
        entry(2, Event.CREATE_INTENDED, resource="node", key="n1", data={**place, "market": "on-demand"}),
        entry(3, Event.CREATED, resource="node", key="n0"),
        entry(4, Event.CREATED, resource="node", key="n1"),
        entry(5, Event.NODES_LOST, data={"nodes": ["n0", "n1"]}),
        entry(6, Event.NO_CAPACITY, data={"refused": [[POOL.instance_type, NAME, ZONE, "spot"]]}),
        entry(7, Event.NO_CAPACITY, data={"refused": [[POOL.instance_type, NAME, "us-central1-b", "on-demand"]]}),
    ]
    assert spot_history(entries, NOW + timedelta(seconds=10)) == {POOL: [(7.0, True), (5.0, False), (4.0, False)]}


SPOT_CONTINUATION = Continuation(work_s=20 * HOUR, usd_per_hour=0.3, pools=frozenset({POOL}), starts=True)
ON_DEMAND_CONTINUATION = replace(SPOT_CONTINUATION, usd_per_hour=1.0, pools=frozenset())


def chosen(*ways: Continuation, left_h: float, known: SpotHistory, trains_on_demand: bool = False) -> Kind:
    """Return what the policy does with 20 hours of work left and change-overs of twelve minutes."""
    outlook = SpotOutlook(
        spot_history=known,
        remaining_s=left_h * HOUR,
        change_over_s=720.0,
        on_demand=ON_DEMAND_CONTINUATION,
        on_demand_s=20 * HOUR,
        margin_s=1200.0,
        trains_on_demand=trains_on_demand,
    )
    return outlook.chosen([*ways, ON_DEMAND_CONTINUATION])


def test_an_absence_is_waited_for_with_half_of_the_slack_beyond_a_reserve() -> None:
    """The reserve is 12 change-overs, 2.4 hours; of the ten that the absence began with, 3.8 may be waited."""
    waits = replace(SPOT_CONTINUATION, wait_s=600.0)
    for waited_h, kind in ((0.0, Kind.WAIT), (3.6, Kind.WAIT), (3.7, Kind.ON_DEMAND)):
        known = {POOL: ((20 * HOUR, True), (waited_h * HOUR, False), (0.0, False))}
        assert chosen(waits, left_h=30 - waited_h, known=known) is kind
    lost = {POOL: ((20 * HOUR, True), (0.0, False))}
    assert chosen(waits, left_h=22.7, known=lost) is Kind.ON_DEMAND
    # What can be had is taken, whatever was waited.
    assert chosen(waits, SPOT_CONTINUATION, left_h=22.7, known=lost) is Kind.SPOT


def test_on_demand_nodes_are_left_for_spot_that_was_not_refused_for_a_while() -> None:
    """At 0.3 of the price that is 1.3 / 0.7 change-overs, 22 minutes."""
    for ago_s, kind in ((1200.0, Kind.ON_DEMAND), (1400.0, Kind.SPOT)):
        known = {POOL: ((10 * HOUR, True), (ago_s, False))}
        assert chosen(SPOT_CONTINUATION, left_h=30, known=known, trains_on_demand=True) is kind
    assert chosen(SPOT_CONTINUATION, left_h=30, known={}, trains_on_demand=True) is Kind.SPOT


def test_spot_that_saves_nothing_is_neither_taken_nor_waited_for() -> None:
    dear = replace(SPOT_CONTINUATION, usd_per_hour=1.0)
    for continuation in (dear, replace(dear, wait_s=600.0)):
        assert chosen(continuation, left_h=40, known={}) is Kind.ON_DEMAND


def replayed(up: list[int], deadline_h: float, *markets: Market) -> Replayed:
    """Run the whole controller for four hours of work while spot comes and goes, an entry per quarter of an hour."""
    wanted = spot_job(*markets, hours=4.0, deadline_h=deadline_h)
    times_s = tuple(index * HOUR / 4 for index in range(len(up)))
    trace = Trace(times_s=times_s, devices={Place(ZONE, NAME): tuple(up)}, spot_only=True)
    document = document_of(wanted, markets[0])
    return replay(document, trace, decoder=decoder(wanted.model), search=QuickSearch(), policy=Policy.BEST)


@pytest.mark.parametrize(("seed", "deadline_h"), [(1, 5.0), (2, 7.0)])
def test_a_controller_on_spot_never_misses_a_deadline_that_on_demand_can_keep(seed: int, deadline_h: float) -> None:
    draw, up = random.Random(seed), [1]
    while len(up) < 30:
        up += [draw.randint(0, 1)] * draw.choice((1, 1, 2, 3, 6, 10))
    result = replayed(up, deadline_h, *BOTH)
    assert (result.ending, result.message) == ("completed", "")
    assert result.seconds <= deadline_h * HOUR + 200
    # All on demand, and less than half an hour more for each preemption.
    assert result.usd < ON_DEMAND * PRICE[NAME] * (4.15 + 0.4 * result.preemptions)


def test_nothing_is_paid_while_a_controller_without_nodes_waits_for_spot() -> None:
    result = replayed([1] * 4 + [0] * 8 + [1] * 40, 16.0, *BOTH)
    assert (result.ending, result.preemptions) == ("completed", 1)
    assert result.seconds > 6 * HOUR
    # Four hours of work and two starts; the two hours between them cost nothing.
    assert result.usd < PRICE[NAME] * 4.6


def test_without_spot_a_controller_ends_on_demand_in_time() -> None:
    result = replayed([1, 0], 5.5, *BOTH)
    assert result.ending == "completed"
    assert PRICE[NAME] * 0.25 + ON_DEMAND * PRICE[NAME] * 3.8 < result.usd < ON_DEMAND * PRICE[NAME] * 4.3
