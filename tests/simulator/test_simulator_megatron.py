"""The interleaved schedule of Megatron-LM."""

from __future__ import annotations

import dataclasses

import pytest

from factories.scenarios import gcp_scenario, offer_in
from sailor_cloud.errors import RequestError
from sailor_cloud.model.plan import PipelineSchedule, Plan
from sailor_cloud.simulator import ENGINES, Evaluation, Scenario, evaluate
from sailor_cloud.simulator.degrees import Degrees, NodeGroup, plan_of_degrees
from sailor_cloud.simulator.engine import Transfers

INTERLEAVED = Degrees(pp=4, dp=1, schedule=PipelineSchedule.INTERLEAVED, chunks=2)
IN_1F1B = Degrees(pp=4, dp=1)


def megatron(*, batch: int, **changes: object) -> Scenario:
    return gcp_scenario(engine=dataclasses.replace(ENGINES["megatron"], **changes), batch=batch, precision="fp16")


def simulated(degrees: Degrees, scenario: Scenario, *, devices: int = 4) -> tuple[Plan, Evaluation]:
    hardware = offer_in(scenario, "us-central1-a", "A100-40", devices=devices)
    count = degrees.pp * degrees.tp * (degrees.dp or 1) // devices
    plan = plan_of_degrees(degrees, [NodeGroup(count=count, hardware=hardware)], scenario)
    return plan, evaluate(plan, dataclasses.replace(scenario, offers={hardware.id: hardware}), timeline=True)


def test_stages_compute_in_the_order_of_megatron() -> None:
    # By hand, after get_schedule_table and get_pp_rank_microbatches of megatron/core/pipeline_parallel/schedules.py:
    # two stages with two ranges, a and b, begin with 2 (2 - 1 - stage) + 2 forward passes.
    _, found = simulated(Degrees(pp=2, schedule=PipelineSchedule.INTERLEAVED), megatron(batch=4), devices=2)

    def order(stage: int) -> str:
        passes = [each for each in found.timeline if each.stage == stage and each.what in ("forward", "backward")]
        passes.sort(key=lambda each: each.start_s)
        return " ".join(f"{each.what[0]}{each.microbatch}{'ab'[each.chunk or 0]}" for each in passes)

    assert order(0) == "f0a f1a f0b f1b f2a b0b f3a b1b f2b b0a f3b b1a b2b b3b b2a b3a"
    assert order(1) == "f0a f1a f0b b0b f1b b1b f2a b0a f3a b1a f2b b2b f3b b3b b2a b3a"


def test_transfers_overlap_only_under_the_interleaved_schedule() -> None:
    engine = ENGINES["megatron"]
    assert engine.schedules == (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.INTERLEAVED)
    assert engine.transfers_in(PipelineSchedule.ONE_F_ONE_B) is Transfers.BLOCKING
    assert engine.transfers_in(PipelineSchedule.INTERLEAVED) is Transfers.OVERLAPPED
    # One device per node, so that every tensor goes over the network.
    _, usual = simulated(IN_1F1B, megatron(batch=64), devices=1)
    _, turned = simulated(INTERLEAVED, megatron(batch=64), devices=1)
    assert turned.prediction.waits.transfer_s < 0.25 * usual.prediction.waits.transfer_s
    # The same plan in 1F1B has the transfers of 1F1B.
    assert turned.prediction.iteration_s_1f1b == pytest.approx(usual.prediction.iteration_s_replay, rel=0.01)


@pytest.mark.parametrize("chunks", [2, 3])
def test_the_bubble_is_divided_by_the_ranges_and_activations_grow_as_the_papers_say(chunks: int) -> None:
    pp, batch = 4, 32
    _, usual = simulated(IN_1F1B, megatron(batch=batch))
    degrees = dataclasses.replace(INTERLEAVED, chunks=chunks)
    plan, found = simulated(degrees, megatron(batch=batch))
    assert {len(stage.ranges) for stage in plan.pipelines[0].stages} == {chunks}
    # Narayanan et al. (SC'21): the bubble is (pp - 1) / v passes of a stage. Embedding and head make ranges unequal.
    bubbles = [each.prediction.waits.bubble_s for each in (usual, found)]
    assert bubbles[1] == pytest.approx(bubbles[0] / chunks, rel=0.15)
    # Korthikanti et al. (MLSys'23): the first stage holds 1 + (pp - 1) / (pp v) times its activations of pp
    # microbatches. Embedding and intermediates of one pass come on top.
    held = [each.prediction.memory[0].parts["activations"] for each in (usual, found)]
    assert held[1] / held[0] == pytest.approx(1.0 + (pp - 1) / (pp * chunks), rel=0.05)


def test_the_microbatches_are_a_multiple_of_the_stages() -> None:
    # Our own runtime sends ten microbatches through four stages in rounds of five.
    own = gcp_scenario(engine=ENGINES["sailor"], batch=10, precision="fp16")
    plan, _ = simulated(INTERLEAVED, own)
    assert plan.pipelines[0].per_round == 5
    with pytest.raises(RequestError, match="has 10 microbatches; megatron interleaves multiples of its 4 stages"):
        simulated(INTERLEAVED, megatron(batch=10))
    simulated(INTERLEAVED, megatron(batch=12))


def test_a_sent_output_takes_no_memory() -> None:
    scenario = megatron(batch=64)
    kept = dataclasses.replace(scenario.engine.memory, frees_outputs=False)
    _, frees = simulated(INTERLEAVED, scenario)
    _, keeps = simulated(INTERLEAVED, megatron(batch=64, memory=kept))
    for less, more in zip(frees.prediction.memory, keeps.prediction.memory, strict=True):
        assert less.parts["activations"] < more.parts["activations"]
        assert less.parts["buffers"] == more.parts["buffers"]
