"""Plans of jobs that allow a zero-bubble schedule."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from factories.planning import eight_v100s, example, make_space, plan
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.model.plan import PipelineSchedule
from sailor_cloud.report.plan.facts import outcome_facts
from sailor_cloud.simulator import evaluate
from sailor_cloud.simulator.engines import ENGINES

deep = partial(eight_v100s, "n1-standard-8")


@pytest.fixture(scope="module")
def found() -> tuple[PlanDocument, PlanDocument]:
    return plan(deep()), plan(deep(zero_bubble=True))


def test_the_schedule_is_taken_where_it_is_faster_and_no_bound_of_1f1b_is_claimed(
    found: tuple[PlanDocument, PlanDocument],
) -> None:
    usual, halved = found
    assert usual.plan.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B
    assert halved.plan.pipeline_schedule is PipelineSchedule.ZERO_BUBBLE
    assert halved.prediction.iteration_s_replay < 0.95 * usual.prediction.iteration_s_replay
    assert (halved.status, halved.bound, halved.optimality_gap) == (Status.FEASIBLE, None, None)
    assert usual.bound is not None


def test_the_choices_have_the_figures_of_the_plan(found: tuple[PlanDocument, PlanDocument]) -> None:
    _, halved = found
    assert halved.objective.value == pytest.approx(1.0 / halved.prediction.iteration_s_replay)
    again = evaluate(halved.plan, make_space(deep(zero_bubble=True)).scenario)
    assert again.fits
    assert again.prediction.iteration_s_replay == halved.prediction.iteration_s_replay


def test_a_report_says_how_much_faster_the_schedule_is(found: tuple[PlanDocument, PlanDocument]) -> None:
    usual, halved = found
    facts = {fact.name: fact.value for fact in outcome_facts(halved)}
    assert facts["schedule"] == (
        "zero-bubble (ZB-H1): 17 % less time per iteration than the same plan in 1F1B (1.20 s)"
    )
    assert halved.prediction.iteration_s_1f1b == pytest.approx(1.197, abs=1e-3)
    assert "schedule" not in {fact.name for fact in outcome_facts(usual)}
    assert "iteration_s_1f1b" not in usual.to_json()


def test_a_plan_that_leaves_no_memory_for_the_schedule_changes_until_it_fits() -> None:
    large = {"global_batch_size": 64, "sequence_length": 1536}
    usual = plan(deep(**large)).plan
    halved = plan(deep(zero_bubble=True, **large))
    assert halved.plan.pipeline_schedule is PipelineSchedule.ZERO_BUBBLE
    scenario = make_space(deep(zero_bubble=True, **large)).scenario
    as_it_was = evaluate(replace(usual, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE), scenario)
    assert not as_it_was.fits
    assert evaluate(halved.plan, scenario).fits
    assert halved.prediction.iteration_s_replay < 0.9 * evaluate(usual, scenario).prediction.iteration_s_replay


def test_one_stage_keeps_the_usual_schedule_and_so_does_an_engine_without_the_other() -> None:
    job = deep(zero_bubble=True)
    space = make_space(job)
    assert PipelineSchedule.ZERO_BUBBLE in space.scenario.engine.schedules
    few = {"resources__0__zones": ["us-central1-a"], "resources__0__accelerators": {"A100-40": 4}}
    single = plan(example("gcp-a100-v100.yaml", training__zero_bubble=True, **few))
    assert all(len(pipeline.stages) == 1 for pipeline in single.plan.pipelines)
    assert single.plan.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B
    assert PipelineSchedule.ZERO_BUBBLE not in ENGINES["megatron"].schedules


def test_compiled_layers_stay_whole() -> None:
    with pytest.raises(ValueError, match="zero_bubble halves backward passes, which compiled layers can't"):
        deep(zero_bubble=True, compile=True)
