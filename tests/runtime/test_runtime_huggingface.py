"""Models of every family come from and go to Hugging Face checkpoints with the same logits."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.workload import layer_costs, parameter_count, tp_problem
from sailor_cloud.workload.models.decoders import decoder_from_config
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model import weights
from sailor_runtime.training.model.architecture import architecture_of, range_parameters
from sailor_runtime.training.model.weights import first_weights
from sailor_runtime.training.pipeline.stage import shard_of

SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 16}
KEY_VALUES = {"num_key_value_heads": 3, "intermediate_size": 48}
# Configurations as they are published, made small: the sizes are tiny, everything else is theirs.
PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": 16},
    "gpt2 with exact gelu": {
        "model_type": "gpt2",
        "n_embd": 24,
        "n_layer": 3,
        "n_head": 6,
        "n_positions": 16,
        "activation_function": "gelu",
        "layer_norm_epsilon": 1e-3,
    },
    "gpt_neo": {
        "model_type": "gpt_neo",
        "hidden_size": 24,
        "num_layers": 4,
        "num_heads": 6,
        "max_position_embeddings": 16,
        "attention_types": [[["global", "local"], 2]],
        "window_size": 5,
    },
    "opt": {"model_type": "opt", **SIZES, "ffn_dim": 48, "word_embed_proj_dim": 24},
    "opt-350m": {
        "model_type": "opt",
        **SIZES,
        "ffn_dim": 48,
        "word_embed_proj_dim": 12,
        "do_layer_norm_before": False,
    },
    "llama-3.1": {
        "model_type": "llama",
        **SIZES,
        **KEY_VALUES,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8,
        },
    },
    "mistral": {
        "model_type": "mistral",
        **SIZES,
        **KEY_VALUES,
        "head_dim": 10,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1_000_000.0,
        "sliding_window": 7,
    },
    "qwen2": {
        "model_type": "qwen2",
        **SIZES,
        **KEY_VALUES,
        "tie_word_embeddings": True,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "use_sliding_window": True,
        "sliding_window": 5,
        "max_window_layers": 2,
    },
    "llama with biases": {"model_type": "llama", **SIZES, **KEY_VALUES, "attention_bias": True, "mlp_bias": True},
    "llama with stretched positions": {
        "model_type": "llama",
        **SIZES,
        **KEY_VALUES,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0},
    },
    "qwen3": {"model_type": "qwen3", **SIZES, **KEY_VALUES, "head_dim": 8},
    "gemma2": {
        "model_type": "gemma2",
        **SIZES,
        **KEY_VALUES,
        "head_dim": 8,
        "query_pre_attn_scalar": 24,
        "sliding_window": 5,
        "pad_token_id": 0,
    },
    "gemma3": {
        "model_type": "gemma3_text",
        **SIZES,
        **KEY_VALUES,
        "head_dim": 8,
        "sliding_window": 5,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 1e4,
        "rope_theta": 1e6,
    },
    "phi3": {"model_type": "phi3", **SIZES, **KEY_VALUES, "pad_token_id": 3, "sliding_window": 7},
    "phi4-mini": {
        "model_type": "phi3",
        **SIZES,
        **KEY_VALUES,
        "pad_token_id": 3,
        "tie_word_embeddings": True,
        "partial_rotary_factor": 0.5,
        "original_max_position_embeddings": 8,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]},
    },
    "olmo2": {"model_type": "olmo2", **SIZES, **KEY_VALUES, "rope_theta": 500_000.0, "pad_token_id": 1},
    "granite": {
        "model_type": "granite",
        **SIZES,
        **KEY_VALUES,
        "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22,
        "logits_scaling": 8.0,
        "attention_multiplier": 0.015625,
        "tie_word_embeddings": True,
    },
    "mixtral": {"model_type": "mixtral", **SIZES, **KEY_VALUES, "num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "model_type": "qwen2_moe",
        **SIZES,
        **KEY_VALUES,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "shared_expert_intermediate_size": 18,
    },
    "qwen3_moe": {
        "model_type": "qwen3_moe",
        **SIZES,
        **KEY_VALUES,
        "head_dim": 8,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 12,
        "norm_topk_prob": True,
    },
}
TOKENS = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(1))


def _theirs(name: str) -> transformers.PreTrainedModel:
    """Return a published configuration's model as transformers makes it, all weights random."""
    options = {"vocab_size": 64, **PUBLISHED[name]}
    kind = options.pop("model_type")
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **options)).eval()
    with torch.no_grad():
        # Fresh norms and biases are all ones and zeros, which would hide a wrong one.
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return theirs


def _model(name: str, weights: Path | None = None) -> ModelSpec:
    model = model_spec(decoder_from_config({"vocab_size": 64, **PUBLISHED[name]}, name=name))
    return dataclasses.replace(model, weights=None if weights is None else str(weights))


