from __future__ import annotations

from dataclasses import replace

import pytest

from factories.plans import node, pipeline, plan, stage
from sailor_cloud.errors import RequestError
from sailor_cloud.model.plan import Plan

TWO_STAGES = plan(
    nodes=(node("a", devices=2), node("b")),
    pipelines=(pipeline(0, (stage(0, 3, "a", (0, 1)), stage(3, 6, "b")), microbatch_size=2, microbatches=4),),
)


def message_of(faulty: Plan) -> str:
    with pytest.raises(RequestError) as caught:
        faulty.check(layers=6, global_batch_size=8)
    return str(caught.value)


def with_stages(*stages: object) -> Plan:
    return replace(TWO_STAGES, pipelines=(replace(TWO_STAGES.pipelines[0], stages=stages),))


def test_a_whole_plan_passes_and_counts_its_ranks() -> None:
    TWO_STAGES.check(layers=6, global_batch_size=8)
    assert TWO_STAGES.world_size == 3
    assert TWO_STAGES.global_batch_size == 8


def test_a_layer_left_out_is_named() -> None:
    assert "expected to start at 3" in message_of(with_stages(stage(0, 3, "a"), stage(4, 6, "b")))


def test_a_model_cut_short_is_named() -> None:
    assert "covers layers up to 5, the model has 6" in message_of(with_stages(stage(0, 3, "a"), stage(3, 5, "b")))


def test_a_device_used_twice_is_named() -> None:
    assert "uses device 0 of node 'a' a second time" in message_of(with_stages(stage(0, 3, "a"), stage(3, 6, "a")))


def test_a_device_that_the_node_lacks_is_named() -> None:
    assert "device 7 of node 'b', which has 1" in message_of(with_stages(stage(0, 3, "a"), stage(3, 6, "b", (7,))))


def test_an_unknown_node_is_named() -> None:
    assert "unknown node 'c'" in message_of(with_stages(stage(0, 3, "a"), stage(3, 6, "c")))


def test_a_batch_that_is_not_met_exactly_shows_both_numbers() -> None:
    faulty = replace(TWO_STAGES, pipelines=(replace(TWO_STAGES.pipelines[0], microbatches=3),))
    assert "pipelines train 6 samples, the job's global batch is 8" in message_of(faulty)
