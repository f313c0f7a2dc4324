"""Every kind of line on a bill, at prices made up here, against an amount computed by hand."""

from __future__ import annotations

import dataclasses
from datetime import date

import pytest

from factories.scenarios import GCP, TINY, chain, make_job, make_plan, make_scenario, offer_in, two_stage_plan
from sailor_cloud.catalog import Catalog, Interruptions, Service, ServicePrice
from sailor_cloud.catalog.files.offer_file import OfferBook
from sailor_cloud.catalog.prices.interruptions import InterruptionTable
from sailor_cloud.catalog.prices.services import Services
from sailor_cloud.errors import DataError
from sailor_cloud.model.document import Cost, CostKind, CostLine
from sailor_cloud.model.job import Job, NetworkAccess
from sailor_cloud.model.offer import Confidence, Market, Provider, Terms
from sailor_cloud.model.plan import PipelineSchedule
from sailor_cloud.network import Network
from sailor_cloud.network.egress import EgressRow, EgressTable, Payer, egress_key
from sailor_cloud.network.estimates import ZoneInfo
from sailor_cloud.simulator.bill import bill, bucket_place, checkpoint_s, hours
from sailor_cloud.simulator.layout import Layout, lay_out
from sailor_cloud.simulator.money import (
    egress_usd_per_byte,
    preemptions_per_hour,
    run_usd,
    service_kind,
    service_part,
    services_with,
    worst_instance_usd_per_hour,
)
from sailor_cloud.simulator.scenario import Scenario

PRICED = date(2026, 11, 20)
# 0.146 USD per GiB and month of 730 hours is 0.02 USD an hour for a disk of 100 GiB.
PRICES = {
    Service.DISK_BALANCED: (0.146, "GiB-month"),
    Service.DISK_HYPERDISK: (0.073, "GiB-month"),
    Service.PUBLIC_ADDRESS: (0.005, "hour"),
    Service.NAT_GATEWAY: (0.045, "hour"),
    Service.NAT_DATA: (0.05, "GB"),
    Service.OBJECT_STORAGE: (0.73, "GiB-month"),
    Service.OBJECT_WRITES: (0.005, "1000 requests"),
}
CENTRAL, WEST = "us-central1-a", "us-west1-b"


def services(*clouds: str) -> Services:
    return Services(
        ServicePrice(
            provider=Provider(cloud),
            region="*",
            service=service,
            usd_per_unit=usd,
            unit=unit,
            as_of_from=PRICED,
            as_of_to=PRICED,
            source="hand",
            confidence=Confidence.HIGH,
        )
        for cloud in clouds
        for service, (usd, unit) in PRICES.items()
    )


def network() -> Network:
    """0.02 USD per GB to the sender between regions, 0.01 USD to either side between zones of a region."""
    shared = {"provider": Provider("gcp"), "src": "*", "dst": "*", "unit": "GB", "tier": "all", "source": "hand"}
    dates = {"as_of_from": PRICED, "as_of_to": PRICED, "confidence": Confidence.HIGH}

    def row(scope: str, payer: Payer, usd: float) -> EgressRow:
        return EgressRow(src_scope=scope, dst_scope=scope, payer=payer, usd_per_unit=usd, **shared, **dates)

    rows = {
        egress_key("gcp", "egress-group", "us", "egress-group", "us"): [row("egress-group", Payer.SENDER, 0.02)],
        egress_key("gcp", "other-zone", "*", "other-zone", "*"): [
            row("other-zone", Payer.SENDER, 0.01),
            row("other-zone", Payer.RECEIVER, 0.01),
        ],
    }
    zones = [
        ZoneInfo(
            name=zone,
            provider=Provider("gcp"),
            region=zone.rpartition("-")[0],
            egress_group="us",
            latitude=None,
            longitude=None,
        )
        for zone in (CENTRAL, "us-central1-b", WEST)
    ]
    return Network(zones=zones, curves=(), instances=(), region_pairs={}, egress=EgressTable(rows))