def _logits(model: ModelSpec) -> torch.Tensor:
    architecture, first = architecture_of(model), first_weights(model, 0)
    whole, _ = architecture.full_model(lambda spec: first(spec, torch.float32), torch.float32, dropout=False)
    with torch.no_grad():
        return architecture.logits(whole, TOKENS, None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_and_its_weights_become_a_model_with_the_same_logits(name, tmp_path):
    theirs = _theirs(name)
    theirs.save_pretrained(tmp_path)
    with torch.no_grad():
        expected = theirs(TOKENS).logits
    torch.testing.assert_close(_logits(_model(name, tmp_path)), expected, atol=1e-5, rtol=1e-4)
    # The configuration as transformers writes it says the same in other words.
    written = json.loads((tmp_path / "config.json").read_text())
    again = dataclasses.replace(model_spec(decoder_from_config(written, name=name)), weights=str(tmp_path))
    torch.testing.assert_close(_logits(again), expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_transformers_computes_the_same_logits_from_what_is_exported(name, tmp_path):
    model = _model(name)
    first = first_weights(model, 5)
    weights.save(model, lambda spec: first(spec, torch.float32), tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for parameter, spec in range_parameters(model, range(model.layers)).items():
        assert torch.equal(loaded.get_parameter(parameter), first(spec, torch.float32)), parameter
    architecture = architecture_of(model)
    whole, _ = architecture.full_model(lambda spec: first(spec, torch.float32), torch.float32, dropout=False)
    with torch.no_grad():
        torch.testing.assert_close(
            architecture.logits(whole, TOKENS, None), loaded(TOKENS).logits, atol=1e-5, rtol=1e-4
        )


@pytest.mark.parametrize("tp", [1, 3])
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_planner_counts_the_parameters_that_transformers_has_on_each_device(name, tp):
    decoder = decoder_from_config({"vocab_size": 66, **PUBLISHED[name]}, name=name)
    assert tp_problem(decoder, tp) is None
    model = model_spec(decoder)
    if tp == 1:
        assert parameter_count(decoder) == sum(
            math.prod(spec.shape) for spec in range_parameters(model, range(model.layers)).values()
        )
    counted = layer_costs(decoder, 16, tp).parameters
    for layer in range(model.layers):
        shards = [shard_of(spec, tp, 0) for spec in architecture_of(model).parameters(layer)]
        held = sum(
            math.prod(shard.spec.shape) // shard.spec.shape[shard.cut_dim] * sum(e - s for s, e in shard.intervals)
            for shard in shards
        )
        assert counted[layer] == held, layer


def test_the_planner_counts_the_parameters_of_published_models_at_their_full_size():
    # The counts that their publishers name: Gemma 2 2B, Phi 3 mini, Mixtral 8x7B, Qwen3 30B-A3B.
    for config, billions in PUBLISHED_SIZES:
        assert parameter_count(decoder_from_config(config, name="mine")) / 1e9 == pytest.approx(billions, rel=5e-3)


_LARGE: dict[str, Any] = {"max_position_embeddings": 4096}
PUBLISHED_SIZES: list[tuple[dict[str, Any], float]] = [
    (
        {
            "model_type": "gemma2",
            "vocab_size": 256_000,
            "hidden_size": 2304,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "intermediate_size": 9216,
            **_LARGE,
        },
        2.614,
    ),
    (
        {
            "model_type": "phi3",
            "vocab_size": 32_064,
            "hidden_size": 3072,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "intermediate_size": 8192,
            **_LARGE,
        },
        3.821,
    ),
    (
        {
            "model_type": "mixtral",
            "vocab_size": 32_000,
            "hidden_size": 4096,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "intermediate_size": 14_336,
            **_LARGE,
        },
        46.7,
    ),
    (
        {
            "model_type": "qwen3_moe",
            "vocab_size": 151_936,
            "hidden_size": 2048,
            "num_hidden_layers": 48,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "intermediate_size": 6144,
            "head_dim": 128,
            "num_experts": 128,
            "moe_intermediate_size": 768,
            **_LARGE,
        },
        30.5,
    ),
]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "spiral", "factor": 4.0}}, "rope_scaling.rope_type: is 'spiral'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor: is missing"),
        ({"hidden_act": "swoosh"}, "hidden_act: is 'swoosh', which transformers does not know"),
        ({"output_router_logits": True}, "the routers' auxiliary loss can't be trained here"),
        ({"quantization_config": {"bits": 4}}, "quantized weights can't be trained here"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: must be a positive number, got 'small'"),
    ],
)
def test_a_configuration_that_would_train_wrong_is_an_error(changes, message):
    config = {"vocab_size": 64, **PUBLISHED["llama-3.1"], **changes}
    with pytest.raises(RequestError, match=message):
        decoder_from_config(config, name="mine")


def test_a_large_model_is_written_in_several_files(tmp_path):
    model = _model("llama-3.1")
    first = first_weights(model, 1)
    weights.save(model, lambda spec: first(spec, torch.float32), tmp_path, file_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    again = first_weights(dataclasses.replace(model, weights=str(tmp_path)), seed=0)
    for spec in range_parameters(model, range(model.layers)).values():
        assert torch.equal(again(spec, torch.float32), first(spec, torch.float32))


def test_weights_of_another_shape_or_missing_ones_are_refused(tmp_path):
    model = _model("llama-3.1")
    first = first_weights(model, 1)
    weights.save(model, lambda spec: first(spec, torch.float32), tmp_path)
    wider = dataclasses.replace(model, ffn_size=60, weights=str(tmp_path))
    spec = range_parameters(wider, range(wider.layers))["model.layers.0.mlp.up_proj.weight"]
    with pytest.raises(RefusedError, match=r"has shape \(48, 24\), the model needs \(60, 24\)"):
        first_weights(wider, 0)(spec, torch.float32)
    with pytest.raises(RefusedError, match=r"holds neither model\.safetensors nor"):
        first_weights(dataclasses.replace(model, weights=str(tmp_path / "nothing")), 0)
