"""Memory of stages, part by part."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from factories.scenarios import chain, gcp_scenario, make_job, make_plan, make_scenario, offer_in, two_stage_plan
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import StageMemory
from sailor_cloud.model.plan import Recompute
from sailor_cloud.simulator import Engine, engine_named, evaluate, in_flight, stage_table
from sailor_cloud.simulator.engine import SAILOR
from sailor_cloud.simulator.memory import MemoryTable
from sailor_cloud.workload import Attention, layer_costs
from sailor_cloud.workload.features import LayerKind
from sailor_cloud.workload.measured import MeasuredLayer
from sailor_cloud.workload.stacks import GPU_OVERHEADS

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "allocator", "framework")


def memory_of(
    *, microbatches: int = 32, zero_stage: int = 0, recompute: Recompute = Recompute.NONE, **training
) -> list[StageMemory]:
    """Two pipelines of two A100 stages each."""
    scenario = gcp_scenario(batch=4 * microbatches, **training)
    a = offer_in(scenario, "us-central1-a", "A100-40", devices=2)
    chains = [chain(p, [a, a], (0, 13, 26), microbatch_size=2, microbatches=microbatches) for p in range(2)]
    plan = make_plan(scenario, chains, zero_stage=zero_stage)
    if recompute is not Recompute.NONE:
        pipelines = tuple(
            dataclasses.replace(
                pipeline, stages=tuple(dataclasses.replace(stage, recompute=recompute) for stage in pipeline.stages)
            )
            for pipeline in plan.pipelines
        )
        plan = dataclasses.replace(plan, pipelines=pipelines)
    return list(evaluate(plan, scenario).prediction.memory)


def test_every_part_is_shown_and_they_add_up() -> None:
    for stage in memory_of():
        assert tuple(stage.parts) == PARTS
        assert sum(stage.parts.values()) == stage.total_bytes
        assert all(nbytes >= 0 for nbytes in stage.parts.values())


def test_activations_in_flight_are_capped_at_the_microbatches_there_are() -> None:
    many, one = memory_of(microbatches=8)[0], memory_of(microbatches=1)[0]
    assert many.parts["activations"] == pytest.approx(2 * one.parts["activations"], abs=1)
    np.testing.assert_array_equal(in_flight(4, np.arange(4), 3), [3, 3, 2, 1])


def test_zero_1_cuts_the_optimizer_state_over_the_replicas_and_nothing_else() -> None:
    plain, cut = memory_of()[0], memory_of(zero_stage=1)[0]
    assert cut.parts["optimizer"] == pytest.approx(plain.parts["optimizer"] / 2, abs=1)
    same = [name for name in PARTS if name not in ("optimizer", "allocator")]
    assert [plain.parts[name] for name in same] == [cut.parts[name] for name in same]


def test_recomputation_trades_activations_for_time() -> None:
    assert memory_of(recompute=Recompute.FULL)[0].parts["activations"] < memory_of()[0].parts["activations"] / 3
    scenario = gcp_scenario()
    kept, half, again = (
        stage_table(scenario, "A100-40", tp=2, microbatch_size=2, recompute=recompute) for recompute in Recompute
    )
    extra = again.compute_s(0, 26) - kept.compute_s(0, 26)
    assert extra == pytest.approx(float(kept.forward_s(1, 25)))
    # Selective: each block is that of one or the other, in turn.
    first = np.arange(26)
    for table, other in ((again, range(1, 25, 2)), (kept, [0, *range(2, 25, 2), 25])):
        layers = first[other]
        np.testing.assert_allclose(half.compute_s(layers, layers + 1), table.compute_s(layers, layers + 1))
        there, each = (t.memory.activation_bytes(layers, layers + 1) for t in (half, table))
        np.testing.assert_allclose(there, each)


def test_half_precision_keeps_master_weights_for_loss_scaling_and_halves_activations() -> None:
    half, full = memory_of(precision="fp16")[0], memory_of(precision="fp32")[0]
    parameters = full.parts["weights"] // 4
    assert half.parts["weights"] == 2 * parameters
    assert half.parts["gradients"] == full.parts["gradients"] == 4 * parameters
    assert half.parts["optimizer"] == 12 * parameters
    assert full.parts["optimizer"] == 8 * parameters
    assert half.parts["activations"] == pytest.approx(full.parts["activations"] / 2, rel=1e-6)


def test_half_precision_holds_the_gradients_of_its_largest_layer_on_their_way_to_the_sum() -> None:
    table = stage_table(gcp_scenario(), "A100-40", tp=1, microbatch_size=1)
    each = np.diff(table.memory.parameter_prefix)
    for first, end in ((0, 1), (0, 26), (1, 3), (25, 26), (20, 26)):
        moving = 2 * (table.boundary_bytes[first] + table.boundary_bytes[end])
        parts = table.memory.peak_parts(first, end, in_flight=1)
        assert parts["buffers"] == pytest.approx(moving + 2 * each[first:end].max())


def test_zero_1_cuts_a_master_copy_that_fp32_without_it_does_not_have() -> None:
    plain, cut = memory_of(precision="fp32")[0], memory_of(precision="fp32", zero_stage=1)[0]
    parameters = plain.parts["weights"] // 4
    assert plain.parts["optimizer"] == 8 * parameters
    assert cut.parts["optimizer"] == pytest.approx(12 * parameters / 2, abs=1)


def test_pipelines_that_train_apart_share_no_state_and_keep_where_they_met_and_a_momentum() -> None:
    plain, seldom = memory_of(precision="fp32")[0], memory_of(precision="fp32", zero_stage=1, sync_every=50)[0]
    parameters = plain.parts["weights"] // 4
    assert seldom.parts["optimizer"] == (12 + 8) * parameters


@pytest.mark.parametrize(("precision", "plain", "cut"), [("fp32", 4, 4), ("fp16", 4, 3), ("bf16", 4, 3)])
def test_gradients_are_summed_in_fp32_and_zero_1_sends_one_pass_of_them_and_one_of_weights(
    precision: str, plain: int, cut: int
) -> None:
    scenario = gcp_scenario(precision=precision)
    for zero_stage, expected in ((0, plain), (1, cut)):
        table = stage_table(scenario, "A100-40", tp=2, microbatch_size=1, zero_stage=zero_stage)
        parameters = int(table.memory.parameter_prefix[26])
        assert float(table.gradient_bytes(0, 26)) == parameters * 2 * expected


def engine_memory(name: str, *, zero_stage: int = 0, replicas: int = 8, **training) -> dict[str, int]:
    """Parts of a device that holds all layers, and the parameters it holds."""
    scenario = gcp_scenario(engine=engine_named(name), **training)
    table = stage_table(scenario, "A100-40", tp=1, microbatch_size=1, zero_stage=zero_stage)
    layers = table.layers
    parts = table.memory.peak_parts(0, layers, in_flight=1, replicas=replicas)
    return {"parameters": int(table.parameters(0, layers)), **{part: int(value) for part, value in parts.items()}}


def test_deepspeed_flattens_gradients_and_copies_them_to_fp32_in_the_step() -> None:
    half, full, brain = (engine_memory("deepspeed", precision=name) for name in ("fp16", "fp32", "bf16"))
    parameters = half["parameters"]
    assert (half["gradients"], brain["gradients"], full["gradients"]) == (
        2 * parameters,
        6 * parameters,
        4 * parameters,
    )
    assert half["optimizer"] == (4 + 8 + 4) * parameters
    assert full["optimizer"] == 8 * parameters
    assert (half["buffers"], full["buffers"]) == (2 * parameters, 4 * parameters)


def test_deepspeed_has_a_bucket_to_reduce_and_one_to_gather_with_zero() -> None:
    plain, cut = (engine_memory("deepspeed", zero_stage=stage, precision="fp16") for stage in (0, 1))
    assert cut["buffers"] == 2 * plain["buffers"]


def test_fully_sharded_weights_are_fp32_masters_of_which_layers_are_cast_when_gathered() -> None:
    cut = engine_memory("fsdp", zero_stage=3, precision="bf16")
    parameters = cut["parameters"]
    assert cut["weights"] + cut["gradients"] + cut["optimizer"] == pytest.approx(16 * parameters / 8, abs=3)


def test_sequence_parallel_devices_divide_the_work_between_matrices() -> None:
    """Of the 16 hidden states that a block keeps, 4 stand between cut matrices."""
    whole, shared = (
        stage_table(gcp_scenario(engine=engine), "A100-40", tp=4, microbatch_size=1)
        for engine in (Engine(), Engine(sequence_parallel=True))
    )
    hidden = 2048 * 1024 * 2 * GPU_OVERHEADS.activations
    kept = [
        float(table.memory.activation_prefix_bytes[2] - table.memory.activation_prefix_bytes[1])
        for table in (whole, shared)
    ]
    assert kept[0] - kept[1] == pytest.approx((4 - 4 / 4) * hidden)


def test_selective_recomputation_of_fsdp_is_that_of_every_second_block() -> None:
    none, half, full = (
        stage_table(gcp_scenario(engine=engine_named("fsdp")), "A100-40", tp=1, microbatch_size=1, recompute=kind)
        for kind in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL)
    )
    kept = [float(table.memory.activation_bytes(1, 25)) for table in (none, half, full)]
    assert kept[1] == pytest.approx((kept[0] + kept[2]) / 2)


def test_plain_attention_keeps_a_dropout_mask_and_output_besides_its_probabilities() -> None:
    flash, plain = (
        stage_table(gcp_scenario(engine=Engine(attention=kind)), "A100-40", tp=1, microbatch_size=1)
        for kind in (Attention.FLASH, Attention.PLAIN)
    )
    probabilities, sums = 16 * 2048 * 2048 * 2, 16 * 2048 * 2
    kept = [
        float(table.memory.activation_prefix_bytes[2] - table.memory.activation_prefix_bytes[1])
        for table in (plain, flash)
    ]
    expected = probabilities * GPU_OVERHEADS.scores - sums * GPU_OVERHEADS.activations
    assert kept[0] - kept[1] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("accelerator", "precision", "attention"),
    [
        ("A100-40", "bf16", Attention.FLASH),
        ("A100-40", "fp32", Attention.MEMORY_EFFICIENT),
        ("V100-16", "fp16", Attention.MEMORY_EFFICIENT),
        ("T4-16", "fp16", Attention.MEMORY_EFFICIENT),
        ("CPU-fast", "fp32", Attention.FLASH),
    ],
)
def test_shared_keys_are_copied_where_flash_attention_does_not_run(
    accelerator: str, precision: str, attention: Attention
) -> None:
    scenario = gcp_scenario(precision=precision)
    part = scenario.catalog.accelerator(accelerator)
    assert SAILOR.attention_on(part, scenario.job.training.precision) is attention


def test_copies_of_shared_keys_are_kept_in_linear_memory() -> None:
    decoder = dataclasses.replace(gcp_scenario().decoder, kv_heads=4)

    def kept(tokens: int, attention: Attention) -> float:
        return float(layer_costs(decoder, tokens, 1, attention=attention).activation_elements[1])

    copies = kept(2048, Attention.MEMORY_EFFICIENT) - kept(2048, Attention.FLASH)
    assert copies == 2 * (16 - 4) * 64 * 2048
    assert kept(4096, Attention.MEMORY_EFFICIENT) == 2 * kept(2048, Attention.MEMORY_EFFICIENT)


def test_measured_activations_go_before_counted_ones() -> None:
    scenario = gcp_scenario(engine=Engine(attention=Attention.PLAIN), precision="fp32")
    rows = tuple(
        MeasuredLayer(
            model="sailor-opt-350",
            layer_kind=kind,
            microbatch_size=4,
            sequence_length=2048,
            tp=2,
            forward_s=1.0,
            backward_s=2.0,
            update_s=0.0,
            activation_bytes=nbytes,
        )
        for kind, nbytes in ((LayerKind.BLOCK, 4_000_000_000), (LayerKind.HEAD, 400_000_000))
    )
    entries = tuple(
        dataclasses.replace(entry, measured=rows) if entry.ref.id == "A100-40.fp32" else entry
        for entry in scenario.profiles.entries
    )
    measured = dataclasses.replace(scenario, profiles=dataclasses.replace(scenario.profiles, entries=entries))
    table = stage_table(measured, "A100-40", tp=2, microbatch_size=2)
    kept = np.diff(table.memory.activation_prefix_bytes)
    assert kept[1:25] == pytest.approx(2_000_000_000)
    assert kept[25] == pytest.approx(200_000_000)
    again = stage_table(measured, "A100-40", tp=2, microbatch_size=2, recompute=Recompute.FULL).memory
    assert again.working_bytes[1] == pytest.approx(2_000_000_000)
    assert np.diff(again.activation_prefix_bytes)[1] == pytest.approx(2 * 2048 * 1024 * 4)


def test_the_allocator_gives_back_what_does_not_fit_but_fragments() -> None:
    table = stage_table(gcp_scenario(), "A100-40", tp=1, microbatch_size=1).memory
    layers = table.layers
    parts = table.peak_parts(0, layers, in_flight=1)
    tensors = sum(int(parts[name]) for name in PARTS[:-2])
    assert int(parts["allocator"]) == pytest.approx(tensors * GPU_OVERHEADS.reserve, abs=1)
    short = dataclasses.replace(table, limit_bytes=tensors + int(parts["framework"]))
    least = tensors * GPU_OVERHEADS.reserve * GPU_OVERHEADS.fragments
    assert int(short.peak_parts(0, layers, in_flight=1)["allocator"]) == pytest.approx(least, abs=1)
    assert int(short.needed_bytes(0, layers, in_flight=1)) > short.limit_bytes
    tight = dataclasses.replace(table, limit_bytes=short.limit_bytes + int(least) + 5)
    assert sum(int(part) for part in tight.peak_parts(0, layers, in_flight=1).values()) == tight.limit_bytes
    assert int(tight.needed_bytes(0, layers, in_flight=1)) <= tight.limit_bytes


def test_collectives_take_memory_by_what_nvlink_carries() -> None:
    scenario = gcp_scenario()
    found = {
        name: int(stage_table(scenario, name, tp=1, microbatch_size=1).memory.framework_bytes)
        for name in ("A100-40", "V100-16", "T4-16")
    }
    assert found["A100-40"] == 2 * found["V100-16"] > found["T4-16"]


def test_a_card_without_nvlink_also_holds_a_context_and_communicators() -> None:
    table = stage_table(gcp_scenario(), "T4-16", tp=1, microbatch_size=1).memory
    assert int(table.peak_parts(0, table.layers, in_flight=1)["framework"]) == GPU_OVERHEADS.least_framework_bytes > 0


def test_local_memory_is_a_cap_on_tensors_alone() -> None:
    scenario = make_scenario(make_job())
    for stage in evaluate(two_stage_plan(scenario), scenario).prediction.memory:
        assert stage.parts["allocator"] == stage.parts["framework"] == 0


def test_sgd_keeps_one_moment() -> None:
    adam, sgd = memory_of(precision="fp32")[0], memory_of(precision="fp32", optimizer="sgd")[0]
    assert sgd.parts["optimizer"] * 2 == adam.parts["optimizer"]


def test_a_device_with_the_whole_model_keeps_a_tied_weight_once() -> None:
    scenario = make_scenario(make_job())
    table = stage_table(scenario, "CPU-fast", tp=1, microbatch_size=1)
    assert table.parameters(0, 8) == table.parameters(0, 4) + table.parameters(4, 8) - 256 * 128


def test_memory_of_many_ranges_at_once_is_that_of_each() -> None:
    table = stage_table(gcp_scenario(), "V100-16", tp=4, microbatch_size=1, recompute=Recompute.FULL)
    first, end = np.array([0, 0, 1, 20, 25]), np.array([1, 26, 5, 26, 26])
    together = table.memory_bytes(first, end, in_flight=3, replicas=2)
    assert together.dtype == np.int64
    for i in range(5):
        assert together[i] == table.memory_bytes(int(first[i]), int(end[i]), in_flight=3, replicas=2)


def test_ranges_of_a_device_keep_their_outputs_and_compute_one_layer_again_at_a_time() -> None:
    memory = stage_table(gcp_scenario(), "A100-40", tp=1, microbatch_size=2, recompute=Recompute.FULL).memory
    assert isinstance(memory, MemoryTable)
    first, end = np.array([1, 13]), np.array([5, 17])

    def activations(in_flight: tuple[int, int], *, outputs: bool) -> int:
        kept = np.array([outputs] * 2)
        parts = memory.peak_parts_of_ranges(first, end, in_flight=np.array(in_flight), outputs=kept, replicas=1)
        return int(parts["activations"])

    working = int(memory.peak_parts(1, 5, in_flight=0)["activations"])
    assert activations((0, 0), outputs=False) == working > 0
    tensor = 2 * 2048 * 1024 * memory.weight_bytes * memory.factor
    more = activations((3, 2), outputs=True) - activations((3, 2), outputs=False)
    assert more == pytest.approx(5 * tensor, abs=2)


def test_ranges_of_a_device_have_one_layers_gradients_in_transit() -> None:
    # Two microbatches of a tensor at each of four cuts, and one block's gradients in half precision; no other replicas.
    memory = stage_table(gcp_scenario(), "A100-40", tp=1, microbatch_size=2).memory
    assert isinstance(memory, MemoryTable)
    block, cut = int(memory.parameters(2, 3)) * memory.weight_bytes, float(memory.boundary_bytes[1])

    def buffers(*ranges: tuple[int, int]) -> int:
        first, end = np.array(ranges).T
        none = np.zeros(len(ranges), dtype=int)
        parts = memory.peak_parts_of_ranges(first, end, in_flight=none, outputs=none == 1, replicas=1)
        return int(parts["buffers"])

    assert buffers((1, 5), (13, 17)) == pytest.approx(memory.factor * (8 * cut + block), abs=3)
    assert buffers((1, 5), (9, 13), (17, 21)) == pytest.approx(memory.factor * (12 * cut + block), abs=4)


def test_tp_that_cuts_no_head_in_whole_is_refused_with_the_numbers() -> None:
    with pytest.raises(RequestError, match="tp 3 does not divide the 16 attention heads of sailor-opt-350"):
        stage_table(gcp_scenario(), "A100-40", tp=3, microbatch_size=1)


def test_the_limit_is_what_a_program_can_have() -> None:
    limits = {stage.limit_bytes for stage in memory_of()}
    assert limits == {int(39.38 * 2**30)}
    scenario = make_scenario(make_job())
    local = evaluate(two_stage_plan(scenario), scenario).prediction.memory
    assert [stage.limit_bytes for stage in local] == [256 * 2**20, 16 * 2**20]