def scenario_of(job: Job) -> Scenario:
    """A100 nodes in two regions: 10 USD/h on demand, 4 USD/h on spot, of which us-west1 takes 36.5 % away a month."""
    shipped = make_scenario(job)
    found = [
        offer_in(shipped, zone, "A100-40", market=market)
        for zone in (CENTRAL, WEST)
        for market in (Market.ON_DEMAND, Market.SPOT)
    ]
    prices = {Market.ON_DEMAND: 10.0, Market.SPOT: 4.0}
    offers = [
        dataclasses.replace(offer, usd_per_hour=prices[offer.market], as_of_from=PRICED, as_of_to=PRICED)
        for offer in found
    ]
    stated = Interruptions(
        provider=Provider("gcp"),
        region="us-west1",
        instance_type="a2-highgpu-1g",
        low=0.0,
        high=0.365,
        saving=None,
        as_of=PRICED,
        source="hand",
    )
    known = shipped.catalog
    made_up = Catalog(
        offers=OfferBook.of(offers),
        accelerators=[known.accelerator("A100-40")],
        zones=[known.zone(CENTRAL), known.zone(WEST)],
        regions=known.regions(Provider("gcp")),
        services=services("gcp"),
        interruptions=InterruptionTable([stated]),
        recorded=tuple,
        sources=(),
    )
    by_id = {offer.id: offer for offer in offers}
    return dataclasses.replace(shipped, offers=by_id, catalog=made_up, network=network())


def bill_of(
    west: Market = Market.ON_DEMAND,
    access: NetworkAccess = NetworkAccess.PUBLIC_SSH,
    *,
    second: str = WEST,
    steps: int | None = 1000,
) -> Cost:
    """One hour of training, 1,000 iterations of 3.6 s, on one node in each region; 2 GB go west.

    A checkpoint every 36 s, 100 in the hour; the newest three are kept in us-central1.
    """
    job = make_job(model=TINY, resources=[GCP], steps=steps)
    changes = {
        "cloud": job.cloud.model_copy(update={"network": access}),
        "checkpoint": job.checkpoint.model_copy(update={"every": 36.0, "keep": 3}),
    }
    scenario = scenario_of(job.model_copy(update=changes))
    offers = [offer_in(scenario, CENTRAL, "A100-40"), offer_in(scenario, second, "A100-40", market=west)]
    plan = make_plan(scenario, [chain(0, offers, (0, 4, 8), microbatch_size=2, microbatches=12)])
    return bill(lay_out(plan, scenario), {(CENTRAL, WEST): 2e6}, 3.6)


# The larger stage has 643,968 parameters of 12 bytes: at 537.8 MB/s a checkpoint takes 0.01436953 s, all of them
# 0.0003991537 h. With 420 s of start-up and 120 s of teardown a node is paid for 1.1503991537 h.
BY_HAND = {
    ("compute", "on-demand in us-central1-a"): 10.0,
    ("compute", "on-demand in us-west1-b"): 10.0,
    ("disk", "disk-balanced of 100 GiB"): 0.02300798307,
    ("address", "public-address"): 0.00575199577,
    # 2 GB at 0.02 USD.
    ("egress", "us-central1-a to us-west1-b, paid by us-central1-a"): 0.04,
    ("checkpoint", "on-demand in us-central1-a, stalled for checkpoints"): 0.003991537,
    # 3 x 1,271,808 parameters of 12 bytes are 0.04264068604 GiB, at 0.001 USD an hour.
    ("checkpoint", "3 checkpoints kept in gcp us-central1"): 0.00004905381,
    # 100 times 2.9109375 parts of 5 MiB and two files.
    ("checkpoint", "writing checkpoints"): 0.00245546875,
    # 100 times 627,840 parameters of 12 bytes are 0.753408 GB.
    ("checkpoint", "checkpoints from us-west1-b to us-central1, paid by us-west1-b"): 0.01506816,
    ("startup", "on-demand in us-central1-a, start-up"): 1.1666666667,
    ("teardown", "on-demand in us-central1-a, teardown"): 0.3333333333,
}

# With spot in the west a node is lost 0.0005 times an hour, and with it 18 s of work and 420 s of start-up: 0.219 s.
SPOT_BY_HAND = {
    ("compute", "spot in us-west1-b"): (4.0, 10.0),
    ("recovery", "on-demand in us-central1-a, lost to preemption"): (0.00060833333, 0.001825),
    ("recovery", "spot in us-west1-b, lost to preemption"): (0.00024333333, 0.001825),
    ("startup", "spot in us-west1-b, start-up"): (0.4666666667, 1.1666666667),
    ("teardown", "spot in us-west1-b, teardown"): (0.1333333333, 0.3333333333),
    # 0.0000608333 h more than without preemption, and three times as much in the worst case.
    ("disk", "disk-balanced of 100 GiB"): (0.02300919974, 0.02301163307),
}

