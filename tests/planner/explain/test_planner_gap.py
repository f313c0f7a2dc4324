"""What a plan's goal is made of: parts that add up, none of them less than nothing."""

from __future__ import annotations

import pytest

from factories.planning import example, make_space, plan, tiny_job
from sailor_cloud.planner.bound.bounds import goal_bound, work_bound_s
from sailor_cloud.planner.enumeration.exhaustive import exhaust, small_layouts
from sailor_cloud.planner.explain.gap import gap_parts
from sailor_cloud.planner.space.goals import target_of
from sailor_cloud.report.plan.facts import outcome_facts


@pytest.mark.parametrize("goal", ["maximize-throughput", "minimize-time", "minimize-cost"])
@pytest.mark.parametrize("steps", [None, 40])
def test_parts_begin_with_work_alone_add_up_and_are_never_negative(goal, steps):
    job = tiny_job(blocks=3, batch=4, hidden=64, accelerators={"CPU-fast": 1, "CPU-slow": 1}, goal=goal)
    job = job.model_copy(update={"training": job.training.model_copy(update={"steps": steps})})
    space, target = make_space(job), target_of(job)
    work, bound = (goal_bound(space, target, close=close) for close in (False, True))
    found = exhaust(space, target, small_layouts(space), keep=8)
    assert len(found.drafts) > 1
    for draft in found.drafts:
        parts = gap_parts(space, target, draft, draft.figures)
        value = draft.figures[target.goal]
        assert parts[0].amount == work <= bound <= value * (1 + 1e-9)
        assert sum(part.amount for part in parts) == pytest.approx(value, rel=1e-9)
        assert min(part.amount for part in parts) > -1e-9 * value


def test_fewer_devices_have_a_longer_bound():
    space = make_space(tiny_job(blocks=3, batch=6, accelerators={"CPU-fast": 2, "CPU-slow": 1}))
    assert work_bound_s(space, {"CPU-fast": 1.0}) > work_bound_s(space, {"CPU-fast": 2.0}) > work_bound_s(space)


def test_a_wide_gap_is_explained_in_the_report():
    one_zone = {"resources__0__zones": ["us-central1-a"], "resources__0__markets": ["spot"]}
    small = {"training__global_batch_size": 64, "training__max_zero_stage": 0, **one_zone}
    document = plan(example("gcp-a100-v100.yaml", **small))
    gap = next(fact for fact in outcome_facts(document) if fact.name == "gap")
    assert sum(part.amount for part in document.gap_parts) == pytest.approx(document.prediction.iteration_s_replay)
    assert f" here, at least {1 / document.bound:.4g} s for any plan" in gap.value
    assert "work on all offered devices without idle time" in gap.value
    assert "s for waits on slower stages and transfers" in gap.value
