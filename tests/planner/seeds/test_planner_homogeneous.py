"""Homogeneous plans: equal pipelines on nodes of one offer."""

from __future__ import annotations

import pytest

from factories.planning import example, make_space
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.improvement.evaluator import Evaluator
from sailor_cloud.planner.seeds.homogeneous import homogeneous
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space.draft import nodes_of
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.restrictions import fits_whole


@pytest.mark.parametrize("batch", [250, 251])
def test_each_offer_has_a_plan_on_one_node_even_if_powers_of_two_do_not_make_up_the_batch(batch):
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "gpt2-medium"},
        training__global_batch_size=batch,
        resources__0__accelerators={"A100-40": 4, "V100-16": 4},
        resources__0__zones=["us-central1-a"],
        resources__0__markets=["on-demand"],
    )
    space = make_space(job)
    drafts = homogeneous(space, target_of(job))
    on_one_node = {pool for draft in drafts for pool, count in nodes_of(_layout(draft)).items() if count == 1}
    kinds = {(space.pools[pool].accelerator.name, space.pools[pool].devices) for pool in on_one_node}
    assert kinds == {("A100-40", 1), ("A100-40", 2), ("A100-40", 4), ("V100-16", 1), ("V100-16", 2), ("V100-16", 4)}
    for draft in drafts:
        assert sum(part.microbatches * part.microbatch_size for part in draft.pipelines) == batch
        assert len({part.slots[0].tp for part in draft.pipelines}) == 1

    alone = [draft.pipelines for draft in drafts if len(draft.pipelines) == 1]
    assert any(part.microbatch_size > 1 for (part,) in alone) == (batch == 250)


@pytest.mark.parametrize(("preset", "stages"), [("gpt2-medium", {0}), ("gpt-neo-2.7b", {0, 1})])
def test_plans_have_zero_1_too_if_some_devices_cannot_hold_the_model_without_it(preset, stages):
    job = example("gcp-a100-v100.yaml", model={"preset": preset}, resources__0__zones=["us-central1-a"])
    space = make_space(job)
    assert all(fits_whole(space)) == (stages == {0})
    assert {draft.zero_stage for draft in homogeneous(space, target_of(job))} == stages


def _layout(draft):
    return tuple(part.slots for part in draft.pipelines)


def test_the_search_also_starts_from_homogeneous_plans():
    """A third of the devices stay unused in the best plan, since single nodes and their slow cards would join in."""
    job = example(
        "gcp-a100-v100.yaml",
        model={"preset": "sailor-opt-350"},
        constraints={},
        training__global_batch_size=96,
        resources__0__zones=["us-central1-a", "us-central1-b", "us-west1-b"],
        resources__0__accelerators={"A100-40": 12, "L4-24": 6},
    )
    space = make_space(job).at(1)
    target = target_of(job)
    pools = [number for number, pool in enumerate(space.pools) if pool.devices == 8 and pool.offer.market == "spot"]
    pools = [number for number in pools if space.pools[number].offer.zone != "us-west1-b"]
    slots = [(Slot(pool, 0, 1),) for pool in pools for _ in range(8)]
    assessor = Assessor(space, target)
    one_each = assessor.draft([Shape(each, (0, space.layers), 6) for each in slots])
    expected_s = Evaluator(assessor).expected(one_each).foreseen[Figure.ITERATION_S]
    _, chosen = Searched().best(make_space(job), target)
    assert chosen.evaluation.prediction.iteration_s_replay <= expected_s * 1.001