# A gateway at 0.045 USD/h and its address; 3 GB of packages at 0.05 USD for the one node of each region.
PRIVATE_BY_HAND = {
    ("address", "nat-gateway"): 0.05176796192,
    ("address", "public-address"): 0.00575199577,
    ("address", "packages through NAT in us-west1"): 0.15,
}


def lines_of(cost: Cost, kind: str, text: str) -> list[CostLine]:
    found = [line for line in cost.lines if line.kind == kind and text in line.what]
    assert found, f"{kind} {text} is not on the bill"
    return found


@pytest.mark.parametrize(("kind", "text"), BY_HAND)
def test_a_line_costs_the_amount_computed_by_hand(kind: str, text: str) -> None:
    for line in lines_of(bill_of(), kind, text):
        assert (line.usd, line.worst_usd) == (pytest.approx(BY_HAND[kind, text]),) * 2


@pytest.mark.parametrize(("kind", "text"), SPOT_BY_HAND)
def test_a_line_with_spot_costs_the_amount_computed_by_hand(kind: str, text: str) -> None:
    for line in lines_of(bill_of(Market.SPOT), kind, text):
        assert (line.usd, line.worst_usd) == pytest.approx(SPOT_BY_HAND[kind, text])


@pytest.mark.parametrize(("kind", "text"), PRIVATE_BY_HAND)
def test_a_line_of_private_nodes_costs_the_amount_computed_by_hand(kind: str, text: str) -> None:
    for line in lines_of(bill_of(access=NetworkAccess.PRIVATE), kind, text):
        assert (line.usd, line.worst_usd) == (pytest.approx(PRIVATE_BY_HAND[kind, text]),) * 2


def test_every_kind_of_line_has_an_amount_computed_by_hand() -> None:
    assert {kind for kind, _ in (*BY_HAND, *SPOT_BY_HAND)} == set(CostKind)
    # Instances of either region with all that comes with them, and the traffic.
    assert bill_of().total_usd == pytest.approx(2 * 11.50399153719 + 2 * 0.02875997884 + 0.05757268256)


def test_every_island_writes_its_weights_and_the_first_what_all_share() -> None:
    job = make_job(model=TINY, resources=[GCP], steps=1000, sync_every=100)
    scenario = scenario_of(
        job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"every": 36.0, "keep": 3})})
    )
    west, central = (offer_in(scenario, zone, "A100-40") for zone in (WEST, CENTRAL))
    chains = [chain(p, [offer], (0, 8), microbatch_size=2, microbatches=6) for p, offer in enumerate((central, west))]
    layout = lay_out(make_plan(scenario, chains), scenario)
    cost = bill(layout, {}, 3.6)
    # 100 times the west's 1,239,040 parameters of 12 bytes are 1.486848 GB, at 0.02 USD.
    (moved,) = lines_of(cost, "checkpoint", "checkpoints from us-west1-b to us-central1, paid by us-west1-b")
    assert moved.usd == pytest.approx(0.02973696)
    # With 20 bytes of each in the centre 100 times 7.5625 parts of 5 MiB and two files, at 0.005 USD for a thousand.
    (writes,) = lines_of(cost, "checkpoint", "writing checkpoints")
    assert writes.usd == pytest.approx(0.00478125)
    # Those 20 bytes of the slower share at 537.8 MB/s.
    assert checkpoint_s(layout) == pytest.approx(24780800 / 537.8e6, rel=1e-3)


@pytest.mark.parametrize(
    ("west", "access", "rate", "worst"),
    [
        # 0.02 USD for each disk, 0.005 USD for each address, 0.04 USD of traffic an hour.
        (Market.ON_DEMAND, NetworkAccess.PUBLIC_SSH, 20.09, 20.09),
        (Market.SPOT, NetworkAccess.PUBLIC_SSH, 14.09, 20.09),
        # 0.045 USD more for the gateway of each region.
        (Market.SPOT, NetworkAccess.PRIVATE, 14.18, 20.18),
    ],
)
def test_rates_are_those_computed_by_hand(west: Market, access: NetworkAccess, rate: float, worst: float) -> None:
    cost = bill_of(west, access)
    assert (cost.usd_per_hour, cost.worst_case_usd_per_hour) == pytest.approx((rate, worst))
    assert cost.usd_per_iteration == pytest.approx(rate / 1000)


