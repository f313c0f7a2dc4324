"""Engines by name."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.model.decoder import Decoder
from sailor_cloud.model.job import ModelSource
from sailor_cloud.simulator import ENGINES, Engine, engine_named
from sailor_cloud.simulator.engine import TORCH_MODULES
from sailor_cloud.simulator.engines import StageSplit, stage_bounds
from sailor_cloud.workload import decoder, profiles


def preset(name: str) -> Decoder:
    return decoder(ModelSource(preset=name))


def blocks_of(split: StageSplit, model: Decoder, stages: int) -> list[int]:
    bounds = stage_bounds(split, model, stages)
    return [end - first for first, end in pairwise((1, *bounds[1:-1], bounds[-1] - 1))]


def test_an_engine_is_found_by_its_name() -> None:
    assert {name: engine_named(name).name for name in ENGINES} == {name: name for name in ENGINES}


def test_the_default_engine_is_our_own_runtime() -> None:
    assert engine_named("sailor") == Engine(modules=TORCH_MODULES)


def test_an_unknown_engine_is_reported_with_the_known_ones() -> None:
    with pytest.raises(
        RequestError, match=r"'jax' is not known; known: sailor, deepspeed, megatron, fsdp, nanotron, sailor-artifact"
    ):
        engine_named("jax")


def test_every_engine_supports_its_own_default_zero_stage() -> None:
    assert all(engine.default_zero_stage in engine.zero_stages for engine in ENGINES.values())


@pytest.mark.parametrize("split", list(StageSplit))
@pytest.mark.parametrize("stages", range(1, 25))
def test_every_stage_gets_a_block_and_every_layer_a_stage(split: StageSplit, stages: int) -> None:
    model = preset("sailor-opt-350")
    bounds, blocks = stage_bounds(split, model, stages), blocks_of(split, model, stages)
    assert (bounds[0], bounds[-1], len(bounds)) == (0, model.layers, stages + 1)
    assert sum(blocks) == model.blocks
    assert min(blocks[:-1], default=1) >= 1
    # The head alone may be a stage.
    assert blocks[-1] >= (0 if split is StageSplit.WEIGHTED else 1)


def test_an_even_split_gives_the_rest_to_the_first_stages() -> None:
    assert blocks_of(StageSplit.EVEN, preset("sailor-opt-350"), 5) == [5, 5, 5, 5, 4]


def test_embedding_and_head_take_the_place_of_a_block_where_that_divides() -> None:
    model = preset("sailor-opt-350")
    assert blocks_of(StageSplit.ENDS, model, 13) == [1, *[2] * 11, 1]
    assert blocks_of(StageSplit.ENDS, model, 12) == [2] * 12


def test_a_weighted_split_counts_the_head_as_the_flops_it_takes() -> None:
    # The head takes 0.77 of the FLOPs of a block, so a quarter of all is 8.19 blocks: full after 9, 17 and 25.
    assert blocks_of(StageSplit.WEIGHTED, preset("sailor-llama-3-8"), 4) == [9, 8, 8, 7]


def test_a_weighted_stage_is_full_once_it_has_its_share() -> None:
    # A head of 4 blocks beside 16 of them: 5 blocks are a quarter, not more.
    sizes = dataclasses.replace(
        preset("sailor-llama-3-8"),
        blocks=16,
        hidden_size=2048,
        heads=32,
        kv_heads=32,
        head_size=64,
        ffn_size=8192,
        vocab_size=131072,
        embedding_size=2048,
    )
    assert blocks_of(StageSplit.WEIGHTED, sizes, 4) == [5, 5, 5, 1]


def test_the_programs_of_fitted_runs_are_engines() -> None:
    measured = {name for generation in profiles.load().generations for name in generation.programs}
    assert measured
    assert measured <= set(ENGINES)
