"""Small problems are solved exactly."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from factories.brute_force import figures
from factories.planning import make_space, plan, tiny_job
from sailor_cloud.model.offer import MINIMUM_BILLED_S, Provider
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.simulator import startup_s, teardown_s

FIXED_S = startup_s(Provider("local")) + teardown_s(Provider("local"))


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    blocks=st.integers(1, 2),
    batch=st.integers(1, 4),
    zones=st.sampled_from([("local-a",), ("local-a", "local-b")]),
    fast=st.integers(0, 2),
    slow=st.integers(0, 2),
    max_nodes=st.integers(1, 3),
    goal=st.sampled_from(["maximize-throughput", "minimize-cost", "minimize-time"]),
    at_most=st.floats(0.6, 3.0),
)
def test_the_search_equals_brute_force(blocks, batch, zones, fast, slow, max_nodes, goal, at_most):
    wanted = {name: count for name, count in (("CPU-fast", fast), ("CPU-slow", slow)) if count}
    job = tiny_job(
        blocks=blocks,
        batch=batch,
        zones=zones,
        accelerators=wanted or {"CPU-fast": 1},
        goal=goal,
        constraints={"max_nodes": max_nodes, "max_usd_per_hour": at_most},
    )
    space = make_space(job)
    kept = [
        {
            "maximize-throughput": seconds,
            "minimize-time": 10 * seconds + FIXED_S,
            "minimize-cost": rate * max(10 * seconds + FIXED_S, MINIMUM_BILLED_S) / 3600 + 10 * egress,
        }[goal]
        for seconds, rate, egress in figures(space.scenario)
        if rate + egress * 3600 / seconds <= at_most * (1 + 1e-9)
    ]
    layouts = small_layouts(space)
    found = [
        draft.figures[target_of(job).goal]
        for zero_stage in (0, 1)
        for draft in exhaust(space.at(zero_stage), target_of(job), layouts, keep=1).drafts
    ]

    if not kept:
        assert not found
    else:
        assert min(found) == pytest.approx(min(kept), rel=1e-9)


def test_the_figures_of_a_draft_are_those_of_the_simulator():
    document = plan(tiny_job(blocks=4, batch=12, hidden=64))
    assert document.objective.value == pytest.approx(1 / document.prediction.iteration_s_replay, rel=1e-9)


def test_a_model_too_big_for_any_device_is_cut_over_several():
    document = plan(tiny_job(blocks=6, hidden=512, batch=4))
    assert document.plan is not None
    assert all(stage.total_bytes <= stage.limit_bytes for stage in document.prediction.memory)
    assert all(len(pipeline.stages) > 1 for pipeline in document.plan.pipelines)


def test_without_steps_only_rates_limit_a_plan():
    limits = {"budget_usd": 1e-9, "deadline": "1s"}
    document = plan(tiny_job(steps=None, zones=("local-a",), goal="minimize-cost", constraints=limits))
    assert document.objective.unit == "USD/iteration"
    assert document.cost.total_usd is None
