"""A plain single-process training loop, against which plans are checked. Uses no part of the executor.

The model computes its loss by its own forward pass: for a family of transformers, that of transformers. It shares with
the plan's training only the definition of the task: first values, samples, dropped elements, and the learning rate of a
step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sailor_runtime.spec import ModelSpec, TrainingSpec
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.weights import first_weights
from sailor_runtime.training.optimizer.optimizer import ADAM_BETAS, ADAM_EPSILON, SGD_MOMENTUM, learning_rate

# DiLoCo's (arXiv 2311.08105); repeated here as the reference that the plan's training must match.
OUTER_LEARNING_RATE, OUTER_MOMENTUM = 0.7, 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceResult:
    """Weights after the last step; loss (mean nats per token) and gradient norm of each step.

    With several islands, `weights` are those of the first, `others` those of the rest.
    """

    weights: dict[str, Tensor]
    others: tuple[dict[str, Tensor], ...] = ()
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
    apart: Sequence[Sequence[range]] = (),
    chunk: int | None = None,
) -> ReferenceResult:
    """Train from the first values for `steps` steps in one process.

    read: returns samples by number as tokens of shape [samples, sequence_length + 1]. apart: for each island, which
    meets the others every `sync_every` steps, the positions of its samples in a batch. chunk: samples per forward pass;
    without it, those of the architecture.
    """
    every_sample = ((range(training.global_batch_size),),)
    islands = [_Island(model, training, dtype, samples, chunk) for samples in apart or every_sample]
    start = {name: weight.detach().clone() for name, weight in islands[0].trained.items()}
    outer = torch.optim.SGD(start.values(), lr=OUTER_LEARNING_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
    losses, norms = [], []
    for step in range(steps):
        done = [island.step(step, read) for island in islands]
        losses.append(sum(island.share * loss for island, (loss, _) in zip(islands, done, strict=True)))
        squares = sum(island.share * norm**2 for island, (_, norm) in zip(islands, done, strict=True))
        norms.append(math.sqrt(squares))
        every = training.sync_every
        if len(islands) > 1 and every is not None and ((step + 1) % every == 0 or step + 1 == training.steps):
            for name, weight in start.items():
                moved = [island.share * (weight - island.trained[name].detach()) for island in islands]
                weight.grad = torch.stack(moved).sum(0)
            outer.step()
            for island in islands:
                island.become(start)
        after_step()
    return ReferenceResult(
        weights=islands[0].now(),
        others=tuple(island.now() for island in islands[1:]),
        losses=tuple(losses),
        gradient_norms=tuple(norms),
    )


class _Island:
    """A model that trains on its own samples of each batch, given by their positions in it."""

    def __init__(
        self, model: ModelSpec, training: TrainingSpec, dtype: torch.dtype, samples: Sequence[range], chunk: int | None
    ) -> None:
        self._training, self._samples = training, samples
        self._architecture, first = architecture_of(model), first_weights(model, training.seed)
        self._chunk = chunk or self._architecture.samples_per_pass
        self._whole, self._weights = self._architecture.full_model(
            lambda spec: first(spec, dtype), dtype, dropout=training.dropout > 0.0
        )
        self.trained = {name: weight for name, weight in self._weights.items() if weight.requires_grad}
        self._optimizer = _optimizer(training, self.trained)
        self.share = sum(map(len, samples)) / training.global_batch_size

    def step(self, step: int, read: Callable[[range], Tensor]) -> tuple[float, float]:
        """Train one step; return loss and gradient norm."""
        training, batch = self._training, self._training.global_batch_size
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        self._optimizer.zero_grad()
        total = 0.0
        for start, end in self._chunks():
            chunk = read(range(step * batch + start, step * batch + end))
            dropout = Dropout(
                probability=training.dropout, seed=training.seed, step=step, samples=torch.arange(start, end)
            )
            dropping = self._architecture.dropout_mode(dropout) if training.dropout > 0.0 else None
            loss = self._architecture.loss_sum(self._whole, chunk[:, :-1], chunk[:, 1:], dropping)
            loss = loss / (batch * self.share * training.sequence_length)
            loss.backward()
            total += loss.item()
        largest = math.inf if training.gradient_clipping is None else training.gradient_clipping
        norm = torch.nn.utils.clip_grad_norm_(list(self.trained.values()), largest).item()
        self._optimizer.step()
        return total, norm

    def _chunks(self) -> list[tuple[int, int]]:
        size = self._chunk
        return [(at, min(at + size, own.stop)) for own in self._samples for at in own[::size]]

    @torch.no_grad()
    def become(self, weights: dict[str, Tensor]) -> None:
        for name, weight in self.trained.items():
            weight.copy_(weights[name])

    def now(self) -> dict[str, Tensor]:
        return {name: weight.detach() for name, weight in self._weights.items()}


def _optimizer(training: TrainingSpec, weights: dict[str, Tensor]) -> torch.optim.Optimizer:
    groups = [
        {"params": [weight for weight in weights.values() if weight.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [weight for weight in weights.values() if weight.dim() <= 1], "weight_decay": 0.0},
    ]
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=training.learning_rate, momentum=SGD_MOMENTUM)
    return torch.optim.AdamW(groups, lr=training.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON)
