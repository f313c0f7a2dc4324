"""Plans from degrees."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from factories.scenarios import gcp_scenario, offer_in
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.measurements import layers_per_stage
from sailor_cloud.model.plan import PipelineSchedule, Plan, Recompute
from sailor_cloud.simulator import ENGINES, Evaluation, Scenario, evaluate
from sailor_cloud.simulator.degrees import Degrees, NodeGroup, plan_of_degrees
from sailor_cloud.simulator.timing.timeline import trace_events

ZONE = "us-central1-a"


def scenario_of(engine: str = "sailor", *, batch: int = 64, precision: str = "fp16") -> Scenario:
    return gcp_scenario(engine=ENGINES[engine], batch=batch, precision=precision)


def nodes(scenario: Scenario, counts: Mapping[tuple[str, int], int]) -> list[NodeGroup]:
    """Groups of nodes by accelerator and devices."""
    return [
        NodeGroup(count=count, hardware=offer_in(scenario, ZONE, accelerator, devices=devices))
        for (accelerator, devices), count in counts.items()
    ]


def simulated(degrees: Degrees, scenario: Scenario, counts: Mapping[tuple[str, int], int]) -> tuple[Plan, Evaluation]:
    groups = nodes(scenario, counts)
    plan = plan_of_degrees(degrees, groups, scenario)
    offers = {group.hardware.id: group.hardware for group in groups}
    return plan, evaluate(plan, dataclasses.replace(scenario, offers=offers))


def reasons(degrees: Degrees, scenario: Scenario, counts: Mapping[tuple[str, int], int]) -> list[str]:
    with pytest.raises(RequestError) as caught:
        plan_of_degrees(degrees, nodes(scenario, counts), scenario)
    return [f"{problem.path}: {problem.message} ({problem.hint})" for problem in caught.value.problems]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_every_engine_runs_a_layout_on_every_device_of_the_nodes(engine: str) -> None:
    plan, evaluation = simulated(Degrees(tp=2, pp=2, dp=4, zero_stage=1), scenario_of(engine), {("A100-40", 8): 2})
    assert plan.world_size == 16
    assert {(stage.tp, stage.recompute) for pipeline in plan.pipelines for stage in pipeline.stages} == {
        (2, Recompute.NONE)
    }
    assert evaluation.fits
    assert evaluation.prediction.iteration_s_replay > 0


def test_our_ranks_count_pipeline_by_pipeline_and_those_of_others_stage_by_stage() -> None:
    def first_pipeline(engine: str) -> list[tuple[str, tuple[int, ...]]]:
        plan, _ = simulated(Degrees(tp=2, pp=2, zero_stage=0), scenario_of(engine), {("A100-40", 8): 2})
        return [(stage.node, stage.devices) for stage in plan.pipelines[0].stages]

    assert first_pipeline("sailor") == [("n0", (0, 1)), ("n0", (2, 3))]
    assert first_pipeline("megatron") == [("n0", (0, 1)), ("n1", (0, 1))]


def test_without_dp_there_are_as_many_pipelines_as_the_devices_are_enough_for() -> None:
    plan, _ = simulated(Degrees(tp=4, pp=2), scenario_of(batch=96), {("A100-40", 8): 3})
    assert len(plan.pipelines) == 3


def test_without_a_zero_stage_the_default_of_the_engine_holds() -> None:
    counts = {("A100-40", 8): 1}
    assert simulated(Degrees(dp=8), scenario_of("fsdp"), counts)[0].zero_stage == 3
    assert simulated(Degrees(dp=8), scenario_of("megatron"), counts)[0].zero_stage == 0


def test_nodes_of_several_kinds_are_filled_in_their_order() -> None:
    plan, _ = simulated(Degrees(pp=2), scenario_of(), {("A100-40", 2): 1, ("V100-16", 2): 1})
    assert [[stage.node for stage in pipeline.stages] for pipeline in plan.pipelines] == [["n0", "n0"], ["n1", "n1"]]


def test_a_layout_that_fits_nothing_gets_every_reason_together() -> None:
    degrees = Degrees(tp=3, pp=25, dp=2, microbatch_size=5, zero_stage=4)
    assert reasons(degrees, scenario_of(precision="bf16"), {("A100-40", 8): 1, ("V100-16", 4): 1}) == [
        "layout: tp 3 does not divide the 16 attention heads of sailor-opt-350 ()",
        "layout: pp 25 is more than the 24 blocks of sailor-opt-350 (every stage holds one block at least)",
        "layout: tp 3 does not divide the 8 devices of a2-highgpu-8g (the devices of a stage are on one node)",
        "layout: tp 3 does not divide the 4 devices of n1-standard-32 (the devices of a stage are on one node)",
        "layout: tp 3 x pp 25 x dp 2 = 150 devices, the nodes have 12 ()",
        "nodes: V100-16 can't compute in bf16, in which the job trains ()",
        "layout: dp 2 x microbatch 5 does not divide the global batch of 64 "
        "(uneven pipelines are stated in a plan document)",
        "layout: sailor has no zero 4 with more than one stage (it has 0, 1, 2, 3)",
    ]


def test_a_number_of_pipelines_that_fits_is_named() -> None:
    assert reasons(Degrees(tp=2, pp=2, dp=3), scenario_of(batch=96), {("A100-40", 8): 2}) == [
        "layout: tp 2 x pp 2 x dp 3 = 12 devices, the nodes have 16 (dp 4 fits)"
    ]


def test_counts_below_one_are_shown_alone() -> None:
    assert reasons(Degrees(tp=0, dp=-1, microbatch_size=0), scenario_of(), {}) == [
        "layout: tp must be 1 or more, got 0 ()",
        "layout: dp must be 1 or more, got -1 ()",
        "layout: microbatch must be 1 or more, got 0 ()",
        "nodes: name at least one group of nodes ()",
    ]


def test_deepspeed_has_no_zero_3_across_stages() -> None:
    counts = {("A100-40", 8): 1}
    assert simulated(Degrees(dp=8, zero_stage=3), scenario_of("deepspeed"), counts)[1].fits
    assert reasons(Degrees(pp=2, dp=4, zero_stage=3), scenario_of("deepspeed"), counts) == [
        "layout: deepspeed has no zero 3 with more than one stage (it has 0, 1)"
    ]


def test_each_zero_stage_needs_less_memory_than_the_one_before() -> None:
    peaks = [
        max(
            stage.total_bytes
            for stage in simulated(
                Degrees(dp=8, zero_stage=zero), scenario_of("fsdp", precision="fp32"), {("A100-40", 8): 1}
            )[1].prediction.memory
        )
        for zero in (0, 1, 2, 3)
    ]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


def test_a_schedule_that_an_engine_does_not_have_is_reported() -> None:
    degrees = Degrees(tp=2, pp=2, dp=4, zero_stage=1, schedule=PipelineSchedule.ZERO_BUBBLE)
    assert reasons(degrees, scenario_of("megatron"), {("A100-40", 8): 2}) == [
        "layout: schedule zero-bubble is not simulated under megatron (it has 1f1b, interleaved)"
    ]


def test_a_zero_bubble_schedule_is_faster_and_every_stage_holds_what_the_first_does() -> None:
    degrees, counts = Degrees(pp=4, dp=4, microbatch_size=1), {("A100-40", 8): 2}
    _, usual = simulated(degrees, scenario_of(), counts)
    halved = dataclasses.replace(degrees, schedule=PipelineSchedule.ZERO_BUBBLE)
    plan, found = simulated(halved, scenario_of(), counts)
    assert plan.pipeline_schedule is PipelineSchedule.ZERO_BUBBLE
    assert found.prediction.iteration_s_replay < 0.98 * usual.prediction.iteration_s_replay
    held = [stage.parts["activations"] for stage in found.prediction.memory[:4]]
    before = [stage.parts["activations"] for stage in usual.prediction.memory[:4]]
    assert held[0] == before[0]
    assert all(now > then for now, then in zip(held[1:], before[1:], strict=True))


@pytest.mark.parametrize(
    ("zero_stage", "training", "message"),
    [
        (2, {}, r"plan.pipeline_schedule: is zero-bubble; ZeRO-2 scatters gradients after the backward passes of 1f1b"),
        (0, {"compile": True}, r"plan.pipeline_schedule: is zero-bubble, which halves backward passes; compiled"),
    ],
)
def test_a_zero_bubble_schedule_is_refused_where_backward_passes_stay_whole(
    zero_stage: int, training: dict[str, bool], message: str
) -> None:
    scenario = gcp_scenario(batch=64, precision="fp16", **training)
    degrees = Degrees(pp=4, dp=4, zero_stage=zero_stage, schedule=PipelineSchedule.ZERO_BUBBLE)
    plan = plan_of_degrees(degrees, nodes(scenario, {("A100-40", 8): 2}), scenario)
    with pytest.raises(RequestError, match=message):
        evaluate(plan, scenario)


INTERLEAVED = Degrees(pp=4, dp=4, schedule=PipelineSchedule.INTERLEAVED)


def test_an_interleaved_schedule_is_faster_and_a_device_holds_the_sum_of_its_ranges() -> None:
    counts = {("A100-40", 8): 2}
    usual, before = simulated(Degrees(pp=4, dp=4), scenario_of(), counts)
    plan, found = simulated(INTERLEAVED, scenario_of(), counts)
    first = plan.pipelines[0]
    assert (plan.world_size, len(first.stages)) == (usual.world_size, 4)
    assert [layers for _, layers in first.virtual_stages] == [
        range(*span) for span in [(0, 4), (4, 7), (7, 10), (10, 13), (13, 16), (16, 19), (19, 22), (22, 26)]
    ]
    assert found.prediction.iteration_s_replay < before.prediction.iteration_s_replay
    assert found.prediction.iteration_s_1f1b == pytest.approx(before.prediction.iteration_s_replay, rel=0.02)
    assert len(found.prediction.memory) == len(found.stage_waits) == 16
    shares = [
        sum(stage.parts[name] for stage in each.prediction.memory[:4]) / 2**30
        for each in (before, found)
        for name in ("weights", "optimizer", "framework")
    ]
    assert shares[3:] == pytest.approx(shares[:3], rel=1e-6)
    # Half the bubble, for more microbatches in flight.
    held = [each.prediction.memory[0].parts["activations"] for each in (before, found)]
    assert held[1] > 1.2 * held[0]
    for stage in found.stage_waits:
        waits = stage.waits
        total = waits.compute_s + waits.transfer_s + waits.bubble_s + waits.sync_s
        assert total == pytest.approx(found.prediction.iteration_s_replay)


def test_more_chunks_wait_less_and_send_more_between_zones() -> None:
    scenario = scenario_of(batch=16)
    groups = [
        NodeGroup(count=1, hardware=offer_in(scenario, zone, "A100-40", devices=1))
        for zone in ("us-central1-a", "us-central1-b")
    ]
    bytes_ = []
    for chunks in (1, 2, 4):
        schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B
        degrees = Degrees(pp=2, dp=1, schedule=schedule, chunks=chunks)
        evaluation = evaluate(plan_of_degrees(degrees, groups, scenario), scenario)
        bytes_.append([use.bytes_per_iteration for use in evaluation.links])
    # Of 2 v - 1 cuts, the bytes there and back.
    assert [[each / bytes_[0][0] for each in both] for both in bytes_] == [[1.0] * 2, [3.0] * 2, [7.0] * 2]


def test_a_plan_goes_from_one_range_per_stage_to_several_and_back() -> None:
    usual, _ = simulated(Degrees(pp=4, dp=4), scenario_of(), {("A100-40", 8): 2})
    turned = usual.interleaved(2)
    assert turned is not None
    evaluate(turned, scenario_of())
    layers = [len(stage.layers) for stage in usual.pipelines[0].stages]
    assert [len(stage.layers) for stage in turned.pipelines[0].stages] == layers
    assert turned.pipelines[0].stages[0].ranges == (range(4), range(13, 16))
    assert turned.interleaved(1) == usual
    assert usual.interleaved(7) is None
    odd = dataclasses.replace(usual.pipelines[0], microbatches=13)
    assert dataclasses.replace(usual, pipelines=(odd,)).interleaved(2) is None
    alone, _ = simulated(Degrees(dp=16), scenario_of(), {("A100-40", 8): 2})
    assert alone.interleaved(2) is None


def test_layouts_that_can_not_be_interleaved_are_refused() -> None:
    counts, scenario = {("A100-40", 8): 2}, scenario_of()
    for wrong, got in (({"pp": 1, "dp": 16}, "pp 1 and chunks 2"), ({"chunks": 1}, "pp 4 and chunks 1")):
        [reason] = reasons(dataclasses.replace(INTERLEAVED, **wrong), scenario, counts)
        assert f"schedule interleaved needs pp >= 2 and chunks >= 2, got {got}" in reason
    assert reasons(Degrees(pp=4, dp=4, chunks=2), scenario, counts) == [
        "layout: schedule 1f1b has chunks 1, got chunks 2 (or schedule interleaved)"
    ]
    assert reasons(dataclasses.replace(INTERLEAVED, chunks=7), scenario, counts) == [
        "layout: pp 4 x chunks 7 is more than the 24 blocks of sailor-opt-350 (every stage holds one block at least)"
    ]
    assert reasons(INTERLEAVED, scenario_of("nanotron"), counts) == [
        "layout: schedule interleaved is not simulated under nanotron (it has 1f1b)"
    ]


def test_forged_ranges_of_layers_are_refused_with_every_fault() -> None:
    plan, _ = simulated(INTERLEAVED, scenario_of(), {("A100-40", 8): 2})
    first = plan.pipelines[0]

    def faults(**changes: object) -> str:
        forged = dataclasses.replace(first, **changes)
        with pytest.raises(RequestError) as caught:
            evaluate(dataclasses.replace(plan, pipelines=(forged, *plan.pipelines[1:])), scenario_of())
        return str(caught.value)

    stage = first.stages[0]
    shifted = dataclasses.replace(stage, later_ranges=((13, 15),))
    assert "stages[1]: holds layers [16, 19), expected to start at 15" in faults(stages=(shifted, *first.stages[1:]))
    without = dataclasses.replace(stage, later_ranges=())
    told = faults(stages=(without, *first.stages[1:]))
    assert "has stages with 1 and 2 ranges of layers (interleaved has as many in every stage, two or more)" in told
    odd = faults(microbatches=8, microbatch_size=2, stages=first.stages[:3])
    assert "has 8 microbatches, no multiple of 3 to 5" not in odd
    odd = faults(microbatches=7, microbatch_size=2, stages=first.stages[:3])
    assert "has 7 microbatches, no multiple of 3 to 5 (interleaved needs one for 3 stages)" in odd
    with pytest.raises(RequestError, match=r"has stages with 2 ranges of layers \(1f1b has one in every stage\)"):
        evaluate(dataclasses.replace(plan, pipeline_schedule=PipelineSchedule.ONE_F_ONE_B), scenario_of())
    with pytest.raises(
        RequestError, match="is interleaved; ZeRO-2 scatters gradients after the backward passes of 1f1b"
    ):
        evaluate(dataclasses.replace(plan, zero_stage=2), scenario_of())


def test_a_plan_of_single_stages_is_not_interleaved() -> None:
    plan, _ = simulated(Degrees(dp=16), scenario_of(), {("A100-40", 8): 2})
    with pytest.raises(
        RequestError, match=r"plan.pipeline_schedule: is interleaved, and no pipeline has several stages \(1f1b\)"
    ):
        evaluate(dataclasses.replace(plan, pipeline_schedule=PipelineSchedule.INTERLEAVED), scenario_of())


def test_layers_of_stages_are_noted_of_plans_in_1f1b_alone() -> None:
    usual, _ = simulated(Degrees(pp=4, dp=4), scenario_of(), {("A100-40", 8): 2})
    turned = usual.interleaved(2)
    assert turned is not None
    assert layers_per_stage(usual) == "7 6 6 7"
    assert layers_per_stage(turned) == ""
    assert layers_per_stage(dataclasses.replace(usual, pipeline_schedule=PipelineSchedule.ZERO_BUBBLE)) == ""


def test_a_pass_is_drawn_with_the_range_of_layers_that_it_goes_through() -> None:
    plan, _ = simulated(INTERLEAVED, scenario_of(), {("A100-40", 8): 2})
    events = trace_events(plan, evaluate(plan, scenario_of(), timeline=True).timeline)["traceEvents"]
    drawn = {tuple(e["args"].values()) for e in events if e["name"] == "forward" and (e["pid"], e["tid"]) == (0, 0)}
    assert drawn == {(microbatch, number) for microbatch in range(16) for number in (1, 2)}
