"""A plain single-process training loop, against which plans are checked. Uses no part of the executor.

The model computes its loss by its own forward pass: for a family of transformers, that of transformers. What is shared
with the plan's training defines the task: first values, samples, the dropped elements, and the learning rate of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sailor_runtime.spec import ModelSpec, TrainingSpec
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.weights import first_weights
from sailor_runtime.training.optimizer.optimizer import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM, learning_rate

# Samples per forward pass, which bounds memory; the result does not depend on it beyond rounding.
_CHUNK = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """Weights after the last step; loss (mean nats per token) and gradient norm of each step."""

    weights: dict[str, Tensor]
    losses: tuple[float, ...]
    gradient_norms: tuple[float, ...]


def train(
    model: ModelSpec,
    training: TrainingSpec,
    read: Callable[[range], Tensor],
    *,
    steps: int,
    dtype: torch.dtype = torch.float64,
    after_step: Callable[[], None] = lambda: None,
) -> ReferenceResult:
    """Train from the first values for `steps` steps in one process.

    read: gives samples by number as tokens of shape [samples, sequence_length + 1].
    """
    architecture, first = architecture_of(model), first_weights(model, training.seed)
    whole, weights = architecture.whole(lambda spec: first(spec, dtype), dtype, dropout=training.dropout > 0.0)
    trained = {name: weight for name, weight in weights.items() if weight.requires_grad}
    optimizer = _optimizer(training, trained)
    losses, norms = [], []
    batch = training.global_batch_size
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        tokens = read(range(step * batch, (step + 1) * batch))
        optimizer.zero_grad()
        total = 0.0
        for start in range(0, batch, _CHUNK):
            chunk = tokens[start : start + _CHUNK]
            dropout = Dropout(
                probability=training.dropout,
                seed=training.seed,
                step=step,
                samples=torch.arange(start, start + len(chunk)),
            )
            dropping = architecture.dropping(dropout) if training.dropout > 0.0 else None
            loss = architecture.loss_sum(whole, chunk[:, :-1], chunk[:, 1:], dropping)
            loss = loss / (batch * training.sequence_length)
            loss.backward()
            total += loss.item()
        largest = math.inf if training.gradient_clipping is None else training.gradient_clipping
        norms.append(torch.nn.utils.clip_grad_norm_(list(trained.values()), largest).item())
        optimizer.step()
        losses.append(total)
        after_step()
    return ReferenceResult(
        weights={name: weight.detach() for name, weight in weights.items()},
        losses=tuple(losses),
        gradient_norms=tuple(norms),
    )


def _optimizer(training: TrainingSpec, weights: dict[str, Tensor]) -> torch.optim.Optimizer:
    groups = [
        {"params": [weight for weight in weights.values() if weight.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [weight for weight in weights.values() if weight.dim() == 1], "weight_decay": 0.0},
    ]
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=training.learning_rate, momentum=SGD_MOMENTUM)
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON)