def test_both_sides_pay_for_traffic_between_zones_where_both_are_billed() -> None:
    found = network().egress(CENTRAL, "us-central1-b")
    assert [(price.payer_zone, price.usd_per_gb) for price in found] == [(CENTRAL, 0.01), ("us-central1-b", 0.01)]


@pytest.mark.parametrize(
    ("provider", "per_day"),
    # 15 % a day; 20 % a month of 730 hours is 0.6575 % a day.
    [(Provider("gcp"), 0.15), (Provider("aws"), 0.006575342)],
)
def test_preemption_that_nobody_states_is_a_few_percent_a_day(provider: Provider, per_day: float) -> None:
    scenario = scenario_of(make_job(model=TINY, resources=[GCP]))
    spot = offer_in(scenario, CENTRAL, "A100-40", market=Market.SPOT)
    rate = preemptions_per_hour(dataclasses.replace(spot, provider=provider), scenario.catalog)
    assert 24 * rate == pytest.approx(per_day)


def test_nodes_of_one_region_share_the_lines_of_what_comes_with_them() -> None:
    # One on demand and one on spot, of which 15 % a day are lost and with each 438 s: 0.0007604167 h. Two disks of 0.02
    # USD/h and two addresses of 0.005 USD/h.
    cost = bill_of(Market.SPOT, second=CENTRAL)
    (disks,) = lines_of(cost, "disk", "2 x disk-balanced of 100 GiB")
    (addresses,) = lines_of(cost, "address", "2 x public-address")
    assert (disks.usd, addresses.usd) == pytest.approx((0.04604638282, 0.0115115957))


def test_without_a_number_of_steps_the_bill_is_that_of_an_hour_of_training() -> None:
    cost = bill_of(Market.SPOT, steps=None)
    assert not [line for line in cost.lines if line.kind in (CostKind.STARTUP, CostKind.TEARDOWN)]
    assert [line.usd for line in lines_of(cost, "compute", "")] == [10.0, 4.0]
    assert [line.usd for line in lines_of(cost, "egress", "")] == [pytest.approx(0.04)]
    (_, lost) = lines_of(cost, "recovery", "(checkpoint every 36.0 s, best 7 min 35 s)")
    assert lost.usd == pytest.approx(0.00024333333)
    assert cost.usd_per_hour == pytest.approx(14.09)


def test_a_best_checkpoint_interval_beyond_the_run_is_not_shown() -> None:
    """A step takes 3.6 s."""
    for steps, told in ((1000, "best 7 min 35 s"), (10, "the best interval is longer than the run")):
        *_, lost = lines_of(bill_of(Market.SPOT, steps=steps), "recovery", "lost to preemption")
        assert lost.what.endswith(f"(checkpoint every 36.0 s, {told})")


def test_a_price_that_is_stale_may_have_risen_by_a_fifth() -> None:
    scenario = scenario_of(make_job(model=TINY, resources=[GCP]))
    offer = dataclasses.replace(offer_in(scenario, CENTRAL, "A100-40"), as_of_from=date(2026, 1, 1))
    assert worst_instance_usd_per_hour(offer, scenario) == pytest.approx(12.0)


@pytest.mark.parametrize(("per_hour", "usd"), [(10.0, 100.0), (0.1, 1.0)])
def test_prepaid_capacity_at_a_stale_price_may_cost_a_fifth_more(per_hour: float, usd: float) -> None:
    scenario = scenario_of(make_job(model=TINY, resources=[GCP], steps=10))
    terms = Terms(name="flex", nodes=2, least_s=36000.0)
    stale = {"as_of_from": date(2026, 1, 1), "usd_per_hour": per_hour}
    offer = dataclasses.replace(offer_in(scenario, CENTRAL, "A100-40"), terms=terms, **stale)
    scenario = dataclasses.replace(scenario, offers={offer.id: offer})
    plan = make_plan(scenario, [chain(0, [offer], (0, 8), microbatch_size=2, microbatches=12)])
    (line,) = [line for line in bill(lay_out(plan, scenario), {}, 1.0).lines if line.unit == "reserved hour"]
    assert (line.usd, line.worst_usd, line.stale) == (pytest.approx(usd), pytest.approx(1.2 * usd), True)
    assert line.quantity == pytest.approx(10.0)


