"""Writes a plan as JSON in the format of Sailor's artifact."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sailor_cloud.errors import RequestError
from sailor_cloud.interchange.sailor_names import their_accelerator
from sailor_cloud.model.offer import Hardware
from sailor_cloud.model.plan import Pipeline, PipelineSchedule, Plan, Recompute


def export_plan(plan: Plan, offers: Mapping[str, Hardware]) -> dict[str, Any]:
    """Return `{mbs, pipeline_list: [{num_stages, layers_per_stage, tmp_per_stage, dp}]}`.

    Pipelines with equal cuts become replicas of one entry. Per stage, `tmp_per_stage` has one `[[[gpu, gpus_per_node,
    zone]], tp]` per replica. Raises RequestError for plans beyond the format, which has one microbatch size, no
    recomputation and no ZeRO.
    """
    _refuse(plan)
    alike: dict[tuple[int, ...], list[Pipeline]] = {}
    for pipeline in plan.pipelines:
        alike.setdefault(tuple(stage.first_layer for stage in pipeline.stages), []).append(pipeline)
    return {
        "mbs": plan.pipelines[0].microbatch_size,
        "pipeline_list": [_entry(plan, replicas, offers) for replicas in alike.values()],
    }


def _refuse(plan: Plan) -> None:
    sizes = sorted({pipeline.microbatch_size for pipeline in plan.pipelines})
    if len(sizes) > 1:
        raise RequestError(
            f"the sailor-artifact format has one microbatch size; the plan has {', '.join(map(str, sizes))}"
        )
    if plan.zero_stage:
        raise RequestError(f"the sailor-artifact format has no ZeRO; the plan has zero_stage {plan.zero_stage}")
    if plan.pipeline_schedule is not PipelineSchedule.ONE_F_ONE_B:
        raise RequestError(
            f"the sailor-artifact format has 1F1B alone; the plan's schedule is {plan.pipeline_schedule}"
        )
    if any(stage.recompute is not Recompute.NONE for pipeline in plan.pipelines for stage in pipeline.stages):
        raise RequestError("the sailor-artifact format has no recomputation; the plan recomputes in some stages")


def _entry(plan: Plan, replicas: list[Pipeline], offers: Mapping[str, Hardware]) -> dict[str, Any]:
    stages = replicas[0].stages
    return {
        "num_stages": len(stages),
        "layers_per_stage": [list(stage.layers) for stage in stages],
        "tmp_per_stage": [
            [_replica(plan, pipeline, index, offers) for pipeline in replicas] for index in range(len(stages))
        ],
        "dp": [len(replicas)] * len(stages),
    }


def _replica(plan: Plan, pipeline: Pipeline, index: int, offers: Mapping[str, Hardware]) -> list[Any]:
    stage = pipeline.stages[index]
    offer = offers[plan.node(stage.node).offer]
    machine = [their_accelerator(offer.accelerator), offer.accelerator_count, offer.zone]
    return [[machine], stage.tp]
