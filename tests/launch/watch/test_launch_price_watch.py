from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from factories.chaos import START
from factories.quick_search import PRICE, QuickSearch, job
from sailor_cloud.errors import CredentialsError
from sailor_cloud.launch.context import RunContext
from sailor_cloud.launch.recovery.nodes import plan_nodes
from sailor_cloud.launch.replanning.replan import Policy
from sailor_cloud.launch.simulation.market import Trace
from sailor_cloud.launch.simulation.replay import SilentObserver, simulated_context
from sailor_cloud.launch.simulation.time import SimulatedClock, run_simulated
from sailor_cloud.launch.simulation.world import World
from sailor_cloud.launch.watch.price_watch import PriceWatch
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.provision.bookkeeping import ledger_key
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.units import usd_text
from sailor_cloud.workload import decoder

Refresh = Callable[[tuple[Provider, ...], tuple[str, ...]], None]


def context_of(root: Path, notes: list[str], refresh: Refresh | None, market: Market = Market.SPOT) -> RunContext:
    wanted = job(budget_usd=200.0)
    entries = tuple(entry.model_copy(update={"markets": (market,)}) for entry in wanted.resources)
    document = QuickSearch()(wanted.model_copy(update={"resources": entries}))
    clock = SimulatedClock(START)
    context = simulated_context(
        RunFolder.create("prices", root=root),
        document,
        World(clock=clock, trace=Trace(times_s=(0.0,), devices={})),
        clock=clock,
        decoder=decoder(document.job.model),
        search=QuickSearch(),
        policy=Policy.BEST,
        observer=SilentObserver(notes.append),
    )
    context.refresh = refresh
    return context


def open_nodes(context: RunContext) -> None:
    offers = context.document.inputs.offers_by_id()
    for node in plan_nodes(context.document):
        context.ledger.open_item(
            ledger_key(node.id),
            kind=CostKind.COMPUTE,
            what=node.id,
            usd_per_hour=offers[node.offer].usd_per_hour,
            since=START,
            price_source="test",
            price_as_of=START.date(),
        )


def test_prices_of_the_job_s_clouds_and_regions_are_asked_for(tmp_path: Path) -> None:
    asked: list[object] = []
    context = context_of(tmp_path, [], lambda providers, regions: asked.append((providers, regions)))
    run_simulated(PriceWatch(context).refresh(), SimulatedClock(START))
    assert asked == [((Provider("gcp"),), ("us-central1",))]


def test_a_refresh_that_fails_is_reported_once_and_ends_nothing(tmp_path: Path) -> None:
    notes: list[str] = []

    def refused(providers: tuple[Provider, ...], regions: tuple[str, ...]) -> None:
        raise CredentialsError("no rights to list SKUs")

    watch = PriceWatch(context_of(tmp_path, notes, refused))

    async def twice() -> None:
        await watch.refresh()
        await watch.refresh()

    run_simulated(twice(), SimulatedClock(START))
    assert notes == ["spot prices could not be refreshed; the plan continues with older ones: no rights to list SKUs"]


def test_open_spot_nodes_are_charged_the_newest_price(tmp_path: Path) -> None:
    notes: list[str] = []
    context = context_of(tmp_path, notes, lambda providers, regions: None)
    prices = dict(PRICE)
    context.search = QuickSearch(lambda zone, accelerator: prices[accelerator])
    open_nodes(context)
    before = context.ledger.usd_per_hour()
    nodes, offers = plan_nodes(context.document), context.document.inputs.offers_by_id()
    (name,) = {offers[node.offer].accelerator for node in nodes}
    clock = SimulatedClock(START)
    run_simulated(PriceWatch(context).refresh(), clock)
    assert (context.ledger.usd_per_hour(), notes) == (before, [])
    prices[name] *= 2.0
    context.clock.elapsed_s = 3600.0
    run_simulated(PriceWatch(context).refresh(), clock)
    assert context.ledger.usd_per_hour() == 2.0 * before
    assert context.ledger.spent_usd(START + timedelta(hours=2)) == pytest.approx(3.0 * before)
    zones = sorted({offers[node.offer].zone for node in nodes})
    assert notes == [f"vm-{name.lower()} spot in {zone} now costs {usd_text(prices[name])} USD/h" for zone in zones]


@pytest.mark.parametrize(("market", "wanted"), [(Market.SPOT, True), (Market.ON_DEMAND, False)])
def test_only_prices_that_move_are_watched(market: Market, wanted: bool, tmp_path: Path) -> None:
    watch = PriceWatch(context_of(tmp_path, [], lambda providers, regions: None, market))
    assert watch.enabled is wanted
    watch.context.refresh = None
    assert not watch.enabled


@pytest.mark.parametrize("bought", [False, True])
def test_a_controller_that_takes_over_nodes_asks_for_their_prices_first(bought: bool, tmp_path: Path) -> None:
    asked: list[object] = []
    context = context_of(tmp_path, [], lambda providers, regions: asked.append(providers))
    if bought:
        open_nodes(context)

    async def almost_two_hours() -> None:
        watch = asyncio.ensure_future(PriceWatch(context).run())
        await asyncio.sleep(7000.0)
        watch.cancel()

    run_simulated(almost_two_hours(), SimulatedClock(START))
    assert len(asked) == 1 + bought