def test_a_line_is_known_to_the_ledger_by_its_part_or_by_its_text() -> None:
    cost = bill_of(second=CENTRAL)
    (disks,) = lines_of(cost, "disk", "2 x disk-balanced of 100 GiB")
    (writes,) = lines_of(cost, "checkpoint", "writing checkpoints")
    assert (disks.part, writes.part) == ("disk-balanced of 100 GiB", "writing checkpoints")
    assert not disks.stale


def test_a_spot_price_without_an_on_demand_price_is_the_worst_case() -> None:
    scenario = scenario_of(make_job(model=TINY, resources=[GCP]))
    spot = offer_in(scenario, CENTRAL, "A100-40", market=Market.SPOT)
    rare = dataclasses.replace(spot, instance_type="rare", accelerator="L4-24", usd_per_hour=0.5)
    assert worst_instance_usd_per_hour(rare, scenario) == 0.5


def test_bytes_inside_a_zone_cost_nothing() -> None:
    scenario = scenario_of(make_job(model=TINY, resources=[GCP]))
    assert egress_usd_per_byte(CENTRAL, CENTRAL, scenario) == 0.0
    assert egress_usd_per_byte(CENTRAL, WEST, scenario) == pytest.approx(2e-11)


def test_the_estimate_of_a_run_is_what_was_computed_by_hand() -> None:
    # An hour of training and 540 s around it. A node is lost 0.001 times an hour, and with it 300 s of work and 420 s
    # of start-up: 0.72 s, at worst 2.16 s. 1 USD of traffic.
    expected, worst = run_usd(
        usd_per_hour=10.0,
        worst_usd_per_hour=20.0,
        iteration_s=3.6,
        egress_usd_per_iteration=0.001,
        steps=1000,
        provider=Provider("gcp"),
        preemptions_per_hour=0.001,
    )
    assert (float(expected), float(worst)) == pytest.approx((12.502, 24.012))


def test_a_disk_is_priced_by_its_type() -> None:
    """A3 Ultra takes Hyperdisk alone: 100 GiB at 0.073 USD a month are 0.01 USD an hour, half of the others here."""
    catalog = scenario_of(make_job(model=TINY, resources=[GCP], steps=1)).catalog
    usual = catalog.offers(zones=[CENTRAL])[0]
    for kind, usd, part in (
        ("a3-ultragpu-8g", 0.01, "disk-hyperdisk of 100 GiB"),
        ("a2-highgpu-1g", 0.02, "disk-balanced of 100 GiB"),
        ("a9-newgpu-8g", 0.02, "disk-balanced of 100 GiB"),
    ):
        offer = dataclasses.replace(usual, instance_type=kind)
        (disk, amount), _ = services_with(offer, catalog, NetworkAccess.PUBLIC_SSH)
        assert (service_kind(disk.service), service_part(disk.service)) == (CostKind.DISK, part)
        assert (amount, disk.source, disk.as_of_from) == (pytest.approx(usd), "hand", PRICED)


@pytest.mark.parametrize(("steps", "waiting"), [(10, 2.0), (None, 0.0)])
def test_nodes_are_waited_for_before_a_run_and_not_before_an_hour_of_one(steps: int | None, waiting: float) -> None:
    scenario = scenario_of(make_job(model=TINY, resources=[GCP], steps=steps))
    later = Terms(name="flex", nodes=1, wait_s=7200.0)
    offer = dataclasses.replace(offer_in(scenario, CENTRAL, "A100-40"), terms=later)
    scenario = dataclasses.replace(scenario, offers={offer.id: offer})
    plan = make_plan(scenario, [chain(0, [offer], (0, 8), microbatch_size=2, microbatches=12)])
    found = hours(lay_out(plan, scenario), 1.0)
    assert found.waiting == waiting
    assert found.duration == pytest.approx(found.total + waiting)


def test_a_bucket_of_a_cloud_without_nodes_counts_as_in_the_first_zone_of_that_cloud() -> None:
    job = make_job(model=TINY, resources=[GCP], steps=10)
    job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"to": "s3://theirs/checkpoints"})})
    known, scenario = make_scenario(job).catalog, scenario_of(job)
    zones = [known.zone(name) for name in (CENTRAL, WEST, "use2-az1", "use1-az4")]
    offer = offer_in(scenario, CENTRAL, "A100-40")
    catalog = Catalog(
        offers=OfferBook.of([offer]),
        accelerators=[known.accelerator("A100-40")],
        zones=zones,
        regions=[*known.regions(Provider("gcp")), *known.regions(Provider("aws"))],
        services=services("gcp", "aws"),
        interruptions=InterruptionTable([]),
        recorded=tuple,
        sources=(),
    )
    plan = make_plan(scenario, [chain(0, [offer], (0, 8), microbatch_size=2, microbatches=12)])
    # The network here has no zone of AWS, and names the one that it is asked for.
    with pytest.raises(DataError, match="no zone 'use1-az4'"):
        bill(lay_out(plan, dataclasses.replace(scenario, catalog=catalog)), {}, 1.0)


