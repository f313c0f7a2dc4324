"""A plain single-process training loop, against which plans are checked. Uses no part of the executor.

It shares with the plan's training only what defines the task: first values, samples, the dropped elements, and the
learning rate of a step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sailor_runtime.spec import ArchitectureSpec, ModelSpec, TrainingSpec
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.first_weights import first_weights
from sailor_runtime.training.model.parameters import range_parameters
from sailor_runtime.training.model.rotary import angles
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
    specs = range_parameters(model, range(model.layers))
    first = first_weights(model, training.seed)
    weights = {name: first(spec, dtype).clone().requires_grad_() for name, spec in specs.items()}
    optimizer = _optimizer(training, weights)
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
            outputs = logits(model, weights, chunk[:, :-1], dropout)
            loss = F.cross_entropy(outputs.flatten(0, 1), chunk[:, 1:].flatten(), reduction="sum")
            loss = loss / (batch * training.sequence_length)
            loss.backward()
            total += loss.item()
        largest = math.inf if training.gradient_clipping is None else training.gradient_clipping
        norms.append(torch.nn.utils.clip_grad_norm_(list(weights.values()), largest).item())
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


def logits(model: ModelSpec, weights: Mapping[str, Tensor], tokens: Tensor, dropout: Dropout) -> Tensor:
    """Return logits of shape [samples, tokens, vocabulary]."""
    form = architecture_of(model)
    hidden = weights["wte.weight"][tokens]
    if "project_in.weight" in weights:
        hidden = hidden @ weights["project_in.weight"].t()
    if form.rope_theta is None:
        hidden = hidden + weights["wpe.weight"][torch.arange(tokens.shape[1]) + form.position_offset]
    hidden = dropout.hidden(hidden, 0, "embedding")
    for block in range(model.blocks):
        own = {name.removeprefix(f"h.{block}."): w for name, w in weights.items() if name.startswith(f"h.{block}.")}
        hidden = _block(model, form, block, own, hidden, dropout)
    if form.final_norm:
        hidden = _norm(hidden, weights, "ln_f", form)
    if "project_out.weight" in weights:
        hidden = hidden @ weights["project_out.weight"].t()
    return hidden @ weights["wte.weight" if model.tied_head else "lm_head.weight"].t()


def _block(
    model: ModelSpec, form: ArchitectureSpec, block: int, own: Mapping[str, Tensor], hidden: Tensor, dropout: Dropout
) -> Tensor:
    def attended(value: Tensor) -> Tensor:
        mixed = _attention(model, form, block, own, value, dropout)
        return dropout.hidden(_linear(mixed, own, "attn.o"), block + 1, "attention-output")

    def transformed(value: Tensor) -> Tensor:
        wide = _linear(value, own, "mlp.up")
        if form.gated_mlp:
            wide = wide * _activation(_linear(value, own, "mlp.gate"), form.activation)
        else:
            wide = _activation(wide, form.activation)
        return dropout.hidden(_linear(wide, own, "mlp.down"), block + 1, "mlp")

    if form.norm_first:
        hidden = hidden + attended(_norm(hidden, own, "ln_1", form))
        return hidden + transformed(_norm(hidden, own, "ln_2", form))
    hidden = _norm(hidden + attended(hidden), own, "ln_1", form)
    return _norm(hidden + transformed(hidden), own, "ln_2", form)


def _activation(value: Tensor, kind: str) -> Tensor:
    match kind:
        case "relu":
            return value.clamp(min=0.0)
        case "silu":
            return value * torch.sigmoid(value)
        case "gelu_tanh":
            return 0.5 * value * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (value + 0.044715 * value.pow(3))))
    return 0.5 * value * (1.0 + torch.erf(value / math.sqrt(2.0)))


def _linear(value: Tensor, weights: Mapping[str, Tensor], name: str) -> Tensor:
    result = value @ weights[f"{name}.weight"].t()
    return result + weights[f"{name}.bias"] if f"{name}.bias" in weights else result


def _norm(value: Tensor, weights: Mapping[str, Tensor], name: str, form: ArchitectureSpec) -> Tensor:
    if form.rms_norm:
        return value / torch.sqrt(value.pow(2).mean(-1, keepdim=True) + form.norm_epsilon) * weights[f"{name}.weight"]
    centred = value - value.mean(-1, keepdim=True)
    scaled = centred / torch.sqrt(centred.pow(2).mean(-1, keepdim=True) + form.norm_epsilon)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def _attention(
    model: ModelSpec, form: ArchitectureSpec, block: int, own: Mapping[str, Tensor], value: Tensor, dropout: Dropout
) -> Tensor:
    samples, tokens, _ = value.shape
    size, group = form.head_size, model.heads // model.kv_heads
    # Query heads stand as [key-value head, query head of its group].
    queries = _linear(value, own, "attn.q").view(samples, tokens, model.kv_heads, group, size)
    keys = _linear(value, own, "attn.k").view(samples, tokens, model.kv_heads, size)
    values = _linear(value, own, "attn.v").view(samples, tokens, model.kv_heads, size)
    if form.rope_theta is not None:
        queries, keys = _rotated(queries, form), _rotated(keys, form)
    scores = torch.einsum("bikgd,bjkd->bkgij", queries, keys)
    if form.scaled_attention:
        scores = scores / math.sqrt(size)
    distance = torch.arange(tokens).view(-1, 1) - torch.arange(tokens).view(1, -1)
    hidden = distance < 0
    if form.windows[block]:
        hidden = hidden | (distance >= form.windows[block])
    weights = scores.masked_fill(hidden, -math.inf).softmax(-1)
    weights = dropout.attention(weights.flatten(1, 2), block + 1, model.heads, 0).view(scores.shape)
    return torch.einsum("bkgij,bjkd->bikgd", weights, values).reshape(samples, tokens, model.heads * size)


def _rotated(value: Tensor, form: ArchitectureSpec) -> Tensor:
    """Rotate [samples, tokens, ..., size]: elements i and i + size / 2 are one complex number."""
    size = value.shape[-1]
    angle = angles(form, value.shape[1], value.device)
    turn = torch.polar(torch.ones_like(angle), angle)
    turn = turn.to(torch.complex64 if value.dtype == torch.float32 else torch.complex128)
    turn = turn.view(1, value.shape[1], *[1] * (value.dim() - 3), size // 2)
    pairs = torch.complex(value[..., : size // 2], value[..., size // 2 :]) * turn
    return torch.cat([pairs.real, pairs.imag], -1)
