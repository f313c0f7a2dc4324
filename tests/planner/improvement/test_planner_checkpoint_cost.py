"""The search counts what checkpoints cost as the bill does."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest

from factories.planning import example, make_space, plan
from sailor_cloud.model.document import CostKind
from sailor_cloud.model.job import Job
from sailor_cloud.planner.evaluate.assess import Shape
from sailor_cloud.planner.evaluate.checkpoints import checkpoints_usd_per_hour, saving_share
from sailor_cloud.planner.improvement.local_search import Improver
from sailor_cloud.planner.improvement.moves import Neighbour
from sailor_cloud.planner.space.goals import Figure, target_of
from sailor_cloud.planner.space.layouts import Slot


def two_regions(**changes: object) -> Job:
    """A model that needs the V100s of two regions, so that half of every checkpoint leaves its region."""
    return example(
        "gcp-a100-v100.yaml",
        model={"preset": "gpt-neo-2.7b"},
        goal="minimize-cost",
        constraints={},
        training__steps=500,
        training__global_batch_size=32,
        resources__0__zones=["us-central1-a", "us-west1-b"],
        resources__0__accelerators={"V100-16": 2},
        **changes,
    )


@cache
def found(**changes: str):
    """Return the plan's document, its space, and its draft under the replay."""
    job = two_regions(**({"checkpoint": {"every": "10m", **changes}} if changes else {}))
    document, space = plan(job), make_space(job)
    pools = {pool.offer.id: number for number, pool in enumerate(space.pools)}
    numbers: Counter[int] = Counter()
    places = {}
    for node in document.plan.nodes:
        places[node.id] = pools[node.offer], numbers[pools[node.offer]]
        numbers[pools[node.offer]] += 1
    shapes = tuple(
        Shape(
            slots=tuple(Slot(*places[stage.node], len(stage.devices)) for stage in pipeline.stages),
            cut=(0, *(stage.end_layer for stage in pipeline.stages)),
            microbatch_size=pipeline.microbatch_size,
        )
        for pipeline in document.plan.pipelines
    )
    draft = Improver(space, target_of(job)).made(Neighbour(shapes), document.plan.zero_stage)
    assert draft is not None
    return document, space, draft


def test_traffic_requests_and_storage_are_those_of_the_bill():
    document, space, draft = found()
    assert len({offer.region for offer in document.inputs.offers}) == 2
    lines = [line for line in document.cost.lines if line.kind is CostKind.CHECKPOINT]
    lines = [line for line in lines if "stalled for" not in line.what]
    assert any(line.what.startswith("checkpoints from us-west1-b") for line in lines)
    training_h = sum(line.quantity for line in document.cost.lines if line.kind is CostKind.COMPUTE) / len(
        document.plan.nodes
    )
    by_hour = checkpoints_usd_per_hour(space, draft)
    assert by_hour * training_h == pytest.approx(sum(line.usd for line in lines), rel=0.01)


def test_the_total_of_a_draft_is_that_of_its_plan_within_one_per_cent():
    document, _, draft = found()
    assert draft.foreseen[Figure.TOTAL_USD] == pytest.approx(document.cost.total_usd, rel=0.01)


def test_checkpoints_in_a_folder_cost_nothing():
    _, space, draft = found(to="/mnt/checkpoints")
    assert checkpoints_usd_per_hour(space, draft) == 0.0


def test_stalls_count_as_in_the_simulator():
    document, space, draft = found()
    assert saving_share(space, draft.pipelines[0].slots, draft.pipelines[0].cut) > 1e-3
    assert draft.foreseen[Figure.DURATION_S] == pytest.approx(document.prediction.duration_s, rel=1e-9)