def test_nodes_that_are_paid_whole_are_paid_for_longer_where_the_worst_case_is_longer() -> None:
    """The least that is paid lies between the expected time and the worst: it is paid whole."""
    base = scenario_of(make_job(model=TINY, resources=[GCP], steps=1000))
    spot = offer_in(base, WEST, "A100-40", market=Market.SPOT)

    def laid(least_s: float) -> Layout:
        offer = dataclasses.replace(spot, terms=Terms(name="flex", nodes=1, least_s=least_s))
        scenario = dataclasses.replace(base, offers={offer.id: offer})
        plan = make_plan(scenario, [chain(0, [offer], (0, 8), microbatch_size=2, microbatches=12)])
        return lay_out(plan, scenario)

    paid = hours(laid(1.0), 3.6)
    assert paid.worst_total > paid.total
    least = (paid.total + paid.worst_total) / 2.0
    (line,) = [line for line in bill(laid(least * 3600.0), {}, 3.6).lines if line.unit == "reserved hour"]
    assert (line.usd, line.worst_usd) == pytest.approx((4.0 * least, 10.0 * paid.worst_total), rel=1e-9)


def test_an_hour_of_nodes_that_are_paid_whole_costs_an_hour() -> None:
    scenario = scenario_of(make_job(model=TINY, resources=[GCP], steps=None))
    terms = Terms(name="flex", nodes=1, least_s=36000.0)
    offer = dataclasses.replace(offer_in(scenario, CENTRAL, "A100-40"), terms=terms, usd_per_hour=0.1)
    scenario = dataclasses.replace(scenario, offers={offer.id: offer})
    plan = make_plan(scenario, [chain(0, [offer], (0, 8), microbatch_size=2, microbatches=12)])
    assert [line.usd for line in lines_of(bill(lay_out(plan, scenario), {}, 1.0), "compute", "")] == [0.1]


def test_nodes_of_two_markets_in_one_region_fetch_packages_through_one_gateway() -> None:
    # 3 GB for each of the two, at 0.05 USD, and again for the 0.0036 of them that are taken away.
    cost = bill_of(Market.SPOT, NetworkAccess.PRIVATE, second=CENTRAL)
    (packages,) = lines_of(cost, "address", "packages through NAT in us-central1")
    assert packages.usd == pytest.approx(0.30, rel=0.01)


def test_checkpoints_of_nodes_on_this_machine_cost_nothing() -> None:
    scenario = make_scenario(make_job(steps=1000))
    cost = bill(lay_out(two_stage_plan(scenario, 4), scenario), {}, 1.0)
    assert not [line for line in cost.lines if "checkpoint" in line.what and "stalled for" not in line.what]


def test_a_stage_with_two_ranges_of_layers_saves_both() -> None:
    """The embedding has 49,152 parameters, a block 198,272, the head with its norm 33,024."""
    scenario = scenario_of(make_job(model=TINY, resources=[GCP], steps=10))
    offers = [offer_in(scenario, zone, "A100-40") for zone in (CENTRAL, WEST)]
    plan = make_plan(scenario, [chain(0, offers, (0, 4, 8), microbatch_size=2, microbatches=12)])
    (pipeline,) = plan.pipelines
    first, second = pipeline.stages
    stages = (
        dataclasses.replace(first, first_layer=0, end_layer=3, later_ranges=((5, 7),)),
        dataclasses.replace(second, first_layer=3, end_layer=5, later_ranges=((7, 8),)),
    )
    pipelines = (dataclasses.replace(pipeline, stages=stages),)
    plan = dataclasses.replace(plan, pipelines=pipelines, pipeline_schedule=PipelineSchedule.INTERLEAVED)
    # The first stage has the embedding and four blocks: 842,240 parameters of 12 bytes at 537.8 MB/s.
    assert checkpoint_s(lay_out(plan, scenario)) == pytest.approx(10106880 / 537.8e6, rel=1e-3)


