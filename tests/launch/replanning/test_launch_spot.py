"""Runs under a deadline: when they wait for spot capacity, when they pay for on-demand, and when they go back."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from factories.quick_search import ON_DEMAND, PRICE, SPEED, QuickSearch, job, search
from sailor_cloud.launch.replanning.refusals import Choice
from sailor_cloud.launch.replanning.remaining_job import Left
from sailor_cloud.launch.replanning.replan import Option, Policy, Situation, decide, growth
from sailor_cloud.launch.replanning.spot import Outlook, Pool, Seen, Way, seen
from sailor_cloud.launch.simulation.market import Place, Trace
from sailor_cloud.launch.simulation.replay import replay
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
    *, left_h: float, work_h: float, held: Market | None = None, refused_s: float = 0.0, known: Seen | None = None
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
        taken=frozenset(node.id for node in document.plan.nodes),
        left=Left(steps=wanted.training.steps, usd=1e6, seconds=left_h * HOUR),
        offers=offers,
        seen=known or {POOL: ((10 * HOUR, True), (0.0, False))},
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
    assert found.weighs_spot
    fast = replace(found, job=found.job.model_copy(update={"goal": Goal.MINIMIZE_TIME}))
    (entry,) = found.job.resources
    alone = found.job.model_copy(update={"resources": (entry.model_copy(update={"markets": (Market.SPOT,)}),)})
    for other in (fast, replace(found, job=alone)):
        assert not other.weighs_spot
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


def test_what_a_journal_says_of_spot_is_told_by_pool() -> None:
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
    assert seen(entries, NOW + timedelta(seconds=10)) == {POOL: [(7.0, True), (5.0, False), (4.0, False)]}


def test_the_policy_asks_a_premium_for_spot_and_gives_a_discount_for_what_may_come() -> None:
    spot = Way(work_s=20 * HOUR, usd_per_hour=0.3, pools=frozenset({POOL}), starts=True)
    on_demand = replace(spot, usd_per_hour=1.0, pools=frozenset())
    outlook = Outlook(
        seen={POOL: ((10 * HOUR, True), (0.0, False))},
        pools=frozenset({POOL}),
        refused=frozenset(),
        left_s=40 * HOUR,
        change_over_s=720.0,
        spot=spot,
        on_demand=on_demand,
        on_demand_s=20 * HOUR + 420,
        margin_s=1200.0,
    )
    # Twenty hours on demand cost 20 USD, on spot 6.
    assert 0.0 < outlook.risk_usd(spot) < 14.0
    assert -14.0 < outlook.risk_usd(on_demand) < 0.0
    held, waiting = replace(spot, starts=False), replace(spot, waits=True)
    kept = replace(outlook, seen={POOL: ((30 * HOUR, True),)})
    assert kept.risk_usd(held) < outlook.risk_usd(spot)
    often = replace(outlook, seen={POOL: tuple((ago_s * 900.0, ago_s % 2 == 0) for ago_s in range(40, -1, -1))})
    assert often.risk_usd(spot) > outlook.risk_usd(spot)
    shut = replace(outlook, refused=frozenset({POOL}))
    assert shut.risk_usd(waiting) > outlook.risk_usd(waiting)


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


def test_without_spot_a_controller_ends_on_demand_in_time() -> None:
    result = replayed([1, 0], 5.5, *BOTH)
    assert result.ending == "completed"
    assert PRICE[NAME] * 0.25 + ON_DEMAND * PRICE[NAME] * 3.8 < result.usd < ON_DEMAND * PRICE[NAME] * 4.3
