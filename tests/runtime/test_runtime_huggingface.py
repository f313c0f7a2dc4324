"""Models of every family come from and go to Hugging Face checkpoints with the same logits."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
import torch
import transformers

from factories.run_specs import TINY
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.workload.decoders import decoder_from_config
from sailor_runtime.spec import ModelSpec, RopeScaling
from sailor_runtime.training import reference
from sailor_runtime.training.model import huggingface
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.first_weights import first_weights
from sailor_runtime.training.model.parameters import range_parameters
from sailor_runtime.training.refusal import RefusedError

# Short enough for sixteen tokens that some pairs are stretched in full, some in part and some not at all.
LLAMA3 = RopeScaling(kind="llama3", factor=8.0, low_turns=0.5, high_turns=2.0, original_positions=8)
LINEAR = RopeScaling(kind="linear", factor=4.0)
SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 6, "max_position_embeddings": 16}
KEY_VALUES = {"num_key_value_heads": 3, "intermediate_size": 40}
GROUPED = {"kv_heads": 3, "ffn_size": 40, "tied_head": False}
MODELS = {
    "gpt2": {},
    "gpt2 untied": {"tied_head": False},
    "gpt_neo": {"windows": (0, 4, 0, 4)},
    "opt": {},
    "opt narrow embeddings, norms behind": {"embedding_size": 12},
    "llama": GROUPED,
    "llama tied, biases": {**GROUPED, "tied_head": True, "biases": True},
    "mistral": {**GROUPED, "windows": (5, 5, 5, 5)},
    "qwen2": GROUPED,
    "llama of version 3.1": {**GROUPED, "rope": {"theta": 500_000.0, "scaling": LLAMA3}},
    "llama with linear positions": {**GROUPED, "rope": {"theta": 1000.0, "scaling": LINEAR}},
    "qwen2 with windows": {**GROUPED, "windows": (0, 0, 5, 5)},
}

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
    "opt": {"model_type": "opt", **SIZES, "ffn_dim": 40, "word_embed_proj_dim": 24},
    "opt-350m": {
        "model_type": "opt",
        **SIZES,
        "ffn_dim": 40,
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
}


def _model(name: str) -> ModelSpec:
    changes = dict(MODELS[name])
    windows, biases, rope = changes.pop("windows", None), changes.pop("biases", False), changes.pop("rope", None)
    model = ModelSpec(**{**TINY, "model_type": name.split()[0], **changes})
    form = architecture_of(model)
    if windows is not None:
        form = dataclasses.replace(form, windows=windows)
    if biases:
        form = dataclasses.replace(form, qkv_bias=True, attention_output_bias=True, mlp_bias=True)
    if rope is not None:
        form = dataclasses.replace(form, rope_theta=rope["theta"], rope_scaling=rope["scaling"])
    return dataclasses.replace(model, architecture=form)


def _random_weights(model: ModelSpec) -> dict[str, torch.Tensor]:
    """Return weights that leave nothing at 0 or 1, so that a swapped or forgotten one shows."""
    generator = torch.Generator().manual_seed(7)
    specs = range_parameters(model, range(model.layers))
    return {name: torch.randn(spec.shape, generator=generator) * 0.2 for name, spec in specs.items()}


def _logits(model: ModelSpec, weights: dict[str, torch.Tensor], tokens: torch.Tensor) -> torch.Tensor:
    return reference.logits(model, weights, tokens, Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(3)))


TOKENS = torch.randint(0, 64, (3, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", MODELS)
def test_transformers_computes_the_same_logits_from_what_is_written(name, tmp_path):
    model = _model(name)
    weights = _random_weights(model)
    huggingface.save(model, lambda spec: weights[spec.name], tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    with torch.no_grad():
        theirs = loaded(TOKENS).logits
    torch.testing.assert_close(_logits(model, weights, TOKENS), theirs, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", MODELS)
def test_what_transformers_writes_is_read_back(name, tmp_path):
    model = _model(name)
    settings = huggingface.config(model)
    kind = settings.pop("model_type")
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **settings), attn_implementation="eager"
    ).eval()
    theirs.save_pretrained(tmp_path)
    first = first_weights(dataclasses.replace(model, weights=str(tmp_path)), seed=0)
    specs = range_parameters(model, range(model.layers))
    weights = {key: first(spec, torch.float32) for key, spec in specs.items()}
    with torch.no_grad():
        torch.testing.assert_close(_logits(model, weights, TOKENS), theirs(TOKENS).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_configuration_becomes_a_model_with_the_same_logits(name, tmp_path):
    settings = {"vocab_size": 64, **PUBLISHED[name]}
    kind = settings["model_type"]
    options = {key: value for key, value in settings.items() if key != "model_type"}
    torch.manual_seed(3)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **options), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        # Fresh norms and biases are all ones and zeros, which would hide a wrong one.
        for parameter in theirs.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    theirs.save_pretrained(tmp_path / "model")
    written = json.loads((tmp_path / "model" / "config.json").read_text())
    for config in (settings, written):
        model = model_spec(decoder_from_config(config, name=name))
        first = first_weights(dataclasses.replace(model, weights=str(tmp_path / "model")), seed=0)
        specs = range_parameters(model, range(model.layers))
        weights = {key: first(spec, torch.float32) for key, spec in specs.items()}
        with torch.no_grad():
            torch.testing.assert_close(_logits(model, weights, TOKENS), theirs(TOKENS).logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_scaling.rope_type: is 'yarn'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor: is missing"),
        ({"hidden_act": "mish"}, "hidden_act: is 'mish'"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: must be a positive number, got 'small'"),
    ],
)
def test_a_configuration_that_would_train_wrong_is_an_error(changes, message):
    config = {"vocab_size": 64, **PUBLISHED["llama-3.1"], **changes}
    with pytest.raises(RequestError, match=message):
        decoder_from_config(config, name="mine")


def test_a_large_model_is_written_in_several_files(tmp_path):
    model = _model("llama")
    weights = _random_weights(model)
    huggingface.save(model, lambda spec: weights[spec.name], tmp_path, file_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    first = first_weights(dataclasses.replace(model, weights=str(tmp_path)), seed=0)
    for name, spec in range_parameters(model, range(model.layers)).items():
        assert torch.equal(first(spec, torch.float32), weights[name])


def test_weights_of_another_shape_or_missing_ones_are_refused(tmp_path):
    model = _model("llama")
    weights = _random_weights(model)
    huggingface.save(model, lambda spec: weights[spec.name], tmp_path)
    wider = dataclasses.replace(model, ffn_size=48, weights=str(tmp_path))
    spec = range_parameters(wider, range(wider.layers))["h.0.mlp.up.weight"]
    with pytest.raises(RefusedError, match=r"gives \(40, 24\), the model needs \(48, 24\)"):
        first_weights(wider, 0)(spec, torch.float32)
    with pytest.raises(RefusedError, match=r"holds neither model\.safetensors nor"):
        first_weights(dataclasses.replace(model, weights=str(tmp_path / "nothing")), 0)
