"""The optimizer and the learning rate schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import TrainingSpec
from sailor_runtime.training.optimizer import extensions

OPTIMIZERS = ("adamw", "sgd", "cpu-adam", "fused-adam")
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
    """Return an optimizer over weights; only matrices decay, since pulling biases and norms to 0 hurts.

    `cpu-adam` and `fused-adam` are DeepSpeed's AdamW, on processors and on CUDA devices. They don't support float64, so
    such weights use torch's. Raises RefusedError for an optimizer that is unknown or unavailable on this node.
    """
    groups: list[dict[str, Any]] = [
        {"params": [weight for weight in weights if weight.dim() > 1], "weight_decay": training.weight_decay},
        {"params": [weight for weight in weights if weight.dim() <= 1], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if not groups:
        # All parameters of this rank are frozen.
        return torch.optim.SGD([torch.empty(0, requires_grad=True)], lr=training.learning_rate)
    adam: dict[str, Any] = {"lr": training.learning_rate, "betas": ADAM_BETAS, "eps": ADAM_EPSILON}
    double = all(weight.dtype == torch.float64 for weight in weights)
    match training.optimizer:
        case "cpu-adam" | "fused-adam" if not double:
            return _of_deepspeed(training.optimizer, groups, adam)
        case "adamw" | "cpu-adam" | "fused-adam":
            # Fused is the fastest AdamW on processors, and exact in float64.
            return torch.optim.AdamW(groups, **adam, fused=True)
        case "sgd":
            made = torch.optim.SGD(groups, lr=training.learning_rate, momentum=SGD_MOMENTUM, fused=True)
            # Otherwise a skipped first step would leave uninitialized memory in the momentum.
            fill_state(made, weights)
            return made
    raise RefusedError(f"unknown optimizer {training.optimizer!r}; known: {', '.join(OPTIMIZERS)}")


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer, *, rate: float, factor: Tensor | None, skip: Tensor) -> None:
    """Update the weights at a learning rate by their gradients times `factor`, unless `skip` is true.

    Both are tensors on the device; torch's optimizers are queued there without waiting for them.
    """
    for group in optimizer.param_groups:
        group["lr"] = rate
    weights = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
    if not weights:
        return
    queued = isinstance(optimizer, torch.optim.AdamW | torch.optim.SGD)
    # Without a device nothing is queued, and kernels with a skip flag undo their count weight by weight.
    if not (queued and skip.is_cuda) and skip.item():
        return
    # Their kernels divide by a number in single precision, which is too coarse for weights in float64.
    divided = queued and factor is not None and all(weight.dtype != torch.float64 for weight in weights)
    if factor is not None and not divided:
        torch._foreach_mul_([weight.grad for weight in weights], factor.to(weights[0].device))
    if queued:
        optimizer.grad_scale = factor.reciprocal().float() if factor is not None and divided else None
        optimizer.found_inf = skip.float() if skip.is_cuda else None
    optimizer.step()


def check(name: str, device: torch.device) -> None:
    """Raise RefusedError for an optimizer that is unknown or unavailable on this node."""
    if name not in OPTIMIZERS:
        raise RefusedError(f"unknown optimizer {name!r}; known: {', '.join(OPTIMIZERS)}")
    if name == "fused-adam" and device.type != "cuda":
        raise RefusedError("optimizer 'fused-adam' needs a CUDA device; use 'adamw', which is fused on processors too")
    if name in extensions.EXTENSIONS:
        extensions.require(name)


def offloads(name: str) -> bool:
    """Whether an optimizer keeps its state and the master weights in the node's memory."""
    return name == "cpu-adam"


def rule(name: str) -> str:
    """Return the update rule of an optimizer; checkpoints can move between optimizers of the same rule."""
    return "sgd" if name == "sgd" else "adamw"


def _of_deepspeed(name: str, groups: list[dict[str, Any]], adam: dict[str, Any]) -> torch.optim.Optimizer:
    extensions.require(name)
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam

    made: torch.optim.Optimizer
    if name == "cpu-adam":
        made = DeepSpeedCPUAdam(groups, **adam, adamw_mode=True, fp32_optimizer_states=True)
    else:
        made = FusedAdam(groups, **adam, adam_w_mode=True, set_grad_none=False)
    return made


def fill_state(optimizer: torch.optim.Optimizer, weights: Sequence[Tensor]) -> None:
    """Create the optimizer's state, which otherwise happens only in the first step."""
    for weight in weights:
        state, zeros = optimizer.state[weight], torch.zeros_like(weight, requires_grad=False)
        if isinstance(optimizer, torch.optim.SGD):
            state["momentum_buffer"] = zeros
            continue
        state["exp_avg"], state["exp_avg_sq"] = zeros, zeros.clone()
        if isinstance(optimizer, torch.optim.AdamW):
            state["step"] = torch.zeros((), dtype=torch.float32, device=zeros.device)
        else:
            state["step"] = 0


def set_updates(optimizer: torch.optim.Optimizer, updates: int) -> None:
    """Set the number of updates, on which Adam's correction of its averages depends."""
    for group in optimizer.param_groups:
        # FusedAdam counts by group, the others by weight.
        if "step" in group:
            group["step"] = updates
    for state in optimizer.state.values():
        if isinstance(state.get("step"), Tensor):
            state["step"].fill_(float(updates))
        elif "step" in state:
            state["step"] = updates
