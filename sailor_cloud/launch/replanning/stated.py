"""Keeps the schedule and ZeRO stage of a user's layout in later plans, as far as these allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.plan import PipelineSchedule, Plan


class PlanPredictor(Protocol):
    """A function that predicts a document's plan."""

    def predict(self, document: PlanDocument) -> PlanDocument: ...


def allow_stated_settings(job: Job, stated: Plan | None) -> Job:
    """Return the job with everything that a stated plan uses, even if the job does not ask for it."""
    if stated is None:
        return job
    training = job.training
    changes: dict[str, object] = {}
    if stated.pipeline_schedule is PipelineSchedule.ZERO_BUBBLE:
        changes["zero_bubble"] = True
    if stated.pipeline_schedule is PipelineSchedule.INTERLEAVED:
        changes["interleaved"] = True
    if stated.zero_stage >= 2 and training.max_zero_stage is None:
        changes["max_zero_stage"] = stated.zero_stage
    return job.model_copy(update={"training": training.model_copy(update=changes)})


def with_stated_settings(
    document: PlanDocument, stated: Plan | None, judge: PlanPredictor, in_limits: Callable[[PlanDocument], bool]
) -> PlanDocument:
    """Return the document with the stated schedule and ZeRO stage, or one of them, or unchanged.

    A setting is left out if the pipelines can't have it, if memory is too small, or if it is not `in_limits`.
    """
    plan = document.plan
    if stated is None or plan is None:
        return document
    wanted, has = _settings(stated), _settings(plan)
    for zero, schedule in dict.fromkeys([wanted, (has[0], wanted[1]), (wanted[0], has[1])]):
        if (zero, schedule) == has:
            return document
        ranges = max(len(stage.ranges) for pipeline in stated.pipelines for stage in pipeline.stages)
        other = plan.interleaved(ranges if schedule is PipelineSchedule.INTERLEAVED else 1)
        if other is None:
            continue
        other = replace(other, zero_stage=zero, pipeline_schedule=schedule)
        try:
            found = judge.predict(replace(document, plan=other, bound=None, optimality_gap=None))
        except RequestError:
            continue
        assert found.prediction is not None, "a plan for a model is predicted"
        if all(stage.total_bytes <= stage.limit_bytes for stage in found.prediction.memory) and in_limits(found):
            return found
    return document


def dropped_settings_note(document: PlanDocument, stated: Plan | None) -> str | None:
    """Return a note on the stated schedule or ZeRO stage that a plan lacks; None if it has both."""
    plan = document.plan
    if stated is None or plan is None or _settings(plan) == _settings(stated):
        return None
    changes, wanted = [], []
    if plan.zero_stage != stated.zero_stage:
        changes.append(f"ZeRO-{plan.zero_stage} instead of ZeRO-{stated.zero_stage}")
        wanted.append(f"ZeRO-{stated.zero_stage}")
    if plan.pipeline_schedule is not stated.pipeline_schedule:
        changes.append(f"the {plan.pipeline_schedule} schedule instead of {stated.pipeline_schedule}")
        wanted.append(str(stated.pipeline_schedule))
    has, lacks = " and ".join(changes), " with ".join(wanted)
    reasons = "its pipelines, its memory, or what is left of time and money do not allow"
    return f"the new plan has {has}: {reasons} {lacks}"


def _settings(plan: Plan) -> tuple[int, PipelineSchedule]:
    return plan.zero_stage, plan.pipeline_schedule
