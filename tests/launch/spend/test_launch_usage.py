"""What a run is charged for by use: measured where somebody measured it, as planned elsewhere, and told which."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, WEST_OFFER, cloud_document, with_job
from factories.documents import NOW, cost_line, costing, document
from factories.scenarios import TINY, chain, make_job, make_plan, make_scenario, offer_in
from sailor_cloud import catalog, network
from sailor_cloud.catalog import Service
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.spend import checkpoint_storage, egress, gateways, usage
from sailor_cloud.launch.spend.charges import charge_all, total_usd
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.telemetry.generation_log import RecordedGeneration, new_monitor
from sailor_cloud.model.document import CostKind, PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.model.parts import part_of, traffic_part
from sailor_cloud.network import Network
from sailor_cloud.network.egress import EgressTable
from sailor_cloud.network.estimates import ZoneInfo
from sailor_cloud.provision.bookkeeping import NODE, intend_node, open_node
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.simulator import evaluate
from sailor_cloud.simulator.bill import PART_BYTES
from sailor_cloud.units import GB, GIB, HOURS_PER_MONTH

THERE, BACK = traffic_part("local-a", "local-b", "local-a"), traffic_part("local-b", "local-a", "local-b")
PRICES = UsagePrices()


def planned() -> PlanDocument:
    """Twenty steps on two nodes, which are to send 4 GB there and 2 GB back."""
    lines = (
        cost_line(CostKind.EGRESS, THERE, quantity=4.0, usd_per_unit=0.01, unit="GB"),
        cost_line(CostKind.EGRESS, BACK, quantity=2.0, usd_per_unit=0.01, unit="GB"),
    )
    return costing(document(steps=20), *lines)


def leg(
    *events: dict[str, Any], done: int = 10, of: PlanDocument | None = None, generation: int = 1
) -> RecordedGeneration:
    found = of or planned()
    monitor = new_monitor(found, generation)
    for number in range(1, done + 1):
        monitor.apply(
            "n0", {"event": "step", "generation": generation, "step": number, "loss": 1.0, "iteration_s": 0.5}
        )
    for event in events:
        monitor.apply(event["node"], {"generation": generation, **event})
    return RecordedGeneration(generation=generation, document=found, monitor=monitor)


def sent(rank: int, step: int, **by_node: int) -> dict[str, Any]:
    return {"event": "traffic", "node": f"n{rank}", "rank": rank, "step": step, "sent": by_node}


def quantities(found: RecordedGeneration) -> dict[str, tuple[float, str]]:
    return {
        charge.part: (charge.quantity, charge.what.removeprefix(f"{charge.part}, "))
        for charge in egress.charges([found], PRICES)
    }


def test_bytes_that_were_measured_are_charged_in_place_of_those_planned() -> None:
    found = leg(sent(0, 10, n1=7 * GB), sent(1, 10, n0=3 * GB))
    assert quantities(found) == {THERE: (7.0, "metered"), BACK: (3.0, "metered")}
    assert total_usd(egress.charges([found], PRICES)) == pytest.approx(0.10)
    assert all(charge.open for charge in egress.charges([found], PRICES)), "nothing is settled before the end"


def test_steps_since_a_rank_s_newest_measure_are_charged_as_planned() -> None:
    # Of ten steps one rank has told of eight; a step is planned with 0.2 GB there and 0.1 GB back.
    found = leg(sent(0, 10, n1=7 * GB), sent(1, 8, n0=3 * GB))
    assert quantities(found) == {THERE: (7.0, "metered"), BACK: (pytest.approx(3.2), "metered for 8 of 10 steps")}


def test_one_step_that_was_measured_is_reported() -> None:
    found = leg(sent(0, 10, n1=7 * GB), sent(1, 1, n0=GB))
    assert quantities(found)[BACK][1] == "metered for 1 of 10 steps"


def test_two_ranks_in_a_zone_each_send_half_of_what_is_not_measured() -> None:
    # One of two ranks in local-a has told of all ten steps, the other of six: 4 of 20 shares of 0.1 GB are as planned.
    base = planned()
    assert base.plan is not None
    (one,) = base.plan.pipelines
    first, second = one.stages
    split = replace(one, stages=(replace(first, devices=(0, 1)), second))
    found = leg(
        sent(0, 10, n1=GB),
        sent(1, 6, n1=GB) | {"node": "n0"},
        sent(2, 10, n0=3 * GB) | {"node": "n1"},
        of=replace(base, plan=replace(base.plan, pipelines=(split,))),
    )
    assert quantities(found)[THERE] == (pytest.approx(2.0 + 0.4), "metered for 6 of 10 steps")


def test_only_bytes_between_zones_are_traffic() -> None:
    found = leg(sent(0, 10, n0=5 * GB, n9=5 * GB, n1=GB), sent(1, 10, n1=7 * GB))
    assert egress.sent_bytes(found) == {("local-a", "local-b"): GB}
    stranger = leg(sent(0, 10, n1=GB), sent(1, 10, n0=GB) | {"node": "n9"})
    assert egress.sent_bytes(stranger) == {("local-a", "local-b"): GB}


def test_without_a_number_of_steps_a_step_has_no_price() -> None:
    assert egress.usd_per_step(costing(document(steps=None), *planned().cost.lines)) == 0.0


def test_money_spent_does_not_fall_when_a_late_rank_reports() -> None:
    # A step sends what is planned: 0.2 GB there, 0.1 GB back.
    counts = [(2, 2), (8, 2), (8, 8), (10, 8), (10, 10)]
    legs = [leg(sent(0, a, n1=a * GB // 5), sent(1, b, n0=b * GB // 10)) for a, b in counts]
    assert [total_usd(egress.charges([found], PRICES)) for found in legs] == pytest.approx([0.03] * len(counts))


def test_steps_that_send_less_than_planned_count_as_those_before_until_they_are_measured() -> None:
    # Checks send 1 GB before the first step, and each step half of what is planned.
    before = sent(0, 0, n1=GB), sent(1, 0, n0=GB)
    first = *before, sent(0, 6, n1=GB + 6 * GB // 10), sent(1, 6, n0=GB + 6 * GB // 20)
    told = leg(*first, done=18)
    assert quantities(told) == {
        THERE: (pytest.approx(1.0 + 18 * 0.1), "metered for 6 of 18 steps"),
        BACK: (pytest.approx(1.0 + 18 * 0.05), "metered for 6 of 18 steps"),
    }
    last = *first, sent(0, 20, n1=GB + 20 * GB // 10), sent(1, 20, n0=GB + 20 * GB // 20)
    shown = [leg(*first, done=6), told, leg(*last, done=20)]
    usd = [total_usd(egress.charges([one], PRICES)) for one in shown]
    assert usd == sorted(usd)
    assert usd[-1] == pytest.approx(0.05)
    assert quantities(leg(*before, done=2)) == {
        THERE: (pytest.approx(1.4), "by the plan's figures"),
        BACK: (pytest.approx(1.2), "by the plan's figures"),
    }


@pytest.mark.parametrize("events", [(), (sent(0, 10, n1=7 * GB),)], ids=["nobody", "not all ranks"])
def test_without_a_measure_of_every_rank_the_plan_s_figures_are_charged_and_noted(
    events: tuple[dict[str, Any], ...],
) -> None:
    note = "by the plan's figures"
    assert quantities(leg(*events)) == {THERE: (pytest.approx(2.0), note), BACK: (pytest.approx(1.0), note)}


def test_bytes_sent_before_the_first_step_are_charged() -> None:
    found = leg(sent(0, 0, n1=GB), sent(1, 0), done=0)
    assert [(one.part, one.quantity) for one in egress.charges([found], PRICES)] == [(THERE, 1.0)]


def test_an_iteration_costs_what_it_sends_and_not_what_was_sent_before_the_first() -> None:
    # 30 GB of checks, then 0.5 GB there and 0.1 GB back per step; the plan foresees 0.2 and 0.1 GB.
    before = (sent(0, 0, n1=30 * GB), sent(1, 0))
    assert egress.measured_usd_per_step(leg(*before, done=0), PRICES) == pytest.approx(0.003)
    assert egress.measured_usd_per_step(leg(*before, done=2), PRICES) == pytest.approx(0.003), (
        "nobody has measured steps yet"
    )
    later = leg(*before, sent(0, 10, n1=35 * GB), sent(1, 10, n0=GB))
    assert egress.measured_usd_per_step(later, PRICES) == pytest.approx(0.006)


def test_traffic_that_the_plan_does_not_foresee_is_charged_at_the_price_of_its_zones() -> None:
    bare = costing(document(steps=20))
    found = leg(sent(0, 10, n1=7 * GB), sent(1, 10), of=bare)
    (charge,) = egress.charges([found], PRICES)
    (price,) = network.load().egress("local-a", "local-b")
    assert (charge.part, charge.quantity, charge.usd_per_unit) == (THERE, 7.0, price.usd_per_gb)


def test_traffic_without_a_price_is_charged_at_the_highest_of_the_plan() -> None:
    zones = [
        ZoneInfo(name=name, provider=Provider("local"), region="local", egress_group="", latitude=None, longitude=None)
        for name in ("local-a", "local-b")
    ]
    bare = Network(zones=zones, curves=(), instances=(), region_pairs={}, egress=EgressTable({}))
    prices = UsagePrices(load_network=lambda: bare)
    cheap = cost_line(CostKind.EGRESS, "elsewhere", quantity=0.0, usd_per_unit=0.01, unit="GB")
    line = cost_line(CostKind.EGRESS, THERE, quantity=4.0, usd_per_unit=0.02, unit="GB")
    found = leg(sent(0, 10, n1=GB), sent(1, 10, n0=3 * GB), of=costing(document(steps=20), cheap, line))
    told = {one.part: (one.usd, one.what.partition(", metered")[2]) for one in egress.charges([found], prices)}
    assert told == {THERE: (0.02, ""), "local-b to local-a": (0.06, f", at the price of {THERE}")}


def test_each_generation_has_lines_of_its_own_and_all_count_for_the_plan_s_line(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl", FixedClock(NOW))
    charges = egress.charges([leg(), leg(generation=2)], PRICES)
    for _ in range(2):
        charge_all(ledger, charges, at=NOW)
    there = [line for line in ledger.lines() if line.part == THERE]
    assert [line.key for line in there] == [THERE, f"generation 2: {THERE}"]
    assert ledger.spent_usd() == pytest.approx(total_usd(charges))


def stored(**changes: Any) -> PlanDocument:
    """A plan on two zones of Google Cloud whose checkpoints go to a bucket beside the first one."""
    base = cloud_document(("n0", GCP_OFFERS[0]), ("n1", GCP_OFFERS[2]), image=None)
    region = GCP_OFFERS[0].region
    kept = cost_line(
        CostKind.CHECKPOINT, f"2 checkpoints kept in gcp {region}", quantity=1.0, usd_per_unit=0.02, unit="GiB-month"
    )
    writes = cost_line(
        CostKind.CHECKPOINT, "writing checkpoints", quantity=3.0, usd_per_unit=0.05, unit="1000 requests"
    )
    still = cost_line(CostKind.CHECKPOINT, "2 x a2 spot, stalled", quantity=9.0, usd_per_unit=9.0, unit="hour")
    job = base.job.model_copy(update={"checkpoint": base.job.checkpoint.model_copy(update={"keep": 2})})
    return replace(costing(base, kept, writes, still), job=job, **changes)


def saved(step: int, hours: float, *written: tuple[int, int]) -> dict[str, Any]:
    at = (NOW + timedelta(hours=hours)).timestamp()
    told = {"written": [list(one) for one in written]} if written else {}
    return {"event": "checkpoint", "node": "n0", "step": step, "path": f"gs://b/step-{step}", "ts": at, **told}


def test_checkpoints_are_charged_by_what_was_written_and_how_long_it_was_kept() -> None:
    size = 3 * GIB
    # Two of three are kept: the first one goes when the third one comes.
    found = leg(
        *(saved(step, hours, (1, 2 * GIB), (2, GIB)) for step, hours in ((4, 1.0), (8, 2.0), (10, 4.0))), of=stored()
    )
    charges = {
        one.part: one
        for one in checkpoint_storage.charges(found.document, [found], PRICES, until=NOW + timedelta(hours=10))
    }
    hours = 3.0 + 8.0 + 6.0
    assert charges["2 checkpoints kept in gcp us-central1"].quantity == pytest.approx(3 * hours / HOURS_PER_MONTH)
    requests = 3 * (size / PART_BYTES + 3) / 1000.0
    assert charges["writing checkpoints"].quantity == pytest.approx(requests)
    assert all(one.what.endswith(", metered") for one in charges.values())
    # The second stage stands in Europe.
    (price,) = network.load().egress("europe-west4-a", "us-central1-a")
    moved = charges["checkpoints from europe-west4-a to us-central1, paid by europe-west4-a"]
    assert (moved.quantity, moved.usd_per_unit) == (pytest.approx(3 * GIB / GB), price.usd_per_gb)
    assert "2 x a2 spot, stalled" not in charges, "nodes are charged by their own clocks"


def test_checkpoints_of_unknown_size_are_charged_as_planned() -> None:
    found = leg(saved(4, 1.0), saved(8, 2.0, (1, GIB), (1, GIB)), of=stored())
    charges = checkpoint_storage.charges(found.document, [found], PRICES, until=NOW)
    assert [(one.quantity, one.what.rpartition(", ")[2]) for one in charges] == [
        (pytest.approx(0.5), "by the plan's figures"),
        (pytest.approx(1.5), "by the plan's figures"),
    ]


def test_a_checkpoint_in_a_folder_hides_none_in_a_bucket() -> None:
    folder = {**saved(2, 0.5, (1, GIB), (1, GIB)), "path": "/somewhere/step-2"}
    found = leg(folder, saved(4, 1.0, (1, GIB), (1, GIB)), of=stored())
    charges = checkpoint_storage.charges(found.document, [found], PRICES, until=NOW + timedelta(hours=1))
    requests = next(one.quantity for one in charges if one.part == "writing checkpoints")
    assert requests == pytest.approx((2 * GIB / PART_BYTES + 2) / 1000.0)


def test_a_checkpoint_of_this_moment_has_been_kept_for_zero_time() -> None:
    found = leg(saved(4, 1.0, (1, GIB), (1, GIB)), of=stored())
    charges = checkpoint_storage.charges(found.document, [found], PRICES, until=NOW)
    assert charges[0].quantity == 0.0


@pytest.mark.parametrize("access", list(NetworkAccess))
def test_shares_of_every_zone_reach_the_bucket_over_what_is_paid_for_it(access: NetworkAccess) -> None:
    # The bucket is in Oregon; the nodes are in two zones of Virginia, and the first of Oregon says nothing of them.
    west, east = WEST_OFFER, AWS_OFFERS[0]
    other = replace(east, id="other", zone="use1-az6")
    base = with_job(cloud_document(("n0", west), ("n1", east), ("n2", other), image=None), network=access)
    assert base.plan is not None
    (one,) = base.plan.pipelines
    stages = tuple(
        replace(one.stages[0], first_layer=2 * index, end_layer=2 * index + 2, node=f"n{index}") for index in range(3)
    )
    kept = cost_line(CostKind.CHECKPOINT, "kept", quantity=1.0, usd_per_unit=0.02, unit="GiB-month")
    plan = replace(costing(base, kept), plan=replace(base.plan, pipelines=(replace(one, stages=stages),)))
    found = leg(saved(4, 1.0, (1, GB), (1, 2 * GB), (1, 4 * GB)), of=plan)
    charges = checkpoint_storage.charges(plan, [found], PRICES, until=NOW)
    moved = {one.part: one.quantity for one in charges if one.unit == "GB"}
    expected = {
        "checkpoints from use1-az4 to us-west-2, paid by use1-az4": 2.0,
        "checkpoints from use1-az6 to us-west-2, paid by use1-az6": 4.0,
    }
    if access is NetworkAccess.PRIVATE:
        expected["checkpoints through NAT in us-east-1"] = 6.0
    assert moved == pytest.approx(expected)


def test_shares_of_zones_after_that_of_the_bucket_are_paid_for_too() -> None:
    base = cloud_document(("n0", AWS_OFFERS[0]), ("n1", WEST_OFFER), image=None)
    kept = cost_line(CostKind.CHECKPOINT, "kept", quantity=1.0, usd_per_unit=0.02, unit="GiB-month")
    plan = costing(base, kept)
    found = leg(saved(4, 1.0, (1, GB), (1, 2 * GB)), of=plan)
    charges = checkpoint_storage.charges(plan, [found], PRICES, until=NOW)
    assert [(one.part, one.quantity) for one in charges if one.unit == "GB"] == [
        ("checkpoints from usw2-az2 to us-east-1, paid by usw2-az2", 2.0)
    ]


@pytest.mark.parametrize(
    ("to", "part", "usd"),
    [
        # 2 GB from Google's Iowa at 0.12 USD for a GiB.
        ("s3://ours/run", "checkpoints from us-central1-a to us-east-1, paid by us-central1-a", 0.2235174179),
        # 3 GB from AWS's Virginia at 0.09 USD.
        ("gs://ours/run", "checkpoints from use1-az4 to us-central1, paid by use1-az4", 0.27),
        (None, "checkpoints from use1-az4 to us-central1, paid by use1-az4", 0.27),
    ],
)
def test_checkpoints_are_paid_for_up_to_the_bucket_whatever_cloud_it_is_of(
    to: str | None, part: str, usd: float
) -> None:
    base = cloud_document(("n0", GCP_OFFERS[0]), ("n1", AWS_OFFERS[0]), image=None)
    kept = cost_line(CostKind.CHECKPOINT, "kept", quantity=1.0, usd_per_unit=0.02, unit="GiB-month")
    found = leg(saved(4, 1.0, (1, 2 * GB), (1, 3 * GB)), of=costing(with_job(base, to=to), kept))
    charges = checkpoint_storage.charges(found.document, [found], PRICES, until=NOW)
    assert [(one.part, one.usd) for one in charges if one.unit == "GB"] == [(part, pytest.approx(usd))]


def test_a_bucket_of_a_cloud_without_nodes_costs_the_way_there() -> None:
    kept = cost_line(CostKind.CHECKPOINT, "kept", quantity=1.0, usd_per_unit=0.02, unit="GiB-month")
    base = cloud_document(("n0", GCP_OFFERS[0]), ("n1", GCP_OFFERS[0]), image=None)
    found = leg(saved(4, 1.0, (1, GB), (1, GB)), of=costing(with_job(base, to="s3://ours/run"), kept))
    charges = checkpoint_storage.charges(found.document, [found], PRICES, until=NOW)
    assert [one.part for one in charges if one.unit == "GB"] == [
        "checkpoints from us-central1-a to af-south-1, paid by us-central1-a"
    ]


def test_ranks_of_one_zone_write_their_shares_from_there() -> None:
    base = stored()
    assert base.plan is not None
    (one,) = base.plan.pipelines
    both = tuple(replace(stage, node="n1") for stage in one.stages)
    found = leg(
        saved(4, 1.0, (1, GB), (1, 2 * GB)),
        of=replace(base, plan=replace(base.plan, pipelines=(replace(one, stages=both),))),
    )
    charges = checkpoint_storage.charges(found.document, [found], PRICES, until=NOW)
    assert [one.quantity for one in charges if one.unit == "GB"] == [3.0]


def test_checkpoints_without_a_bill_cost_nothing() -> None:
    found = leg(saved(4, 1.0, (1, GIB), (1, GIB)), of=stored())
    bare = replace(found.document, cost=None)
    assert checkpoint_storage.charges(bare, [found], PRICES, until=NOW) == ()


def test_checkpoints_in_a_folder_cost_nothing() -> None:
    found = leg({**saved(4, 1.0, (1, GIB), (1, GIB)), "path": "/somewhere/step-4"}, of=stored())
    assert checkpoint_storage.charges(found.document, [found], PRICES, until=NOW) == ()


@pytest.mark.parametrize(
    ("provider", "kind", "services"),
    [
        (Provider("gcp"), "google_compute_router_nat.run", (Service.NAT_GATEWAY, Service.PUBLIC_ADDRESS)),
        (Provider("aws"), 'aws_nat_gateway.run["use1-az4"]', (Service.NAT_GATEWAY,)),
        (Provider("aws"), 'aws_eip.nat["use1-az4"]', (Service.PUBLIC_ADDRESS,)),
        (Provider("aws"), 'aws_eip.node["n0"]', ()),
        (Provider("aws"), "aws_vpc.run", ()),
    ],
)
def test_gateways_are_charged_by_the_hour_from_their_making_to_their_end(
    provider: Provider, kind: str, services: tuple[Service, ...], tmp_path: Path
) -> None:
    region = "us-central1" if provider is Provider("gcp") else "us-east-1"
    clock = FixedClock(NOW)
    journal, ledger = Journal(tmp_path / "journal.jsonl", clock), Ledger(tmp_path / "ledger.jsonl", clock)
    about = {"resource": kind.partition(".")[0], "key": f"{provider}-{region}/{kind}"}
    journal.append(Event.CREATE_INTENDED, provider=provider, region=region, stack=provider, **about)
    journal.append(Event.CREATED, **about)
    gateways.charge_gateways(ledger, journal.entries(), PRICES)
    price = catalog.load_services().price
    rate = sum(price(provider, region, service).usd_per_unit for service in services)
    assert ledger.usd_per_hour() == pytest.approx(rate)
    Journal(tmp_path / "journal.jsonl", FixedClock(NOW + timedelta(hours=2))).append(Event.GONE, **about)
    for _ in range(2):
        gateways.charge_gateways(ledger, journal.entries(), PRICES)
    assert ledger.usd_per_hour() == 0.0
    assert ledger.spent_usd(NOW + timedelta(hours=9)) == pytest.approx(2 * rate)


@pytest.mark.parametrize("network_access", list(NetworkAccess))
@pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")])
def test_hourly_costs_have_the_same_name_in_plan_and_ledger(
    provider: Provider, network_access: NetworkAccess, tmp_path: Path
) -> None:
    plan = _billed(provider, network_access)
    assert plan.cost is not None
    folder, clock = RunFolder.create("parts", root=tmp_path), FixedClock(NOW)
    journal, ledger = Journal.of(folder, clock), Ledger.of(folder, clock)
    for placed in placed_nodes(plan):
        intend_node(journal, placed)
        row = next(entry for entry in journal.entries() if entry.resource == NODE and entry.key == placed.node.id)
        open_node(ledger, placed.node.id, row.data, since=NOW)
    if network_access is NetworkAccess.PRIVATE:
        _make_gateways(journal, provider, plan)
    gateways.charge_gateways(ledger, journal.entries(), PRICES)
    expected = {part_of(line): line.usd_per_unit for line in plan.cost.lines if line.unit == "hour"}
    paid = {line.part: line.usd_per_unit for line in ledger.lines()}
    assert paid == pytest.approx(expected)


@pytest.mark.parametrize("network_access", list(NetworkAccess))
@pytest.mark.parametrize("provider", [Provider("gcp"), Provider("aws")])
def test_costs_by_use_have_the_same_name_and_price_in_plan_and_ledger(
    provider: Provider, network_access: NetworkAccess
) -> None:
    plan = _billed(provider, network_access)
    assert plan.cost is not None
    assert plan.plan is not None
    ranks = sum(stage.tp for pipeline in plan.plan.pipelines for stage in pipeline.stages)
    found = leg(saved(10, 1.0, *[(1, GIB)] * ranks), of=plan)
    expected = {part_of(line): line.usd_per_unit for line in plan.cost.lines if line.unit != "hour"}
    charges = usage.charges(plan, [found], PRICES, until=NOW + timedelta(hours=2))
    assert {one.part: one.usd_per_unit for one in charges} == pytest.approx(expected)
    assert any(one.part.startswith("packages through NAT") for one in charges) is (
        network_access is NetworkAccess.PRIVATE
    )


def test_a_gateway_counts_from_when_it_was_asked_for_until_somebody_knows_that_it_never_was(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal.jsonl", FixedClock(NOW))
    about = {"resource": "aws_nat_gateway", "key": "aws-us-east-1/aws_nat_gateway.run"}
    journal.append(Event.CREATE_INTENDED, provider="aws", region="us-east-1", stack="aws", **about)
    rate = catalog.load_services().price(Provider("aws"), "us-east-1", Service.NAT_GATEWAY).usd_per_unit
    asked = Ledger(tmp_path / "asked.jsonl", FixedClock(NOW))
    gateways.charge_gateways(asked, journal.entries(), PRICES)
    assert asked.spent_usd(NOW + timedelta(hours=2)) == pytest.approx(2 * rate)
    journal.append(Event.GONE, **about)
    never = Ledger(tmp_path / "never.jsonl", FixedClock(NOW))
    gateways.charge_gateways(never, journal.entries(), PRICES)
    assert never.lines() == ()


def test_every_node_that_ever_trained_has_fetched_its_packages() -> None:
    first = with_job(cloud_document(("n0", AWS_OFFERS[0]), ("n1", AWS_OFFERS[0])), network=NetworkAccess.PRIVATE)
    second = with_job(cloud_document(("n1", AWS_OFFERS[0]), ("n2", AWS_OFFERS[0])), network=NetworkAccess.PRIVATE)
    bare = replace(first, plan=None)
    legs = [leg(of=first, done=0), leg(of=second, done=0, generation=2), leg(of=bare, done=0, generation=3)]
    (packages,) = usage.charges(first, legs, PRICES, until=NOW)
    # 3 GB for each of three nodes.
    assert (packages.part, packages.quantity) == ("packages through NAT in us-east-1", pytest.approx(9.0))


def test_checkpoints_are_kept_until_the_bucket_of_the_run_is_gone(tmp_path: Path) -> None:
    clock = FixedClock(NOW)
    journal = Journal(tmp_path / "journal.jsonl", clock)
    for hours, kind in ((1, "aws_vpc"), (2, "aws_s3_bucket")):
        about = {"resource": kind, "key": kind}
        journal.append(Event.CREATE_INTENDED, provider="aws", region="us-east-1", stack="aws", **about)
        assert usage.bucket_end(journal.entries(), NOW + timedelta(hours=9)) == NOW + timedelta(hours=9)
        clock.instant = NOW + timedelta(hours=hours)
        journal.append(Event.GONE, **about)
    assert usage.bucket_end(journal.entries(), NOW + timedelta(hours=9)) == NOW + timedelta(hours=2)


def _billed(provider: Provider, access: NetworkAccess) -> PlanDocument:
    """A plan of one node in each of two zones, with the bill that the simulator makes for it."""
    zones = ("us-central1-a", "us-central1-b") if provider is Provider("gcp") else ("use1-az1", "use1-az2")
    resources = {"provider": provider, "zones": zones, "accelerators": {"A100-40": 8}, "markets": ["spot"]}
    job = make_job(model={**TINY, "num_attention_heads": 8}, resources=[resources], steps=100)
    job = job.model_copy(update={"cloud": job.cloud.model_copy(update={"network": access})})
    scenario = make_scenario(job)
    count = 1 if provider is Provider("gcp") else 8
    offers = [offer_in(scenario, zone, "A100-40", devices=count, market=Market.SPOT) for zone in zones]
    chains = [chain(index, [one], (0, 8), microbatch_size=1, microbatches=12) for index, one in enumerate(offers)]
    plan = make_plan(scenario, chains)
    bought = {offer.id: offer for offer in offers}
    found = evaluate(plan, replace(scenario, offers=bought))
    base = document()
    return replace(base, job=job, inputs=replace(base.inputs, offers=tuple(offers)), plan=plan, cost=found.cost)


def _make_gateways(journal: Journal, provider: Provider, plan: PlanDocument) -> None:
    region = plan.inputs.offers[0].region
    kinds = ("google_compute_router_nat",) if provider is Provider("gcp") else ("aws_nat_gateway", "aws_eip")
    for kind in kinds:
        about = {"resource": kind, "key": f"{provider}-{region}/{kind}.nat"}
        journal.append(Event.CREATE_INTENDED, provider=provider, region=region, stack=provider, **about)
        journal.append(Event.CREATED, **about)
