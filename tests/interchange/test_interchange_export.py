"""Plans in the form of Sailor's artifact."""

from __future__ import annotations

import dataclasses

import pytest

from factories.scenarios import chain, gcp_scenario, make_plan, offer_in
from sailor_cloud.errors import RequestError
from sailor_cloud.interchange import export_plan
from sailor_cloud.model.plan import PipelineSchedule, Plan, Recompute
from sailor_cloud.simulator import Scenario


def mixed_plan() -> tuple[Plan, Scenario]:
    """Two like pipelines on A100 and V100 nodes in two zones."""
    scenario = gcp_scenario(batch=64)
    a = offer_in(scenario, "us-central1-a", "A100-40", devices=4)
    v = offer_in(scenario, "us-central1-b", "V100-16", devices=8)
    chains = [chain(p, [a, v], (0, 20, 26), microbatch_size=2, microbatches=16) for p in range(2)]
    return make_plan(scenario, chains), scenario


def test_like_pipelines_become_replicas_of_one_entry() -> None:
    plan, scenario = mixed_plan()
    assert export_plan(plan, scenario.offers) == {
        "mbs": 2,
        "pipeline_list": [
            {
                "num_stages": 2,
                "layers_per_stage": [list(range(20)), list(range(20, 26))],
                "tmp_per_stage": [
                    [[[["A100-40", 4, "us-central1-a"]], 4], [[["A100-40", 4, "us-central1-a"]], 4]],
                    [[[["V100-16", 8, "us-central1-b"]], 8], [[["V100-16", 8, "us-central1-b"]], 8]],
                ],
                "dp": [2, 2],
            }
        ],
    }


def test_pipelines_cut_differently_become_entries_of_their_own() -> None:
    plan, scenario = mixed_plan()
    first, second = plan.pipelines
    other = dataclasses.replace(
        second,
        stages=(
            dataclasses.replace(second.stages[0], end_layer=18),
            dataclasses.replace(second.stages[1], first_layer=18),
        ),
    )
    written = export_plan(dataclasses.replace(plan, pipelines=(first, other)), scenario.offers)
    assert [entry["dp"] for entry in written["pipeline_list"]] == [[1, 1], [1, 1]]
    assert written["pipeline_list"][1]["layers_per_stage"][0] == list(range(18))


def test_plans_beyond_the_format_are_refused_with_the_reason() -> None:
    plan, scenario = mixed_plan()
    first, second = plan.pipelines
    wide = dataclasses.replace(plan, pipelines=(first, dataclasses.replace(second, microbatch_size=4)))
    with pytest.raises(RequestError, match="one microbatch size; the plan has 2, 4"):
        export_plan(wide, scenario.offers)
    with pytest.raises(RequestError, match="no ZeRO; the plan has zero_stage 1"):
        export_plan(dataclasses.replace(plan, zero_stage=1), scenario.offers)
    with pytest.raises(RequestError, match="1F1B alone; the plan's schedule is zero-bubble"):
        export_plan(dataclasses.replace(plan, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE), scenario.offers)
    again = dataclasses.replace(
        first, stages=tuple(dataclasses.replace(s, recompute=Recompute.FULL) for s in first.stages)
    )
    with pytest.raises(RequestError, match="no recomputation"):
        export_plan(dataclasses.replace(plan, pipelines=(again, second)), scenario.offers)
