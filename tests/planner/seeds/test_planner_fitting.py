"""Models that hardly fit get a pipeline over nodes and degrees of all sizes."""

from __future__ import annotations

from collections import Counter

import pytest

from factories.planning import AS_OF, data, example, make_space, tiny_job
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import Status
from sailor_cloud.planner import search
from sailor_cloud.planner.enumeration import exhaustive
from sailor_cloud.planner.improvement.choice import simulated
from sailor_cloud.planner.seeds.fitting import fitting
from sailor_cloud.planner.seeds.homogeneous import homogeneous
from sailor_cloud.planner.space.goals import target_of


def large(accelerators, **changes):
    changes = {"constraints": {}, "resources__0__zones": ["us-central1-a"], "model": {"preset": "opt-30b"}, **changes}
    return example("gcp-a100-v100.yaml", resources__0__accelerators=accelerators, **changes)


@pytest.mark.parametrize("accelerators", [{"L4-24": 28}, {"V100-16": 44}, {"V100-16": 30, "L4-24": 12}])
def test_what_equal_stages_do_not_hold_is_held_by_unequal_ones(accelerators):
    job = large(accelerators)
    space, target = make_space(job), target_of(job)
    assert homogeneous(space, target) == []
    found = fitting(space, target)
    assert found
    for draft in found:
        (pipeline,) = draft.pipelines
        used = Counter()
        for slot in pipeline.slots:
            used[space.pools[slot.pool].accelerator.name] += slot.tp
        assert all(used[name] <= accelerators[name] for name in used)
        assert simulated(space, draft) is not None


def test_a_job_that_only_such_a_pipeline_fits_has_a_plan():
    prices, links, times = data()
    job = large({"L4-24": 28}, training__global_batch_size=64)
    document = search(job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF))
    assert document.status is Status.FEASIBLE
    assert len({stage.tp for pipeline in document.plan.pipelines for stage in pipeline.stages}) > 1


@pytest.mark.parametrize("slow", range(1, 7))
@pytest.mark.parametrize("fast", range(2))
def test_a_small_job_has_such_a_pipeline_if_and_only_if_any_plan_of_it_fits(slow, fast):
    counts = {name: count for name, count in {"CPU-slow": slow, "CPU-fast": fast}.items() if count}
    job = tiny_job(blocks=3, hidden=256, batch=1, zones=("local-a",), accelerators=counts)
    space, target = make_space(job), target_of(job)
    layouts = exhaustive.small_layouts(space)
    plans = exhaustive.exhaust(space, target, layouts, keep=1).drafts
    assert bool(fitting(space, target)) == bool(plans)


def test_equal_layers_are_left_to_other_seeds():
    job = large({"L4-24": 26})
    assert fitting(make_space(job).restricted(even_layers=True), target_of(job)) == []