def test_checkpoints_of_two_zones_leave_through_one_gateway() -> None:
    """Both stages' 1,271,808 parameters of 12 bytes, every 36 s of an hour, go to another cloud: 1.5261696 GB."""
    job = make_job(model=TINY, resources=[GCP], steps=1000)
    changes = {
        "cloud": job.cloud.model_copy(update={"network": NetworkAccess.PRIVATE}),
        "checkpoint": job.checkpoint.model_copy(update={"every": 36.0, "to": "s3://theirs/checkpoints"}),
    }
    job = job.model_copy(update=changes)
    shipped, scenario = make_scenario(job), scenario_of(job)
    first = offer_in(scenario, CENTRAL, "A100-40")
    second = dataclasses.replace(first, id="beside", zone="us-central1-b")
    catalog = Catalog(
        offers=OfferBook.of([first, second]),
        accelerators=[shipped.catalog.accelerator("A100-40")],
        zones=[shipped.catalog.zone(name) for name in (CENTRAL, "us-central1-b", "use1-az4")],
        regions=[*shipped.catalog.regions(Provider("gcp")), *shipped.catalog.regions(Provider("aws"))],
        services=services("gcp", "aws"),
        interruptions=InterruptionTable([]),
        recorded=tuple,
        sources=(),
    )
    known = {first.id: first, second.id: second}
    scenario = dataclasses.replace(scenario, catalog=catalog, offers=known, network=shipped.network)
    plan = make_plan(scenario, [chain(0, [first, second], (0, 4, 8), microbatch_size=2, microbatches=12)])
    (passed,) = lines_of(bill(lay_out(plan, scenario), {}, 3.6), "checkpoint", "checkpoints through NAT in us-central1")
    assert passed.usd == pytest.approx(0.07630848)


def test_a_folder_that_is_called_as_a_cloud_s_buckets_are_is_no_bucket() -> None:
    offers = [offer_in(scenario_of(make_job(model=TINY, resources=[GCP])), CENTRAL, "A100-40")]

    def nowhere(provider: Provider) -> tuple[str, str]:
        raise AssertionError(provider)

    assert bucket_place(offers, "gs", nowhere) is None
    assert bucket_place(offers, "gs://mine/runs", nowhere) == (Provider("gcp"), "us-central1", CENTRAL)
    assert bucket_place(offers, None, nowhere) == (Provider("gcp"), "us-central1", CENTRAL)


def mixed(least_h: float, usd_per_hour: float, nodes: int) -> Cost:
    """The bill of an hour's training on nodes that are paid for so long at least, and then one on demand at 10 USD."""
    base = scenario_of(make_job(model=TINY, resources=[GCP], steps=1000))
    terms = Terms(name="flex", nodes=nodes, least_s=3600.0 * least_h)
    whole = dataclasses.replace(offer_in(base, CENTRAL, "A100-40"), id="a", terms=terms, usd_per_hour=usd_per_hour)
    other = offer_in(base, WEST, "A100-40")
    scenario = dataclasses.replace(base, offers={whole.id: whole, other.id: other})
    bounds = (0, 2, 4, 8) if nodes == 2 else (0, 4, 8)
    offers = [*([whole] * nodes), other]
    plan = make_plan(scenario, [chain(0, offers, bounds, microbatch_size=2, microbatches=12)])
    return bill(lay_out(plan, scenario), {}, 3.6)


def test_a_node_in_addition_to_prepaid_ones_is_on_the_bill() -> None:
    # Five hours at 4 USD; an hour of the other.
    cost = mixed(5.0, 4.0, 1)
    assert [line.usd for line in lines_of(cost, "compute", "")] == [pytest.approx(20.0), pytest.approx(10.0)]


def test_several_nodes_are_paid_whole_only_where_that_is_more_than_they_take() -> None:
    # Two nodes take 1.15 h each. At least an hour of each is 8 USD, less than what they take; 1.5 h are 12 USD.
    whole = [line.usd for line in mixed(1.0, 4.0, 2).lines if line.unit == "reserved hour"]
    assert whole == []
    whole = [line.usd for line in mixed(1.5, 4.0, 2).lines if line.unit == "reserved hour"]
    assert whole == [pytest.approx(12.0)]


def test_nodes_that_cost_nothing_are_paid_for_by_the_hour() -> None:
    cost = mixed(5.0, 0.0, 1)
    assert [line.usd for line in lines_of(cost, "compute", "")] == [0.0, pytest.approx(10.0)]
