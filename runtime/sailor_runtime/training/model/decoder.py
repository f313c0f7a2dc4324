"""The forward pass of one layer of a decoder, cut over the devices of a stage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sailor_runtime.spec import ArchitectureSpec, ModelSpec
from sailor_runtime.training.model.architecture import architecture_of
from sailor_runtime.training.model.dropout import Dropout
from sailor_runtime.training.model.rotary import angles
from sailor_runtime.training.model.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """What a layer needs besides its input: shapes [samples, tokens]; `weight` scales the loss sum of each token."""

    tokens: Tensor
    targets: Tensor
    weight: float
    dropout: Dropout


class Decoder:
    """Computes layers from the local shards of their parameters; has no state of its own."""

    def __init__(self, model: ModelSpec, parameters: Mapping[str, Tensor], parallel: TensorParallel) -> None:
        self._model = model
        self._form = architecture_of(model)
        self._parameters = parameters
        self._parallel = parallel

    def layer(self, layer: int, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        """Return the layer's output: hidden states, or after the last layer the weighted loss sum."""
        if layer == 0:
            return self._embedding(microbatch)
        assert value is not None
        if layer == self._model.blocks + 1:
            return self._head(value, microbatch)
        return self._block(layer, value, microbatch.dropout)

    def _linear(self, value: Tensor, name: str) -> Tensor:
        return F.linear(value, self._parameters[f"{name}.weight"], self._parameters.get(f"{name}.bias"))

    def _reduced(self, value: Tensor, name: str) -> Tensor:
        """Return a linear layer whose inputs are cut; the bias is added once, after the sum."""
        value = self._parallel.leave(F.linear(value, self._parameters[f"{name}.weight"]))
        bias = self._parameters.get(f"{name}.bias")
        return value if bias is None else value + bias

    def _norm(self, value: Tensor, name: str) -> Tensor:
        shape, epsilon = (self._model.hidden_size,), self._form.norm_epsilon
        weight = self._parameters[f"{name}.weight"]
        if self._form.rms_norm:
            return F.rms_norm(value, shape, weight, epsilon)
        return F.layer_norm(value, shape, weight, self._parameters[f"{name}.bias"], epsilon)

    def _vocabulary(self, indices: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return local row numbers and which of the indices are local; `rows` is the number of local rows."""
        vocabulary, parallel = self._model.vocab_size, self._parallel
        start = vocabulary * parallel.index // parallel.size
        local = (indices >= start) & (indices < start + rows)
        return torch.where(local, indices - start, 0), local

    def _embedding(self, microbatch: Microbatch) -> Tensor:
        weight = self._parameters["wte.weight"]
        if self._parallel.size == 1:
            value = F.embedding(microbatch.tokens, weight)
        else:
            rows, local = self._vocabulary(microbatch.tokens, weight.shape[0])
            value = self._parallel.leave(F.embedding(rows, weight) * local.unsqueeze(-1).to(weight.dtype))
        if "project_in.weight" in self._parameters:
            value = self._linear(value, "project_in")
        if self._form.rope_theta is None:
            start = self._form.position_offset
            value = value + self._parameters["wpe.weight"][start : start + microbatch.tokens.shape[1]]
        return microbatch.dropout.hidden(value, 0, "embedding")

    def _block(self, layer: int, value: Tensor, dropout: Dropout) -> Tensor:
        name = f"h.{layer - 1}"
        first = self._form.norm_first
        normed = self._norm(value, f"{name}.ln_1") if first else value
        mixed = self._reduced(self._attention(layer, self._parallel.enter(normed), dropout), f"{name}.attn.o")
        value = value + dropout.hidden(mixed, layer, "attention-output")
        if not first:
            value = self._norm(value, f"{name}.ln_1")
        normed = self._norm(value, f"{name}.ln_2") if first else value
        narrow = self._reduced(self._wide(f"{name}.mlp", self._parallel.enter(normed)), f"{name}.mlp.down")
        value = value + dropout.hidden(narrow, layer, "mlp")
        return value if first else self._norm(value, f"{name}.ln_2")

    def _wide(self, name: str, value: Tensor) -> Tensor:
        if self._form.gated_mlp:
            return self._activate(self._linear(value, f"{name}.gate")) * self._linear(value, f"{name}.up")
        return self._activate(self._linear(value, f"{name}.up"))

    def _activate(self, value: Tensor) -> Tensor:
        match self._form.activation:
            case "relu":
                return F.relu(value)
            case "silu":
                return F.silu(value)
            case "gelu_tanh":
                return F.gelu(value, approximate="tanh")
        return F.gelu(value)

    def _attention(self, layer: int, value: Tensor, dropout: Dropout) -> Tensor:
        """Return the heads' outputs side by side, before the output projection."""
        model, form = self._model, self._form
        samples, tokens, _ = value.shape
        queries, keys, values = (
            self._linear(value, f"h.{layer - 1}.attn.{part}").view(samples, tokens, -1, form.head_size).transpose(1, 2)
            for part in ("q", "k", "v")
        )
        if form.rope_theta is not None:
            cosines, sines = _rotations(form, tokens, value)
            queries, keys = _rotated(queries, cosines, sines), _rotated(keys, cosines, sines)
        shared = model.heads // model.kv_heads
        if shared > 1:
            keys, values = keys.repeat_interleave(shared, 1), values.repeat_interleave(shared, 1)
        scale = 1.0 / math.sqrt(form.head_size) if form.scaled_attention else 1.0
        window = form.windows[layer - 1]
        if dropout.probability == 0.0:
            if 0 < window < tokens:
                mask = _visible(tokens, window, value.device)
                mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, scale=scale)
            else:
                mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True, scale=scale)
        else:
            scores = (queries @ keys.transpose(-1, -2) * scale).masked_fill(
                ~_visible(tokens, window, value.device), -math.inf
            )
            first_head = model.kv_heads * self._parallel.index // self._parallel.size * shared
            mixed = dropout.attention(scores.softmax(-1), layer, model.heads, first_head) @ values
        return mixed.transpose(1, 2).reshape(samples, tokens, -1)

    def _head(self, value: Tensor, microbatch: Microbatch) -> Tensor:
        if self._form.final_norm:
            value = self._norm(value, "ln_f")
        if "project_out.weight" in self._parameters:
            value = self._linear(value, "project_out")
        weight = self._parameters["wte.weight" if self._model.tied_head else "lm_head.weight"]
        # The loss is summed in at least single precision.
        logits = F.linear(self._parallel.enter(value), weight)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if self._parallel.size == 1:
            losses = F.cross_entropy(logits.flatten(0, 1), microbatch.targets.flatten(), reduction="sum")
            return losses * microbatch.weight
        logits = logits - self._parallel.maximum(logits.detach().amax(-1)).unsqueeze(-1)
        partition = self._parallel.leave(logits.exp().sum(-1)).log()
        rows, local = self._vocabulary(microbatch.targets, weight.shape[0])
        own = logits.gather(-1, rows.unsqueeze(-1)).squeeze(-1) * local.to(logits.dtype)
        return (partition - self._parallel.leave(own)).sum() * microbatch.weight


def _visible(tokens: int, window: int, device: torch.device) -> Tensor:
    """Return which keys (columns) each query (rows) attends to."""
    visible = torch.ones(tokens, tokens, dtype=torch.bool, device=device).tril()
    return visible.triu(1 - window) if window else visible


def _rotations(form: ArchitectureSpec, tokens: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of shape [tokens, head_size] in the precision of `like`."""
    turned = angles(form, tokens, like.device)
    turned = torch.cat([turned, turned], -1)
    return turned.cos().to(like.dtype), turned.sin().to(like.dtype)


def _rotated(value: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """Rotate element i of each head together with element i + size / 2, as Hugging Face's checkpoints expect."""
    first, second = value.chunk(2, -1)
    return value * cosines + torch.cat([-second, first], -1) * sines
