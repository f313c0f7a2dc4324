"""The optimizer and the learning rate's course."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from sailor_runtime.spec import TrainingSpec
from sailor_runtime.training.refusal import RefusedError

ADAM_BETAS = (0.9, 0.95)
ADAM_EPSILON = 1e-8
SGD_MOMENTUM = 0.9
# The cosine ends at this share of the peak.
FINAL_SHARE = 0.1


def learning_rate(training: TrainingSpec, step: int) -> float:
    """Return the learning rate of a step, counted from 0: linear warm-up, then constant or cosine decay."""
    if step < training.warmup_steps:
        return training.learning_rate * (step + 1) / training.warmup_steps
    if training.schedule == "constant":
        return training.learning_rate
    if training.schedule != "cosine":
        raise RefusedError(f"unknown schedule {training.schedule!r}; known: constant, cosine")
    progress = (step - training.warmup_steps) / max(1, training.steps - training.warmup_steps)
    share = 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))
    return training.learning_rate * (FINAL_SHARE + (1.0 - FINAL_SHARE) * share)


def build(training: TrainingSpec, weights: Sequence[Tensor]) -> torch.optim.Optimizer:
    """Return an optimizer over weights; only matrices decay, since pulling biases and norms to 0 hurts."""
    groups = [
        {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [weight for weight in weights if weight.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if training.optimizer == "adamw":
        # Fused is the fastest AdamW on processors, and exact in float64.
        return torch.optim.AdamW(groups, lr=training.learning_rate, betas=ADAM_BETAS, eps=ADAM_EPSILON, fused=True)
    if training.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=training.learning_rate, momentum=SGD_MOMENTUM)
    raise RefusedError(f"unknown optimizer {training.optimizer!r}; known: adamw, sgd")
