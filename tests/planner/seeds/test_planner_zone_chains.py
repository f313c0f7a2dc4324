"""Pipelines over zones: all replicas of a stage are on equal nodes in one zone."""

from __future__ import annotations

import math
from itertools import accumulate, groupby

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.seeds.zone_chains import ZoneChains
from sailor_cloud.planner.space.draft import to_plan
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.layouts import Slot
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


def handmade(space, cut, nodes, *, pipelines, size):
    """Seconds of pipelines with one stage on each whole node of `nodes`: accelerator, zone and number of nodes."""
    slots = []
    for name, zone, count in nodes:
        pool = next(
            number
            for number, pool in enumerate(space.pools)
            if (pool.accelerator.name, pool.offer.zone, pool.devices) == (name, zone, 8)
        )
        slots += [(pool, node) for node in range(count)]
    shapes = [
        Shape(tuple(Slot(pool, node + number * count_of(slots, pool), 8) for pool, node in slots), cut, size)
        for number in range(pipelines)
    ]
    draft = Assessor(space, target_of(space.scenario.job)).draft(shapes)
    return evaluate(to_plan(space, draft), space.scenario).prediction.iteration_s_replay


def count_of(slots, pool):
    return sum(other == pool for other, _ in slots)


def test_chains_may_pass_the_zones_with_one_accelerator_and_return_with_the_other():
    """All A100 through three zones, then all V100 back: only two cuts are between accelerators or zones each way."""
    zones = ["us-central1-a", "us-central1-b", "us-central1-c"]
    space = make_space(
        example(
            "gcp-a100-v100.yaml",
            model={"preset": "opt-30b"},
            constraints={},
            training={"global_batch_size": 256, "sequence_length": 2048, "steps": 1000, "precision": "fp16"},
            resources__0__zones=zones,
            resources__0__markets=["spot"],
            resources__0__accelerators={"A100-40": 32, "V100-16": 64},
        )
    )
    there = [("A100-40", zone, 2) for zone in zones]
    back = [("V100-16", zone, 4) for zone in reversed(zones)]
    lengths = [5] * 6 + [2] * 8 + [1] * 4
    lengths[0] += space.layers - sum(lengths)
    cut = (0, *accumulate(lengths))
    by_hand = handmade(space, cut, there + back, pipelines=2, size=1)
    best = ZoneChains(space, target_of(space.scenario.job), math.inf).draw()[0]
    assert best.foreseen[Figure.ITERATION_S] <= by_hand
    names = [space.pools[slot.pool].accelerator.name for slot in best.pipelines[0].slots]
    assert [name for name, _ in groupby(names)] == ["A100-40", "V100-16"]


def test_chains_may_pass_from_one_cloud_to_another():
    space = make_space(
        example(
            "llama3-8b-two-clouds.yaml",
            goal="maximize-throughput",
            constraints={},
            training__global_batch_size=64,
            resources__0__accelerators={"A100-40": 8},
            resources__1__accelerators={"A100-40": 8},
        )
    )
    drafts = ZoneChains(space, target_of(space.scenario.job), math.inf).draw()
    providers = [{space.pools[slot.pool].offer.provider for slot in draft.pipelines[0].slots} for draft in drafts]
    assert {"aws", "gcp"} in providers
