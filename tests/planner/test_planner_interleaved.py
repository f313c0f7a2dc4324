"""Plans of jobs that allow an interleaved schedule."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import partial

import pytest

from factories.planning import AS_OF, data, eight_v100s, make_space, plan
from sailor_cloud import planner
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.model.job import Job
from sailor_cloud.model.plan import PipelineSchedule
from sailor_cloud.report.plan.facts import outcome_facts
from sailor_cloud.simulator import ENGINES, evaluate

deep = partial(eight_v100s, "n1-standard-32")


@pytest.fixture(scope="module")
def found() -> tuple[PlanDocument, PlanDocument]:
    return plan(deep()), plan(deep(interleaved=True))


def test_the_schedule_is_taken_where_it_is_faster_and_no_bound_of_1f1b_is_claimed(
    found: tuple[PlanDocument, PlanDocument],
) -> None:
    usual, turned = found
    assert usual.plan.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B
    assert turned.plan.pipeline_schedule is PipelineSchedule.INTERLEAVED
    assert turned.prediction.iteration_s_replay < 0.97 * usual.prediction.iteration_s_replay
    assert turned.prediction.iteration_s_replay < turned.prediction.iteration_s_1f1b
    assert (turned.status, turned.bound, turned.optimality_gap) == (Status.FEASIBLE, None, None)


def test_the_plan_is_whole_and_has_its_own_figures(found: tuple[PlanDocument, PlanDocument]) -> None:
    _, turned = found
    assert turned.objective.value == pytest.approx(1.0 / turned.prediction.iteration_s_replay)
    again = evaluate(turned.plan, make_space(deep(interleaved=True)).scenario)
    assert again.fits
    assert again.prediction.iteration_s_replay == turned.prediction.iteration_s_replay
    assert PlanDocument.from_json(turned.to_json()).plan == turned.plan
    [schedule] = [fact.value for fact in outcome_facts(turned) if fact.name == "schedule"]
    assert schedule.startswith("interleaved 1F1B: 3.3 % less time per iteration than the same plan in 1F1B (")


def test_stages_whose_number_does_not_divide_the_microbatches_are_interleaved() -> None:
    # One device per node: every tensor of the many cuts goes over the network.
    usual, apart = plan(eight_v100s("n1-standard-8")), plan(eight_v100s("n1-standard-8", interleaved=True))
    assert apart.plan.pipeline_schedule is PipelineSchedule.INTERLEAVED
    [pipeline] = apart.plan.pipelines
    assert (len(pipeline.stages), pipeline.microbatches, pipeline.per_round) == (7, 16, 8)
    assert apart.prediction.iteration_s_replay < 0.95 * usual.prediction.iteration_s_replay
    assert apart.bound is None


@pytest.mark.parametrize(
    ("goal", "constraints", "better"),
    [
        ("minimize-cost", {"deadline": "30m"}, operator.le),
        ("maximize-throughput", {"budget_usd": 17}, operator.ge),
    ],
)
def test_a_job_that_allows_more_schedules_gets_no_worse_plan(
    goal: str, constraints: dict[str, object], better: Callable[[float, float], bool]
) -> None:
    # One node in each of two zones: interleaving is faster and sends more.
    def between_zones(**training: object) -> Job:
        job = deep(steps=1000, **training)
        [resource] = job.resources
        each = [
            resource.model_copy(update={"zones": (zone,), "accelerators": {"V100-16": 4}})
            for zone in ("us-central1-a", "us-central1-c")
        ]
        raw = job.model_dump(mode="json", exclude_unset=True)
        raw |= {"goal": goal, "constraints": constraints, "resources": [one.model_dump(mode="json") for one in each]}
        return Job.model_validate(raw)

    usual, free = plan(between_zones()), plan(between_zones(interleaved=True))
    assert better(free.objective.value, usual.objective.value)


@pytest.mark.slow
def test_megatron_interleaves_alike_pipelines_in_rounds_of_their_stages() -> None:
    prices, links, times = data()

    def under_megatron(**training: object) -> PlanDocument:
        job = eight_v100s("n1-standard-8", **training)
        return planner.search(
            job, catalog=prices, network=links, profiles=times, clock=FixedClock(AS_OF), engine=ENGINES["megatron"]
        )

    usual, turned = under_megatron(), under_megatron(interleaved=True)
    assert usual.plan.pipeline_schedule is PipelineSchedule.ONE_F_ONE_B
    assert turned.plan.pipeline_schedule is PipelineSchedule.INTERLEAVED
    assert len({tuple(stage.ranges for stage in each.stages) for each in turned.plan.pipelines}) == 1
    assert all(each.microbatches % len(each.stages) == 0 for each in turned.plan.pipelines)
    # Transfers overlap, and the bubble is shorter.
    assert turned.prediction.iteration_s_replay < 0.8 * usual.prediction.iteration_s_replay
    assert (turned.status, turned.bound) == (Status.FEASIBLE, None)
