"""A re-plan of a layout that a user gave keeps its schedule and its ZeRO stage where they fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from factories.planning import AS_OF, example
from sailor_cloud import api, workload
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.replanning.refusals import Choice
from sailor_cloud.launch.replanning.replan import Situation, decide
from sailor_cloud.launch.replanning.search import CatalogSearch
from sailor_cloud.launch.replanning.stated import dropped_settings_note, with_stated_settings
from sailor_cloud.launch.spend.lifetime import Remaining
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.plan import PipelineSchedule

_ZONE = "us-central1-a"


def _job(preset: str, devices: Mapping[str, int], types: list[str], batch: int) -> Job:
    return example(
        "gcp-a100-v100.yaml",
        model={"preset": preset},
        resources__0__zones=[_ZONE],
        resources__0__markets=["on-demand"],
        resources__0__accelerators=dict(devices),
        resources__0__instance_types=types,
        training={"global_batch_size": batch, "sequence_length": 1024, "precision": "fp16", "steps": 10},
        constraints={},
    )


def _after_a_loss(job: Job, layout: str, nodes: str) -> tuple[PlanDocument, PlanDocument]:
    """Return the document of a layout, and how a run on it continues after its last node is lost for good."""
    clock = FixedClock(AS_OF)
    document = api.simulate_layout(job, layout=layout, nodes=[nodes], clock=clock).document
    assert document.plan is not None
    *survivors, lost = document.plan.nodes
    offers = document.inputs.offers_by_id()
    situation = Situation(
        job=job,
        document=document,
        survivors=tuple(survivors),
        blocked={Choice.of(offers[lost.offer]): 3600.0},
        used_names=frozenset(node.id for node in document.plan.nodes),
        remaining=Remaining(steps=5, usd=None, seconds=None),
        offers=offers,
        stated=document.plan,
    )
    option = decide(situation, CatalogSearch(workload.decoder(job.model), clock)).option
    assert option is not None
    return document, option.document


@pytest.mark.parametrize(
    ("schedule", "stages", "batch"), [(PipelineSchedule.ZERO_BUBBLE, 4, 16), (PipelineSchedule.INTERLEAVED, 4, 12)]
)
def test_a_schedule_stays_after_a_node_is_lost(schedule: PipelineSchedule, stages: int, batch: int) -> None:
    job = _job("opt-1.3b", {"V100-16": stages}, ["n1-standard-8"], batch)
    nodes = f"{stages} x n1-standard-8:1xV100-16@{_ZONE}"
    before, after = _after_a_loss(job, f"pp={stages} schedule={schedule}", nodes)
    assert after.plan.pipeline_schedule is before.plan.pipeline_schedule is schedule
    assert not job.training.zero_bubble
    assert not job.training.interleaved
    assert dropped_settings_note(after, before.plan) is None


def test_interleaving_stays_where_the_stages_left_do_not_divide_the_microbatches() -> None:
    job = _job("opt-1.3b", {"V100-16": 4}, ["n1-standard-8"], 16)
    before, after = _after_a_loss(job, "pp=4 schedule=interleaved", f"4 x n1-standard-8:1xV100-16@{_ZONE}")
    [pipeline] = after.plan.pipelines
    assert pipeline.microbatches % len(pipeline.stages)
    assert after.plan.pipeline_schedule is before.plan.pipeline_schedule is PipelineSchedule.INTERLEAVED
    assert dropped_settings_note(after, before.plan) is None


def test_a_zero_stage_stays_after_a_node_is_lost() -> None:
    job = _job("sailor-opt-350", {"A100-40": 4}, ["a2-highgpu-1g"], 24)
    before, after = _after_a_loss(job, "dp=4 zero=3", f"4 x a2-highgpu-1g@{_ZONE}")
    assert before.plan.zero_stage == after.plan.zero_stage == 3


class _Full:
    """Finds that no plan with another schedule fits in memory, and that ZeRO-3 can't be had."""

    def predict(self, document: PlanDocument) -> PlanDocument:
        assert document.plan is not None
        if document.plan.zero_stage == 3:
            raise RequestError("its pipelines differ")
        stage = replace(document.prediction.memory[0], total_bytes=2, limit_bytes=1)
        return replace(document, prediction=replace(document.prediction, memory=(stage,)))


def test_what_does_not_fit_is_dropped_and_reported() -> None:
    job = _job("sailor-opt-350", {"A100-40": 2}, ["a2-highgpu-1g"], 24)
    document = api.simulate_layout(
        job, layout="pp=2", nodes=[f"2 x a2-highgpu-1g@{_ZONE}"], clock=FixedClock(AS_OF)
    ).document
    stated = replace(document.plan, zero_stage=3, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE)
    assert with_stated_settings(document, stated, _Full(), lambda found: True) is document
    assert dropped_settings_note(document, stated) == (
        "the new plan has ZeRO-0 instead of ZeRO-3 and the 1f1b schedule instead of zero-bubble: its pipelines, its "
        "memory, or what is left of time and money do not allow ZeRO-3 with zero-bubble"
    )
