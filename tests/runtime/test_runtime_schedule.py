"""What the check against one process can't see, since both sides share it: learning rates and dropped elements."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from factories.run_specs import SHORT_TRAINING, TINY
from sailor_cloud.interchange.torchtitan import ADAM, COSINE_FLOOR
from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec, TrainingSpec
from sailor_runtime.training.model import attention, loss
from sailor_runtime.training.model.architecture import architecture_of, layer_parameters
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.layers import Microbatch
from sailor_runtime.training.model.tensor_parallel import TensorParallel
from sailor_runtime.training.model.weights import first_weights
from sailor_runtime.training.optimizer.optimizer import ADAM_BETAS, ADAM_EPSILON, FINAL_SHARE, learning_rate

TRAINING = TrainingSpec(**{**SHORT_TRAINING, "learning_rate": 1.0, "warmup_steps": 4, "steps": 104})


def test_the_learning_rate_warms_up_in_equal_steps_and_falls_along_a_cosine_to_a_tenth():
    rates = [learning_rate(TRAINING, step) for step in range(105)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[54] == pytest.approx(0.55)
    assert rates[29] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert rates[104] == pytest.approx(0.1)
    assert sorted(rates[4:], reverse=True) == rates[4:]
    assert learning_rate(TRAINING, 1000) == pytest.approx(0.1), "not up again beyond the end"


def test_the_export_to_torchtitan_has_the_constants_of_the_optimizer():
    assert {"beta1": ADAM_BETAS[0], "beta2": ADAM_BETAS[1], "eps": ADAM_EPSILON} == ADAM
    assert FINAL_SHARE == COSINE_FLOOR


def test_a_constant_schedule_stays_where_warm_up_ends_and_others_are_refused():
    constant = dataclasses.replace(TRAINING, schedule="constant")
    assert {learning_rate(constant, step) for step in range(3, 104)} == {1.0}
    assert learning_rate(dataclasses.replace(constant, warmup_steps=0), 0) == 1.0
    with pytest.raises(RefusedError, match="unknown schedule 'linear'; known: constant, cosine"):
        learning_rate(dataclasses.replace(TRAINING, schedule="linear"), 50)


def _kept(samples: range, *, step: int = 3, layer: int = 1, site: str = "mlp", seed: int = 0) -> torch.Tensor:
    dropout = Dropout(probability=0.25, seed=seed, step=step, samples=torch.tensor(samples))
    return dropout.hidden(torch.ones(len(samples), 16, 64, dtype=torch.float64), layer, site)


def test_dropout_drops_its_share_and_scales_the_rest_up():
    kept = _kept(range(64))
    assert set(kept.unique().tolist()) == {0.0, 1.0 / 0.75}
    # 65,536 elements: four standard deviations are 0.007.
    assert (kept == 0).double().mean().item() == pytest.approx(0.25, abs=0.007)
    for dim in range(3):
        shares = (kept == 0).double().mean([other for other in range(3) if other != dim])
        assert shares.min() > 0.1, "no row is spared"
        assert shares.max() < 0.4, "and none is dropped whole"


def test_dropout_depends_on_seed_step_layer_site_and_sample_and_not_on_the_microbatch():
    whole = _kept(range(8))
    assert torch.equal(whole, torch.cat([_kept(range(3)), _kept(range(3, 8))]))
    for other in ({"step": 4}, {"layer": 2}, {"site": "embedding"}, {"seed": 1}):
        assert not torch.equal(whole, _kept(range(8), **other))
    assert not torch.equal(whole[0], whole[1])


def test_attention_drops_the_same_weights_whichever_rank_has_the_head_and_in_whatever_blocks():
    dropout = Dropout(probability=0.25, seed=0, step=0, samples=torch.arange(2))
    weights = torch.ones(2, 6, 16, 16)

    def dropped(first_head: int, row: int, column: int, size: int) -> torch.Tensor:
        part = weights[:, :2, :size, :size]
        place = {"heads": 6, "first_head": first_head, "tokens": 16, "row": row, "column": column}
        return dropout.attention(part, 1, "attention", **place)

    whole = torch.cat([dropped(first, 0, 0, 16) for first in (0, 2, 4)], 1)
    assert torch.equal(
        whole, dropout.attention(weights, 1, "attention", heads=6, first_head=0, tokens=16, row=0, column=0)
    )
    assert torch.equal(whole[:, 2:4, 5:9, 3:7], dropped(2, 5, 3, 4))
    assert (whole == 0).double().mean().item() == pytest.approx(0.25, abs=0.03)


class _Largest(TorchDispatchMode):
    """Notes the most elements of any tensor that is computed."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


@pytest.mark.parametrize("tokens", [64, 256])
def test_attention_with_dropout_and_the_loss_never_hold_more_than_a_block(monkeypatch, tokens):
    """Sixteen times the scores take no larger tensor, and a fourth of the logits at a time gives the same gradients."""
    model = ModelSpec(**{**TINY, "max_positions": 256, "vocab_size": 512})
    alone = TensorParallel(None, 1, 0)
    layers = architecture_of(model).stage(range(6), alone, torch.device("cpu"), torch.float64, dropout=True)
    first = first_weights(model, 0)
    with torch.no_grad():
        for specs in (layer_parameters(model, layer) for layer in range(6)):
            for spec in specs:
                layers.parameters[spec.name].copy_(first(spec, torch.float64))
    drawn = torch.randint(0, 512, (1, tokens + 1), generator=torch.Generator().manual_seed(0))
    dropout = Dropout(probability=0.1, seed=0, step=0, samples=torch.arange(1))
    microbatch = Microbatch(tokens=drawn[:, :-1], targets=drawn[:, 1:], weight=1.0, dropout=dropout)

    def gradients() -> tuple[torch.Tensor, int]:
        with _Largest() as largest:
            value = layers(0, None, microbatch)
            for layer in (1, 5):
                value = layers(layer, value, microbatch)
            value.backward()
        found = torch.cat([each.grad.flatten() for each in layers.parameters.values() if each.grad is not None])
        for each in layers.parameters.values():
            each.grad = None
        return found, largest.elements

    scores, logits = 6 * tokens * tokens, tokens * 512
    whole, most = gradients()
    assert most == max(scores, logits)
    monkeypatch.setattr(attention, "BLOCK_ELEMENTS", scores // 16)
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", logits // 4)
    in_blocks, most = gradients()
    torch.testing.assert_close(in_blocks, whole, atol=1e-12, rtol=0)
    weights = 512 * 24
    assert most <= max(scores // 16, logits // 4, weights, tokens * 96)


def test_gradients_of_many_chunks_add_up_in_16_bits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.rand(1, 2048, 4, generator=generator).bfloat16()
    head = torch.rand(8, 4, generator=generator).bfloat16().requires_grad_()
    targets = torch.zeros(1, 2048, dtype=torch.int64)

    def loss_of(value: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(
            (value @ head.T).float().flatten(0, 1), wanted.flatten(), reduction="sum"
        )

    (whole,) = torch.autograd.grad(loss_of(hidden, targets), head)
    monkeypatch.setattr(loss, "CHUNK_ELEMENTS", 8)
    (chunked,) = torch.autograd.grad(loss.loss_in_chunks(loss_of, hidden, targets, (head,), 8), head)
    torch.testing.assert_close(chunked, whole, rtol=0.02, atol=0)
