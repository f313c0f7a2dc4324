"""What the check against one process can't see, since both sides share it: learning rates and dropped elements."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from factories.run_specs import SHORT_TRAINING
from sailor_runtime.spec import TrainingSpec
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.optimizer.optimizer import learning_rate
from sailor_runtime.training.refusal import RefusedError

TRAINING = TrainingSpec(**{**SHORT_TRAINING, "learning_rate": 1.0, "warmup_steps": 4, "steps": 104})


def test_the_learning_rate_warms_up_in_equal_steps_and_falls_along_a_cosine_to_a_tenth():
    rates = [learning_rate(TRAINING, step) for step in range(105)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[54] == pytest.approx(0.55)
    assert rates[29] == pytest.approx(0.1 + 0.9 * (1 + math.cos(math.pi / 4)) / 2)
    assert rates[104] == pytest.approx(0.1)
    assert sorted(rates[4:], reverse=True) == rates[4:]
    assert learning_rate(TRAINING, 1000) == pytest.approx(0.1), "not up again beyond the end"


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


def test_what_is_dropped_depends_on_seed_step_layer_site_and_sample_and_not_on_the_microbatch():
    whole = _kept(range(8))
    assert torch.equal(whole, torch.cat([_kept(range(3)), _kept(range(3, 8))]))
    for other in ({"step": 4}, {"layer": 2}, {"site": "embedding"}, {"seed": 1}):
        assert not torch.equal(whole, _kept(range(8), **other))
    assert not torch.equal(whole[0], whole[1])


def test_attention_drops_the_same_weights_whichever_rank_has_the_head():
    dropout = Dropout(probability=0.25, seed=0, step=0, samples=torch.arange(2))
    weights = torch.ones(2, 6, 16, 16)
    whole = dropout.attention(weights, 1, "attention", 6, 0)
    parts = [dropout.attention(weights[:, first : first + 2], 1, "attention", 6, first) for first in (0, 2, 4)]
    assert torch.equal(whole, torch.cat(parts, 1))
    assert (whole == 0).double().mean().item() == pytest.approx(0.25, abs=0.03)
