"""Weights go in and out under uneven plans, and what a run in fp16 had learnt of its scale continues with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from test_runtime_equality import run_world
from test_runtime_huggingface import PUBLISHED, TOKENS

from factories.run_specs import run_spec
from sailor_cloud.launch.fleet.run_spec import model_spec
from sailor_cloud.workload.models.decoders import decoder_from_config
from sailor_runtime.training.export import export

# One world trains all cases, so all tests belong to one worker.
pytestmark = [pytest.mark.timeout(450), pytest.mark.slow, pytest.mark.xdist_group("runtime exchange")]

# Three devices: a tensor-parallel degree that differs between stages, and one that divides neither MLP nor vocabulary.
UNEVEN = [(4, 3, [(0, 2, 2), (2, 5, 1)])]
UNEVEN_FOUR_BLOCKS = [(4, 3, [(0, 2, 2), (2, 6, 1)])]
THREE = [(3, 4, [(0, 5, 3)])]


def _theirs(name: str, folder: Path) -> Any:
    options = {"vocab_size": 64, **PUBLISHED[name]}
    kind = options.pop("model_type")
    torch.manual_seed(5)
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(kind, **options), attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    return model


def _case(name: str, folder: Path) -> dict[str, Any]:
    model = model_spec(decoder_from_config({"vocab_size": 64, **PUBLISHED[name]}, name=name))
    model = dataclasses.replace(model, weights=str(folder / "theirs" / name))
    plan = UNEVEN_FOUR_BLOCKS if model.blocks == 4 else THREE if name in ("llama-3.1", "qwen2") else UNEVEN
    spec = dataclasses.replace(run_spec(plan, directory=folder / name), model=model)
    return {"name": name, "kind": "exchange", "spec": spec}


def _half(folder: Path) -> list[dict[str, Any]]:
    """Return cases in fp16: one run under two plans, one after the other, and one uninterrupted."""
    training = {"precision": "fp16", "optimizer": "adamw", "dropout": 0.1, "steps": 12}
    return [
        {
            "name": name,
            "kind": "half",
            "steps": steps,
            "first_scale": 2.0**24,
            "spec": run_spec([(3, 4, [(0, 6, tp)])], directory=folder / place, training=training, zero_stage=zero),
        }
        for name, place, tp, zero, steps in (
            ("three", "run", 3, 1, 6),
            ("two", "run", 2, 0, 6),
            ("whole", "other", 3, 1, 12),
        )
    ]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one world has trained; `models` are theirs and the folders of ours."""
    folder = tmp_path_factory.mktemp("models")
    theirs = {name: _theirs(name, folder / "theirs" / name) for name in PUBLISHED}
    results: dict[str, Any] = run_world([*(_case(name, folder) for name in PUBLISHED), *_half(folder / "half")], folder)
    for name in PUBLISHED:
        export(results[name]["checkpoint"], folder / "ours" / name)
    return results | {"models": {name: (theirs[name], folder / "ours" / name) for name in PUBLISHED}}


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_that_went_through_an_uneven_plan_gives_the_same_logits(found, name):
    theirs, ours = found["models"][name]
    back = transformers.AutoModelForCausalLM.from_pretrained(ours, attn_implementation="eager").eval()
    with torch.no_grad():
        torch.testing.assert_close(back(TOKENS).logits, theirs(TOKENS).logits, atol=1e-6, rtol=1e-6)


def test_a_loss_scale_continues_under_another_tensor_parallel_degree(found):
    three, two, whole = found["three"], found["two"], found["whole"]
    assert three["scale"] < 2.0**24, "the scale has been found"
    assert (two["first_step"], two["notes"]) == (6, {"kept": "beside"})
    assert (two["scale_at_start"], two["good_at_start"]) == (three["scale"], three["good"])
    assert two["updates_at_start"] == three["updates"] < 6
    # Sixteen bits round differently under another plan, so the end is close to the uninterrupted run, not equal.
    assert two["scale"] == whole["scale"]
    assert two["losses"][-1] == pytest.approx(whole["losses"][-1], abs=2e-3)
