"""The plan of a command without a model: exactly what the resources name, in the cheapest zone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sailor_cloud import api, catalog
from sailor_cloud.clock import DatedClock
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.spend.lifetime import life_s
from sailor_cloud.model.document import CostKind, Pick, PlanDocument, Status
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.planner.purchase import purchase
from sailor_cloud.report.plan.facts import outcome_facts, request_facts
from sailor_cloud.units import SECONDS_PER_HOUR

CLOCK = DatedClock(datetime(2026, 11, 24, tzinfo=UTC))
ZONES = "[us-central1-a, us-central1-b, us-central1-c, us-central1-f]"


def bought(resources: str, rest: str = "", **how: object) -> PlanDocument:
    job = parse_job(f"name: any\nrun: torchrun train.py\nresources:\n{resources}\n{rest}")
    return purchase(job, catalog=catalog.load(), clock=CLOCK, **how)  # type: ignore[arg-type]


def gcp(accelerators: str, zones: str = ZONES, market: str = "on-demand") -> str:
    return f"  - {{provider: gcp, zones: {zones}, markets: [{market}], accelerators: {accelerators}}}"


def test_exactly_what_is_named_is_bought_in_equal_nodes_of_one_zone_and_no_other_zone_is_cheaper() -> None:
    found = bought(gcp("{A100-40: 16}"))
    assert found.status is Status.OPTIMAL
    assert found.plan is not None
    assert found.cost is not None
    assert sum(node.devices for node in found.plan.nodes) == 16
    assert len({node.offer for node in found.plan.nodes}) == 1
    assert found.plan.world_size == 16
    for zone in ("us-central1-a", "us-central1-b", "us-central1-c", "us-central1-f"):
        there = bought(gcp("{A100-40: 16}", f"[{zone}]"))
        assert there.cost is None or there.cost.usd_per_hour >= found.cost.usd_per_hour * (1 - 1e-9)


def test_refused_nodes_are_bought_elsewhere() -> None:
    first = bought(gcp("{A100-40: 8}"))
    zone = first.home.zone
    second = bought(gcp("{A100-40: 8}"), refused=lambda offer: offer.zone == zone)
    assert second.plan is not None
    assert second.home.zone != zone
    nothing = bought(gcp("{A100-40: 8}"), refused=lambda offer: True)
    assert nothing.plan is None
    assert nothing.infeasibility is not None
    assert "refused lately" in nothing.infeasibility.message


@pytest.mark.parametrize(
    ("begin", "end", "bought_at_all"),
    [
        ("2026-11-20T11:30:00Z", "2026-11-21T11:30:00Z", False),
        # Nodes in a block end half an hour before it.
        ("2026-11-23T00:30:00Z", "2026-11-24T00:30:00Z", False),
        ("2026-11-23T00:31:00Z", "2026-11-24T00:31:00Z", True),
        ("2026-11-25T11:30:00Z", "2026-11-26T11:30:00Z", True),
    ],
)
def test_a_block_that_has_ended_is_not_bought_in(begin: str, end: str, bought_at_all: bool) -> None:
    block = (
        f"{{name: b, market: capacity-block, provider: aws, zone: use1-az4, instance_type: p4d.24xlarge, nodes: 1,"
        f" id: cr-0123456789abcdef0, starts_at: {begin}, ends_at: {end}}}"
    )
    entry = "  - {provider: aws, zones: [use1-az4], markets: [capacity-block], accelerators: {A100-40: 8}}"
    found = bought(entry, f"constraints: {{deadline: 2d}}\ncloud: {{capacity: [{block}]}}")
    assert (found.plan is not None) == bought_at_all
    if found.plan is None:
        assert found.infeasibility is not None
        assert "every offer of A100-40 was refused lately or has ended" in found.infeasibility.message
    else:
        assert found.ttl_s is not None
        assert found.ttl_s > 0.0


@pytest.mark.parametrize(
    ("budget_usd", "why"),
    [
        (50, "how long 95 % of the budget lasts at list prices"),
        (120, "1.3 times the planned time, as a margin for delays"),
    ],
)
def test_the_ttl_of_a_command_says_what_sets_it(budget_usd: int, why: str) -> None:
    limits = f"constraints: {{budget_usd: {budget_usd}}}"
    found = bought(gcp("{A100-40: 8}", market="spot"), f"training: {{steps: 20000}}\nthroughput: 2\n{limits}")
    facts = {fact.name: fact.value for fact in request_facts(found)}
    assert facts["TTL"].endswith(f"; that is {why}")
    assert life_s(found) == pytest.approx(found.ttl_s)


def test_a_stated_rate_gives_the_price_of_a_step_and_of_the_run() -> None:
    unknown = bought(gcp("{A100-40: 8}"), "training: {steps: 1000}").cost
    known = bought(gcp("{A100-40: 8}"), "training: {steps: 1000}\nthroughput: 0.5").cost
    assert unknown is not None
    assert known is not None
    assert (unknown.usd_per_iteration, unknown.total_usd) == (None, None)
    assert known.usd_per_iteration == pytest.approx(known.usd_per_hour * 2.0 / SECONDS_PER_HOUR)
    compute = sum(line.usd for line in known.lines if line.kind is CostKind.COMPUTE)
    assert compute == pytest.approx(sum(line.usd for line in unknown.lines if line.kind is CostKind.COMPUTE) * 2 / 3.6)
    assert known.total_usd is not None
    assert known.total_usd > compute


@pytest.mark.parametrize(
    ("rest", "constraint"),
    [
        ("constraints: {max_nodes: 1}", "resources"),
        ("constraints: {max_usd_per_hour: 1}", "max_usd_per_hour"),
        ("constraints: {budget_usd: 1}\ntraining: {steps: 10000}\nthroughput: 0.5", "budget_usd"),
        ("constraints: {deadline: 1h}\ntraining: {steps: 10000}\nthroughput: 0.5", "deadline"),
        # Training alone is exactly one hour.
        ("constraints: {deadline: 1h}\ntraining: {steps: 1800}\nthroughput: 0.5", "deadline"),
        ("constraints: {min_throughput: 1}\nthroughput: 0.5", "min_throughput"),
    ],
)
def test_the_limit_that_a_purchase_breaks_is_named(rest: str, constraint: str) -> None:
    found = bought(gcp("{A100-40: 32}"), rest)
    assert found.plan is None
    assert found.infeasibility is not None
    assert found.infeasibility.constraint == constraint


def test_nodes_on_a_cloud_never_stand_in_two_zones() -> None:
    apart = "\n".join((gcp("{A100-40: 1}", "[us-central1-a]"), gcp("{V100-16: 1}", "[us-central1-b]")))
    found = bought(apart)
    assert found.infeasibility is not None
    assert "us-central1-a, us-central1-b" in found.infeasibility.message


def test_a_number_that_no_equal_nodes_have_is_named() -> None:
    found = bought(gcp("{A100-40: 7}, instance_types: [a2-highgpu-4g]"))
    assert found.infeasibility is not None
    assert "7 A100-40 don't divide into equal nodes, which carry 4" in found.infeasibility.message


def test_the_batch_is_shared_among_all_devices_to_the_last_sample() -> None:
    found = bought(gcp("{A100-40: 8}"), "training: {global_batch_size: 100, sequence_length: 10}")
    assert found.plan is not None
    assert found.plan.global_batch_size == 100
    assert {pipeline.samples for pipeline in found.plan.pipelines} == {12, 13}


def test_the_document_is_read_back_as_it_was_written() -> None:
    found = bought(gcp("{A100-40: 8}"), "throughput: measured\nenv: {TOKEN: null}")
    assert PlanDocument.from_json(found.to_json()) == found


@pytest.mark.parametrize("wish", [{"choose": Pick.BALANCED}, {"top": 3}, {"engine": "megatron"}])
def test_an_option_that_needs_a_model_is_refused_rather_than_ignored(wish: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="states no model"):
        api.plan(parse_job(f"name: any\nrun: train.sh\nresources:\n{gcp('{A100-40: 16}')}\n"), clock=CLOCK, **wish)


@pytest.mark.parametrize(
    ("rest", "total"),
    [
        ("", "unknown without a rate; give throughput and training.steps to know it"),
        ("training: {steps: 500}", "unknown without a rate; give throughput to know it"),
        ("throughput: 0.5", "unknown without a number of steps; give training.steps to know it"),
        ("throughput: measured", "unknown without a rate; give training.steps to know it after 20 steps"),
        ("throughput: measured\ntraining: {steps: 500}", "unknown without a rate; known once 20 steps are measured"),
    ],
)
def test_an_unknown_total_says_what_it_needs(rest: str, total: str) -> None:
    found = bought(gcp("{A100-40: 8}"), rest)
    assert {fact.name: fact.value for fact in outcome_facts(found)}["total"] == total
