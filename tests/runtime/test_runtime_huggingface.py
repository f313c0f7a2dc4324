"""Models of every family come from and go to Hugging Face checkpoints with the same logits."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
import transformers

from factories.run_specs import TINY
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training import huggingface, reference
from sailor_runtime.training.architecture import architecture_of
from sailor_runtime.training.dropout import Dropout
from sailor_runtime.training.first_weights import first_weights
from sailor_runtime.training.parameters import range_parameters
from sailor_runtime.training.refusal import RefusedError

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
}


def _model(name: str) -> ModelSpec:
    changes = dict(MODELS[name])
    windows, biases = changes.pop("windows", None), changes.pop("biases", False)
    model = ModelSpec(**{**TINY, "model_type": name.split()[0], **changes})
    form = architecture_of(model)
    if windows is not None:
        form = dataclasses.replace(form, windows=windows)
    if biases:
        form = dataclasses.replace(form, qkv_bias=True, attention_output_bias=True, mlp_bias=True)
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
