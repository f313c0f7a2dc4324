"""The messages of ZeRO-3: how many a block's gathers and its scatter are, and what they cost over many devices."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from factories.scenarios import gcp_scenario, offer_in
from sailor_cloud.model.offer import Precision
from sailor_cloud.network.estimates import RING_STEP_S
from sailor_cloud.simulator import Engine, engine_named, gradient_sync_s
from sailor_cloud.simulator.engine import ShardMessages
from sailor_cloud.simulator.scenario import place_of
from sailor_cloud.workload import layer_costs

BYTES = st.floats(1e3, 1e12)


@given(weights=BYTES, gradients=BYTES, bucket=BYTES, parts=st.integers(1, 16), least=st.floats(0.0, 1e10))
def test_a_mean_message_lies_between_a_gather_and_a_scatter(
    weights: float, gradients: float, bucket: float, parts: int, least: float
) -> None:
    for whole in (False, True):
        messages = ShardMessages(parts=parts, least_bytes=least, whole_gradients=whole)
        gathered, scattered = max(weights / parts, least), gradients if whole else bucket
        mean = messages.mean_bytes(weights, gradients, bucket)
        assert min(gathered, scattered) <= mean * (1 + 1e-9)
        assert mean <= max(gathered, scattered) * (1 + 1e-9)


@given(weights=BYTES, gradients=BYTES, parts=st.integers(1, 15))
def test_more_parts_are_smaller_messages(weights: float, gradients: float, parts: int) -> None:
    few, many = (ShardMessages(parts=each).mean_bytes(weights, gradients, 5e8) for each in (parts, parts + 1))
    assert many < few


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP32])
def test_fsdp_sends_three_messages_per_block_under_zero_3(precision: Precision) -> None:
    scenario = gcp_scenario(preset="llama-3-8b", precision=precision.value, engine=engine_named("fsdp"))
    parameters = float(layer_costs(scenario.decoder, 2048, 1).parameters[1])
    width = 4 if precision is Precision.FP32 else 2
    assert scenario.bucket_bytes(3) == pytest.approx(parameters * (2 * width + 4) / 3)
    assert scenario.bucket_bytes(0) == scenario.bucket_bytes(2) == scenario.engine.bucket_bytes


def test_deepspeed_gathers_small_matrices_together_and_large_ones_alone() -> None:
    small, large = (
        gcp_scenario(preset=preset, engine=engine_named("deepspeed")) for preset in ("sailor-opt-350", "opt-30b")
    )
    # Both its gathers have 100 MB: the third message of a block is a share of a bucket of 500 MB.
    assert 1e8 < small.bucket_bytes(3) < 1.5e8
    matrix = 2.0 * float(layer_costs(large.decoder, 2048, 1).parameters[1]) / 4.0
    assert matrix < large.bucket_bytes(3) < large.engine.bucket_bytes


def test_our_own_runtime_sends_buckets_under_every_zero_stage() -> None:
    scenario = gcp_scenario()
    assert {scenario.bucket_bytes(stage) for stage in range(4)} == {Engine().bucket_bytes}


def test_a_step_between_nodes_takes_its_time_over_any_number_of_messages() -> None:
    scenario = gcp_scenario()
    place = place_of(offer_in(scenario, "us-central1-a", "A100-40", devices=2), None)
    link = scenario.link(place, place, pairs=2)
    engine = Engine(zone_by_zone=False)
    whole, parts = (gradient_sync_s(4e8, 64, link, engine=engine, bucket_bytes=size) for size in (4e8, 1e8))
    assert parts > whole
    # All steps of three more rounds there and back.
    assert parts - whole >= 2 * 63 * 3 * link.latency_s(1e8 / 64)
    assert gradient_sync_s(4e8, 64, link, engine=engine) == gradient_sync_s(
        4e8, 64, link, engine=engine, bucket_bytes=engine.bucket_bytes
    )


def test_a_step_costs_what_nccl_says() -> None:
    assert pytest.approx(14e-6) == RING_STEP_S
