"""The bill of a plan."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, defaultdict
from datetime import date

import pytest

from factories.scenarios import GCP, chain, gcp_scenario, make_job, make_plan, make_scenario, offer_in
from sailor_cloud.catalog import Interruptions, Service
from sailor_cloud.catalog.prices.interruptions import InterruptionTable
from sailor_cloud.errors import MissingPriceError
from sailor_cloud.model.document import Cost, CostKind, CostLine
from sailor_cloud.model.job import Job, NetworkAccess
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.model.plan import Plan
from sailor_cloud.simulator import (
    Scenario,
    egress_usd_per_byte,
    evaluate,
    hours,
    node_usd_per_hour,
    preemptions_per_hour,
    run_usd,
    startup_s,
    teardown_s,
)
from sailor_cloud.simulator.bill import SETUP_BYTES, checkpoint_nat_lines, checkpoint_s, gateways, setup_lines
from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.money import (
    CHECKPOINT_BYTES_PER_S,
    STALE_MARGIN,
    lost_fraction,
    saving_fraction,
    young_daly_s,
)
from sailor_cloud.workload import parameter_count


def split_plan(scenario: Scenario, zones: tuple[str, str], market: Market = Market.ON_DEMAND) -> Plan:
    offers = [offer_in(scenario, zone, "A100-40", devices=2, market=market) for zone in zones]
    return make_plan(scenario, [chain(0, offers, (0, 13, 26), microbatch_size=2, microbatches=32)])


def by_kind(cost: Cost) -> dict[CostKind, float]:
    totals: dict[CostKind, float] = defaultdict(float)
    for line in cost.lines:
        totals[line.kind] += line.usd
    return totals


def changed(scenario: Scenario, **job) -> Scenario:
    raw = scenario.job.model_dump(mode="json")
    for key, value in job.items():
        raw[key] = {**raw[key], **value}
    return dataclasses.replace(scenario, job=Job.model_validate(raw))


def test_instances_are_paid_whole_from_start_up_to_teardown() -> None:
    scenario = gcp_scenario(batch=64)
    plan = split_plan(scenario, ("us-central1-a", "us-central1-a"))
    answer = evaluate(plan, scenario)
    offer = scenario.offer(plan.nodes[0].offer)
    hours = 100 * answer.prediction.iteration_s_replay / 3600
    found = by_kind(answer.cost)
    assert found[CostKind.COMPUTE] == pytest.approx(2 * hours * offer.usd_per_hour)
    assert found[CostKind.STARTUP] == pytest.approx(2 * startup_s(Provider("gcp")) / 3600 * offer.usd_per_hour)
    assert found[CostKind.TEARDOWN] == pytest.approx(2 * teardown_s(Provider("gcp")) / 3600 * offer.usd_per_hour)
    standing = hours * saving_fraction(interval_s=600.0, checkpoint_s=checkpoint_s(lay_out(plan, scenario)))
    assert answer.prediction.duration_s == pytest.approx(
        (hours + standing) * 3600 + startup_s(Provider("gcp")) + teardown_s(Provider("gcp"))
    )
    assert answer.cost.total_usd == pytest.approx(sum(line.usd for line in answer.cost.lines))
    assert answer.cost.worst_case_usd == pytest.approx(sum(line.worst_usd for line in answer.cost.lines))
    assert {CostKind.DISK, CostKind.ADDRESS, CostKind.CHECKPOINT} <= set(found)


def test_a_device_that_no_stage_uses_is_paid_for() -> None:
    scenario = gcp_scenario(batch=64)
    offer = offer_in(scenario, "us-central1-a", "A100-40", devices=4)
    nodes, pipeline = chain(0, [offer], (0, 26), microbatch_size=2, microbatches=32)
    half = dataclasses.replace(pipeline, stages=(dataclasses.replace(pipeline.stages[0], devices=(0, 1)),))
    cost = evaluate(make_plan(scenario, [(nodes, half)]), scenario).cost
    assert cost.usd_per_hour > offer.usd_per_hour


def test_egress_is_the_plans_own_traffic_at_each_payers_price() -> None:
    scenario = gcp_scenario(batch=64)
    answer = evaluate(split_plan(scenario, ("us-central1-a", "us-west1-b")), scenario)
    tensor = 2 * 2048 * 1024 * 2
    nbytes = tensor * 32 * 100
    for zones in (("us-central1-a", "us-west1-b"), ("us-west1-b", "us-central1-a")):
        [line] = [line for line in answer.cost.lines if line.kind is CostKind.EGRESS and line.what.startswith(zones[0])]
        assert line.quantity == pytest.approx(nbytes / 1e9)
        assert line.usd == pytest.approx(nbytes * egress_usd_per_byte(*zones, scenario))
    [moved] = [line for line in answer.cost.lines if "checkpoints from us-west1-b" in line.what]
    assert moved.usd > 0


def test_traffic_inside_a_zone_costs_nothing() -> None:
    scenario = gcp_scenario(batch=64)
    answer = evaluate(split_plan(scenario, ("us-central1-a", "us-central1-a")), scenario)
    assert CostKind.EGRESS not in by_kind(answer.cost)
    assert answer.links == ()


@pytest.mark.parametrize("market", [Market.ON_DEMAND, Market.SPOT])
def test_private_nodes_share_a_gateway_its_address_and_what_passes_it(market: Market) -> None:
    public = gcp_scenario(batch=64, steps=100_000)
    scenario = changed(public, cloud={"network": "private"})
    plan = split_plan(scenario, ("us-central1-a", "us-west1-b"), market)
    answer, services = evaluate(plan, scenario), scenario.catalog.services
    lines = [line for line in answer.cost.lines if line.kind is CostKind.ADDRESS]
    assert [line.what for line in lines] == [
        *["1 x nat-gateway"] * 2,
        *["1 x public-address"] * 2,
        "packages through NAT in us-central1",
        "packages through NAT in us-west1",
    ]
    kinds = [Service.NAT_GATEWAY] * 2 + [Service.PUBLIC_ADDRESS] * 2 + [Service.NAT_DATA] * 2
    for line, kind in zip(lines, kinds, strict=True):
        price = services.price(Provider("gcp"), "us-central1", kind)
        known = (line.usd_per_unit, line.unit, line.price_source, line.price_as_of)
        assert known == (price.usd_per_unit, price.unit, price.source, price.as_of_from)
    paid = hours(lay_out(plan, scenario), answer.prediction.iteration_s_replay)
    assert [line.quantity for line in lines[:4]] == pytest.approx([paid.total] * 4)
    # One node in each region, set up once more for each time that it is expected to be taken away.
    lost = preemptions_per_hour(offer_in(scenario, "us-west1-b", "A100-40", devices=2, market=market), scenario.catalog)
    for line in lines[4:]:
        assert line.quantity == pytest.approx(SETUP_BYTES / 2**30 * (1 + lost * paid.training))
        assert line.worst_usd == pytest.approx(SETUP_BYTES / 2**30 * (1 + 3 * lost * paid.training) * line.usd_per_unit)
    rates = [node_usd_per_hour(scenario.offer(node.offer), scenario).expected for node in plan.nodes]
    shared = sum(line.usd_per_unit for line in lines[:4])
    egress = sum(line.usd for line in answer.cost.lines if line.kind is CostKind.EGRESS) / paid.training
    assert answer.cost.usd_per_hour == pytest.approx(sum(rates) + shared + egress)
    own = [line.what for line in evaluate(plan, public).cost.lines if line.kind is CostKind.ADDRESS]
    assert own == ["1 x public-address"] * 2, "nodes with addresses of their own need no gateway"


def test_on_aws_nat_is_priced_by_the_gigabyte() -> None:
    scenario = gcp_scenario(batch=64)
    offer = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    there = dataclasses.replace(offer, provider=Provider("aws"), region="us-west-2")
    (line,) = setup_lines(Counter({there: 3}), scenario.catalog.services, NetworkAccess.PRIVATE, starts=(1.0, 2.0))
    assert (line.unit, line.quantity, line.usd_per_unit) == ("GB", pytest.approx(3 * SETUP_BYTES / 1e9), 0.045)
    assert line.worst_usd == pytest.approx(2 * line.usd)
    local = dataclasses.replace(offer, provider=Provider("local"), region="local")
    assert gateways([local], scenario.catalog.services, NetworkAccess.PRIVATE) == ()
    assert gateways([there], scenario.catalog.services, NetworkAccess.PUBLIC_SSH) == ()


def test_without_a_number_of_steps_there_are_rates_and_no_totals() -> None:
    scenario = gcp_scenario(batch=64, steps=None)
    answer = evaluate(split_plan(scenario, ("us-central1-a", "us-central1-a")), scenario)
    assert answer.cost.total_usd is None
    assert answer.cost.worst_case_usd is None
    assert answer.prediction.duration_s is None
    assert answer.cost.usd_per_hour * answer.prediction.iteration_s_replay / 3600 == pytest.approx(
        answer.cost.usd_per_iteration
    )


def test_a_stale_price_widens_the_worst_case() -> None:
    scenario = gcp_scenario(batch=64)
    offer = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    rate = node_usd_per_hour(offer, scenario)
    services = rate.expected - offer.usd_per_hour
    assert rate.worst - services == pytest.approx(offer.usd_per_hour * (1 + STALE_MARGIN))
    fresh = dataclasses.replace(
        scenario, as_of=scenario.as_of.replace(year=offer.as_of_from.year, month=8, day=offer.as_of_from.day)
    )
    assert node_usd_per_hour(offer, fresh).worst == pytest.approx(rate.expected)


def test_spot_may_come_to_cost_what_on_demand_does() -> None:
    scenario = gcp_scenario(batch=64)
    spot = offer_in(scenario, "us-central1-a", "A100-40", devices=2, market=Market.SPOT)
    on_demand = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    assert node_usd_per_hour(spot, scenario).worst == pytest.approx(node_usd_per_hour(on_demand, scenario).worst)


def test_checkpoint_interval_and_loss_follow_young_and_daly() -> None:
    assert young_daly_s(10.0, 0.0) is None
    best = young_daly_s(10.0, 0.5)
    assert best == pytest.approx((2 * 10 * 7200) ** 0.5)

    def loss(interval_s: float) -> float:
        return float(lost_fraction(0.5, interval_s=interval_s, checkpoint_s=10.0, restart_s=300.0))

    assert loss(best) < loss(best * 1.3)
    assert loss(best) < loss(best / 1.3)
    assert float(lost_fraction(0.0, interval_s=600.0, checkpoint_s=0.0, restart_s=300.0)) == 0


def test_runs_that_nobody_takes_away_stand_still_for_checkpoints_as_well() -> None:
    assert float(lost_fraction(0.0, interval_s=600.0, checkpoint_s=12.0, restart_s=300.0)) == pytest.approx(0.02)
    scenario = gcp_scenario(batch=64)
    plan = split_plan(scenario, ("us-central1-a", "us-central1-a"))
    answer = evaluate(plan, scenario)
    [line] = [line for line in answer.cost.lines if "stalled for" in line.what]
    layout = lay_out(plan, scenario)
    parameters = max(seat.table.parameters(seat.stage.first_layer, seat.stage.end_layer) for seat in layout.seats)
    seconds = parameters * 12 / CHECKPOINT_BYTES_PER_S
    hours = 100 * answer.prediction.iteration_s_replay / 3600
    assert line.kind is CostKind.CHECKPOINT
    assert line.quantity == pytest.approx(2 * hours * seconds / 600)
    assert line.usd == pytest.approx(line.quantity * scenario.offer(plan.nodes[0].offer).usd_per_hour)
    assert not [line for line in answer.cost.lines if line.kind is CostKind.RECOVERY]


def checkpoint_bill(scenario: Scenario) -> dict[str, CostLine]:
    plan = split_plan(scenario, ("us-central1-a", "us-central1-a"))
    lines = [line for line in evaluate(plan, scenario).cost.lines if line.kind is CostKind.CHECKPOINT]
    return {line.what: line for line in lines if "stalled for" not in line.what}


def test_checkpoints_are_kept_at_the_price_of_object_storage() -> None:
    scenario = changed(gcp_scenario(batch=64, steps=100_000), checkpoint={"keep": 5})
    answer = evaluate(split_plan(scenario, ("us-central1-a", "us-central1-a")), scenario)
    found = checkpoint_bill(scenario)
    assert set(found) == {"5 checkpoints kept in gcp us-central1", "writing checkpoints"}
    kept, writes = found.values()
    size = parameter_count(scenario.decoder) * 12
    months = answer.prediction.duration_s / 3600 / 730
    assert kept.usd_per_unit == 0.02
    assert kept.quantity == pytest.approx(5 * size / 2**30 * months, rel=0.01)
    assert kept.unit == "GiB-month"
    saves = 100_000 * answer.prediction.iteration_s_replay / 600
    assert writes.quantity == pytest.approx(saves * (size / (5 * 2**20) + 4) / 1000, rel=0.01)
    assert writes.usd_per_unit == 0.005


def test_checkpoints_in_a_folder_cost_only_the_disk() -> None:
    assert checkpoint_bill(changed(gcp_scenario(batch=64), checkpoint={"to": "/mnt/runs"})) == {}


def test_a_bucket_of_another_cloud_is_paid_there_with_the_traffic_to_it() -> None:
    found = checkpoint_bill(changed(gcp_scenario(batch=64), checkpoint={"to": "s3://mine/runs"}))
    [kept] = [line for what, line in found.items() if "kept in aws" in what]
    [moved] = [line for what, line in found.items() if what.startswith("checkpoints from us-central1-a")]
    assert kept.usd_per_unit >= 0.023
    assert moved.unit == "GB"
    assert moved.usd_per_unit > 0.05
    assert not [what for what in found if "NAT" in what]


def test_checkpoints_pass_nat_on_their_way_to_buckets_that_private_nodes_reach_no_other_way() -> None:
    private = changed(gcp_scenario(batch=64), cloud={"network": "private"})
    assert not [what for what in checkpoint_bill(private) if "NAT" in what], "Google's own network leads to its buckets"
    found = checkpoint_bill(changed(private, checkpoint={"to": "s3://mine/runs"}))
    through, moved = (
        next(line for what, line in found.items() if start in what) for start in ("through NAT", "from us-central1-a")
    )
    assert (through.unit, through.usd_per_unit) == ("GiB", 0.045)
    assert through.quantity * 2**30 == pytest.approx(moved.quantity * 1e9)
    services, network = private.catalog.services, NetworkAccess.PRIVATE
    east, west = (Provider("aws"), "us-east-1"), (Provider("aws"), "us-west-2")
    (line,) = checkpoint_nat_lines({east: 5e9, west: 7e9}, east, services, network)
    assert (line.what, line.quantity, line.unit) == ("checkpoints through NAT in us-west-2", 7.0, "GB")


def test_every_region_with_offers_prices_object_storage() -> None:
    catalog = gcp_scenario().catalog
    for provider, region in sorted({(offer.provider, offer.region) for offer in catalog.offers()}):
        for service in (Service.OBJECT_STORAGE, Service.OBJECT_WRITES):
            assert 0 < catalog.services.price(provider, region, service).usd_per_unit < 0.1


def test_the_searchs_estimate_of_a_run_is_the_bill_without_checkpoints() -> None:
    scenario = gcp_scenario(batch=64)
    plan = split_plan(scenario, ("us-central1-a", "us-west1-b"))
    answer = evaluate(plan, scenario)
    rates = [node_usd_per_hour(scenario.offer(node.offer), scenario) for node in plan.nodes]
    traffic = sum(line.usd for line in answer.cost.lines if line.kind is CostKind.EGRESS) / 100
    expected, worst = run_usd(
        usd_per_hour=sum(rate.expected for rate in rates),
        worst_usd_per_hour=sum(rate.worst for rate in rates),
        iteration_s=answer.prediction.iteration_s_replay,
        egress_usd_per_iteration=traffic,
        steps=100,
        provider=Provider("gcp"),
        checkpoint_s=checkpoint_s(lay_out(plan, scenario)),
    )
    stored = [line for line in answer.cost.lines if line.kind is CostKind.CHECKPOINT and line.unit != "hour"]
    assert float(expected) == pytest.approx(answer.cost.total_usd - sum(line.usd for line in stored))
    assert float(worst) == pytest.approx(answer.cost.worst_case_usd - sum(line.worst_usd for line in stored))


def test_an_unknown_price_stops_everything() -> None:
    scenario = make_scenario(make_job(resources=[GCP], model={"preset": "sailor-opt-350"}, precision="fp16"))
    offer = offer_in(scenario, "us-central1-a", "A100-40")
    with pytest.raises(MissingPriceError, match="atlantis"):
        node_usd_per_hour(dataclasses.replace(offer, region="atlantis"), scenario)


@pytest.mark.parametrize(
    ("band", "per_month"), [((0.0, 0.05), 0.05), ((0.15, 0.20), 0.20), ((0.20, 1.0), 0.40), (None, 0.20)]
)
def test_spot_is_lost_as_often_as_the_provider_states_for_the_region_and_type(
    band: tuple[float, float] | None, per_month: float
) -> None:
    scenario = gcp_scenario(batch=64)
    gcp = offer_in(scenario, "us-central1-a", "A100-40", devices=2, market=Market.SPOT)
    spot = dataclasses.replace(gcp, provider=Provider("aws"), region="us-east-1", instance_type="p4d.24xlarge")
    rows = []
    if band is not None:
        rows.append(
            Interruptions(
                provider=Provider("aws"),
                region="us-east-1",
                instance_type="p4d.24xlarge",
                low=band[0],
                high=band[1],
                saving=None,
                as_of=date(2026, 11, 1),
                source="test",
            )
        )
    catalog = copy.copy(scenario.catalog)
    catalog.interruptions = InterruptionTable(rows)
    assert preemptions_per_hour(spot, catalog) == pytest.approx(per_month / 730)
    assert preemptions_per_hour(dataclasses.replace(spot, market=Market.ON_DEMAND), catalog) == 0
    elsewhere = dataclasses.replace(spot, region="eu-west-1")
    assert preemptions_per_hour(elsewhere, catalog) == pytest.approx(0.20 / 730)
