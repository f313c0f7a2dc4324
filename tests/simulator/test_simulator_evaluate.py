"""The whole answer for one plan."""

from __future__ import annotations

import dataclasses

import pytest

from factories.scenarios import chain, gcp_scenario, make_job, make_plan, make_scenario, offer_in, two_stage_plan
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import CostKind
from sailor_cloud.simulator import evaluate


def test_a_local_plan_has_time_memory_and_money() -> None:
    scenario = make_scenario(make_job())
    answer = evaluate(two_stage_plan(scenario), scenario)
    assert answer.fits
    assert 0.01 < answer.prediction.iteration_s_replay < 10
    assert answer.cost.total_usd == pytest.approx(sum(line.usd for line in answer.cost.lines))
    assert {line.kind for line in answer.cost.lines} >= {CostKind.COMPUTE, CostKind.EGRESS, CostKind.STARTUP}
    assert [(use.src_zone, use.dst_zone) for use in answer.links] == [("local-a", "local-b"), ("local-b", "local-a")]


def test_waits_of_every_stage_add_up_to_the_iteration() -> None:
    scenario = make_scenario(make_job())
    answer = evaluate(two_stage_plan(scenario), scenario)
    for stage in answer.stage_waits:
        waits = stage.waits
        total = waits.compute_s + waits.transfer_s + waits.bubble_s + waits.sync_s
        assert total == pytest.approx(answer.prediction.iteration_s_replay)
        assert min(waits.compute_s, waits.transfer_s, waits.sync_s) >= 0
        assert waits.bubble_s >= -1e-9


def test_the_whole_model_does_not_fit_where_memory_is_too_small() -> None:
    scenario = make_scenario(make_job())
    batch = scenario.job.training.global_batch_size
    whole = {
        name: make_plan(
            scenario,
            [chain(0, [offer_in(scenario, "local-a", name)], (0, 8), microbatch_size=1, microbatches=batch)],
        )
        for name in ("CPU-fast", "CPU-slow")
    }
    assert evaluate(whole["CPU-fast"], scenario).fits
    assert not evaluate(whole["CPU-slow"], scenario).fits


def test_spot_nodes_carry_a_recovery_reserve_and_a_worst_case_at_the_on_demand_price() -> None:
    from sailor_cloud.model.offer import Market

    scenario = gcp_scenario(batch=64)
    bills = {}
    for market in (Market.ON_DEMAND, Market.SPOT):
        offer = offer_in(scenario, "us-central1-a", "A100-40", devices=8, market=market)
        bills[market] = evaluate(
            make_plan(scenario, [chain(0, [offer], (0, 26), microbatch_size=2, microbatches=32)]), scenario
        ).cost
    spot, on_demand = bills[Market.SPOT], bills[Market.ON_DEMAND]
    assert any(line.kind is CostKind.RECOVERY for line in spot.lines)
    assert not any(line.kind is CostKind.RECOVERY for line in on_demand.lines)
    assert spot.total_usd < on_demand.total_usd
    assert spot.worst_case_usd > on_demand.total_usd


def test_a_plan_is_refused_with_every_fault_and_the_offending_values() -> None:
    scenario = make_scenario(make_job())
    good = two_stage_plan(scenario)
    pipeline = good.pipelines[0]
    first, second = pipeline.stages
    bad = dataclasses.replace(
        good,
        zero_stage=4,
        nodes=(*good.nodes, dataclasses.replace(good.nodes[0], id="x", offer="nowhere")),
        pipelines=(
            dataclasses.replace(pipeline, stages=(first, dataclasses.replace(second, first_layer=7, end_layer=9))),
        ),
    )
    with pytest.raises(RequestError) as raised:
        evaluate(bad, scenario)
    text = str(raised.value)
    assert "holds layers [7, 9), expected to start at 6" in text
    assert "covers layers up to 9, the model has 8" in text
    assert "unknown offer 'nowhere'" in text
    assert "zero_stage: is 4" in text


def test_a_tp_that_cuts_no_head_in_whole_is_refused_with_its_place_and_numbers() -> None:
    scenario = gcp_scenario(batch=64)
    offer = offer_in(scenario, "us-central1-a", "A100-40", devices=4)
    nodes, pipeline = chain(0, [offer], (0, 26), microbatch_size=2, microbatches=32)
    odd = dataclasses.replace(pipeline, stages=(dataclasses.replace(pipeline.stages[0], devices=(0, 1, 2)),))
    with pytest.raises(RequestError) as raised:
        evaluate(make_plan(scenario, [(nodes, odd)]), scenario)
    where = "plan.pipelines[0].stages[0].devices"
    assert f"{where}: tp 3 does not divide the 16 attention heads of sailor-opt-350" in str(raised.value)


def test_an_offer_in_an_unknown_zone_is_refused() -> None:
    scenario = make_scenario(make_job())
    plan = two_stage_plan(scenario)
    offers = dict(scenario.offers)
    offers[plan.nodes[0].offer] = dataclasses.replace(offers[plan.nodes[0].offer], zone="atlantis-1a")
    with pytest.raises(RequestError, match="unknown zone 'atlantis-1a'"):
        evaluate(plan, dataclasses.replace(scenario, offers=offers))
