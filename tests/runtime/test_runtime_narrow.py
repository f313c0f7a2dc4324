"""A narrow copy keeps what a plan decides, and is small enough for one process."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from factories.run_specs import run_spec
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.model.job import ModelSource
from sailor_cloud.model.presets import PRESETS
from sailor_cloud.workload import decoder
from sailor_cloud.workload.models.decoders import decoder_from_config
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.architecture import range_parameters
from sailor_runtime.training.narrow import narrowed
from sailor_runtime.training.pipeline import layout

_SIZES = {"hidden_size": 4096, "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 8}
_LONG = {"rope_type": "longrope", "short_factor": [1.0] * 64, "long_factor": [2.0] * 64, "rope_theta": 1e4}
# Families with a size of their own beside those of a Llama; widths as published.
CONFIGS: dict[str, dict[str, Any]] = {
    "gemma2": {"model_type": "gemma2", **_SIZES, "intermediate_size": 14336, "head_dim": 256, "vocab_size": 256_000},
    "phi3, long rope": {"model_type": "phi3", **_SIZES, "intermediate_size": 8192, "rope_scaling": _LONG},
    "qwen3": {"model_type": "qwen3", **_SIZES, "intermediate_size": 12288, "head_dim": 128},
    "mixtral": {"model_type": "mixtral", **_SIZES, "intermediate_size": 14336, "num_local_experts": 8},
    "qwen2_moe": {"model_type": "qwen2_moe", **_SIZES, "moe_intermediate_size": 1408, "num_experts": 64},
    "qwen3_moe": {"model_type": "qwen3_moe", **_SIZES, "head_dim": 128, "num_experts": 128},
}


def models() -> dict[str, ModelSpec]:
    found = {name: model_spec(decoder(ModelSource(preset=name))) for name in PRESETS}
    usual = {"max_position_embeddings": 4096, "vocab_size": 152_000, "intermediate_size": 14336}
    for name, config in CONFIGS.items():
        found[name] = model_spec(decoder_from_config({**usual, **config}, name=name))
    return found


@pytest.mark.parametrize(("name", "model"), models().items(), ids=list(models()))
def test_a_narrow_copy_is_cut_as_the_model_is_and_small(name, model, tmp_path: Path):
    last = model.blocks + 2
    pipelines = [(8, 37, [(0, 2, 1), (2, last, 2)]), (3, 2, [(0, last, 1)])]
    spec = run_spec(pipelines, directory=tmp_path, model=dataclasses.asdict(model))
    copy = narrowed(spec)
    assert copy.model.layers == model.layers
    assert (copy.model.heads, copy.model.kv_heads) == (model.heads, model.kv_heads)
    assert [[stage.ranks for stage in each.stages] for each in copy.pipelines] == [[(0,), (1, 2)], [(3,)]]
    assert [stage.layers for each in copy.pipelines for stage in each.stages] == [
        stage.layers for each in spec.pipelines for stage in each.stages
    ]
    assert [(each.microbatch_size, each.microbatches) for each in copy.pipelines] == [(2, 5), (2, 2)]
    assert copy.training.global_batch_size == 2 * 5 + 2 * 2
    own, whole = (range_parameters(each, range(each.layers)) for each in (copy.model, model))
    assert list(own) == list(whole)
    assert [each.cut_dim for each in own.values()] == [each.cut_dim for each in whole.values()]
    assert sum(math.prod(each.shape) for each in own.values()) < 1e8
    for parameter in own.values():
        if model.heads % 2 == 0 and parameter.cut_dim is not None:
            first, second = (sum(end - start for start, end in parameter.intervals(2, index)) for index in (0, 1))
            assert first == second


@pytest.mark.parametrize(("stages", "count", "expected"), [(3, 64, 8), (4, 64, 8), (2, 3, 3)])
def test_a_narrow_copy_of_an_interleaved_pipeline_runs_two_rounds(stages, count, expected, tmp_path: Path):
    # Three stages run 64 microbatches in rounds of four, since neither three nor five divides 64.
    shapes = [(stage, stage + 1, 1, (stages + stage, stages + stage + 1)) for stage in range(stages)]
    model = {"blocks": 2 * stages - 2}
    spec = run_spec([(1, count, shapes)], directory=tmp_path, model=model, pipeline_schedule="interleaved")
    copy = narrowed(spec)
    assert copy.pipelines[0].microbatches == expected
    layout.check(copy)


def test_a_model_with_saved_weights_begins_the_check_from_random_ones(tmp_path: Path):
    spec = run_spec([(1, 1, [(0, 6, 1)])], directory=tmp_path, model={"weights": "s3://somewhere", "heads": 6})
    assert narrowed(spec).model.weights is None


def test_other_settings_of_a_configuration_stay(tmp_path: Path):
    config = json.dumps({"rms_norm_eps": 1e-5, "head_dim": 128, "rope_theta": 5e5})
    model = {"model_type": "llama", "kv_heads": 2, "config": config}
    copy = narrowed(run_spec([(1, 1, [(0, 6, 1)])], directory=tmp_path, model=model))
    assert json.loads(copy.model.config) == {"rms_norm_eps": 1e-5, "head_dim": 8, "rope_theta": 5e5}
