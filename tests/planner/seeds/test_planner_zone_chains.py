"""Pipelines over zones: all replicas of a stage are on equal nodes in one zone."""

from __future__ import annotations

import math

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.seeds.zone_chains import ZoneChains
from sailor_cloud.planner.space.draft import to_plan
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.simulator import evaluate

# Large weights: their all-reduces between zones take longer than activations.
LARGE = {
    "model": {"preset": "opt-6.7b"},
    "constraints": {},
    "resources__0__zones": ["us-central1-a", "us-central1-b"],
    "resources__0__accelerators": {"A100-40": 16, "V100-16": 8},
}


@pytest.fixture(scope="module")
def space():
    return make_space(example("gcp-a100-v100.yaml", **LARGE))


@pytest.fixture(scope="module")
def drafts(space):
    return ZoneChains(space, target_of(space.scenario.job), math.inf).draw()


def test_replicas_of_a_stage_are_on_equal_nodes_in_one_zone_and_pipelines_are_in_several_places(space, drafts):
    assert any(len({space.pools[slot.pool].offer.zone for slot in draft.pipelines[0].slots}) == 2 for draft in drafts)
    for draft in drafts:
        stages = list(zip(*(pipeline.slots for pipeline in draft.pipelines), strict=True))
        assert all(len({(slot.pool, slot.tp) for slot in stage}) == 1 for stage in stages)
        assert len({slot.pool for slot in draft.pipelines[0].slots}) > 1


def test_figures_are_those_of_the_replay_and_plans_fit(space, drafts):
    for draft in drafts:
        plan = to_plan(space, draft)
        plan.check(layers=space.layers, global_batch_size=space.batch)
        evaluation = evaluate(plan, space.scenario)
        assert evaluation.fits
        assert evaluation.prediction.iteration_s_replay == pytest.approx(draft.foreseen[Figure.ITERATION_S], rel=1e-9)


def test_what_can_not_beat_the_known_plan_is_not_drawn(space, drafts):
    best_s = min(draft.foreseen[Figure.ITERATION_S] for draft in drafts)
    assert ZoneChains(space, target_of(space.scenario.job), best_s / 10.0).draw() == []


@pytest.mark.parametrize("limit", [{"max_usd_per_hour": 1}, {"max_nodes": 1}])
def test_nothing_is_drawn_beyond_a_limit(limit):
    space = make_space(example("gcp-a100-v100.yaml", **LARGE | {"constraints": limit}))
    assert ZoneChains(space, target_of(space.scenario.job), math.inf).draw() == []
