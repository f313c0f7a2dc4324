"""The parameters of each layer: names, shapes, where tensor parallelism cuts them, and their first values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from sailor_runtime.spec import ArchitectureSpec, ModelSpec
from sailor_runtime.training.model.architecture import architecture_of


class Start(StrEnum):
    """How a parameter is filled before the first step."""

    NORMAL = "normal"
    ONES = "ones"
    ZEROS = "zeros"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One parameter of the whole model; `cut_dim` is the dimension that tensor parallelism cuts, None if replicated.

    `pieces` is the number of indivisible pieces along that dimension: attention heads, or single rows.
    """

    name: str
    shape: tuple[int, ...]
    cut_dim: int | None = None
    pieces: int = 1
    start: Start = Start.NORMAL
    std: float = 0.02

    def bounds(self, tp: int) -> tuple[int, ...]:
        """Return the tp + 1 cut points along `cut_dim`; shares differ by at most one piece."""
        if self.cut_dim is None:
            raise ValueError(f"{self.name} is not cut")
        size = self.shape[self.cut_dim] // self.pieces
        return tuple(self.pieces * index // tp * size for index in range(tp + 1))


def layer_parameters(model: ModelSpec, layer: int) -> tuple[ParameterSpec, ...]:
    """Return the parameters of one layer; a tied head names the embedding's weight again."""
    form = architecture_of(model)
    if layer == 0:
        return _embedding(model, form)
    if layer == model.blocks + 1:
        return _head(model, form)
    return _block(model, form, f"h.{layer - 1}")


def _token_weight(model: ModelSpec, name: str) -> ParameterSpec:
    shape = (model.vocab_size, model.embedding_size)
    return ParameterSpec(name=f"{name}.weight", shape=shape, cut_dim=0, pieces=model.vocab_size)


def _embedding(model: ModelSpec, form: ArchitectureSpec) -> tuple[ParameterSpec, ...]:
    specs = [_token_weight(model, "wte")]
    if model.embedding_size != model.hidden_size:
        specs.append(ParameterSpec(name="project_in.weight", shape=(model.hidden_size, model.embedding_size)))
    if form.rope_theta is None:
        rows = model.max_positions + form.position_offset
        specs.append(ParameterSpec(name="wpe.weight", shape=(rows, model.hidden_size), std=0.01))
    return tuple(specs)


def _head(model: ModelSpec, form: ArchitectureSpec) -> tuple[ParameterSpec, ...]:
    specs = list(_norm("ln_f", model, form)) if form.final_norm else []
    if model.embedding_size != model.hidden_size:
        specs.append(ParameterSpec(name="project_out.weight", shape=(model.embedding_size, model.hidden_size)))
    return (*specs, _token_weight(model, "wte" if model.tied_head else "lm_head"))


def _norm(name: str, model: ModelSpec, form: ArchitectureSpec) -> tuple[ParameterSpec, ...]:
    weight = ParameterSpec(name=f"{name}.weight", shape=(model.hidden_size,), start=Start.ONES)
    if form.rms_norm:
        return (weight,)
    return (weight, ParameterSpec(name=f"{name}.bias", shape=(model.hidden_size,), start=Start.ZEROS))


def _linear(
    name: str, shape: tuple[int, int], *, cut_dim: int, pieces: int, bias: bool, std: float = 0.02
) -> tuple[ParameterSpec, ...]:
    """Return a weight [out, in] and its bias, which is cut only where the outputs are."""
    weight = ParameterSpec(name=f"{name}.weight", shape=shape, cut_dim=cut_dim, pieces=pieces, std=std)
    if not bias:
        return (weight,)
    if cut_dim == 0:
        cut = ParameterSpec(name=f"{name}.bias", shape=shape[:1], cut_dim=0, pieces=pieces, start=Start.ZEROS)
        return (weight, cut)
    return (weight, ParameterSpec(name=f"{name}.bias", shape=shape[:1], start=Start.ZEROS))


def _block(model: ModelSpec, form: ArchitectureSpec, name: str) -> tuple[ParameterSpec, ...]:
    hidden, ffn, groups = model.hidden_size, model.ffn_size, model.kv_heads
    queries, keys = model.heads * form.head_size, model.kv_heads * form.head_size
    # GPT-2 scales the projections that write into the residual stream by their number.
    residual_std = 0.02 / math.sqrt(2 * model.blocks)
    # Attention is cut between groups of query heads that share a key-value head.
    specs = [
        *_norm(f"{name}.ln_1", model, form),
        *_linear(f"{name}.attn.q", (queries, hidden), cut_dim=0, pieces=groups, bias=form.qkv_bias),
        *_linear(f"{name}.attn.k", (keys, hidden), cut_dim=0, pieces=groups, bias=form.qkv_bias),
        *_linear(f"{name}.attn.v", (keys, hidden), cut_dim=0, pieces=groups, bias=form.qkv_bias),
        *_linear(
            f"{name}.attn.o",
            (hidden, queries),
            cut_dim=1,
            pieces=groups,
            bias=form.attention_output_bias,
            std=residual_std,
        ),
        *_norm(f"{name}.ln_2", model, form),
        *_linear(f"{name}.mlp.up", (ffn, hidden), cut_dim=0, pieces=ffn, bias=form.mlp_bias),
        *_linear(f"{name}.mlp.down", (hidden, ffn), cut_dim=1, pieces=ffn, bias=form.mlp_bias, std=residual_std),
    ]
    if form.gated_mlp:
        specs += _linear(f"{name}.mlp.gate", (ffn, hidden), cut_dim=0, pieces=ffn, bias=form.mlp_bias)
    return tuple(specs)


def range_parameters(model: ModelSpec, layers: Iterable[int]) -> dict[str, ParameterSpec]:
    """Return the parameters of some layers by name, a parameter that two of them use once."""
    return {spec.name: spec for layer in layers for spec in layer_parameters(model, layer)}


def random_values(spec: ParameterSpec, seed: int, dtype: torch.dtype) -> Tensor:
    """Return a whole parameter with random values: a function of seed and name alone, equal in every precision."""
    if spec.start is Start.ONES:
        return torch.ones(spec.shape, dtype=dtype)
    if spec.start is Start.ZEROS:
        return torch.zeros(spec.shape, dtype=dtype)
    digest = hashlib.sha256(f"{seed}/{spec.name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
    return (torch.randn(spec.shape, generator=generator, dtype=torch.float32) * spec.std).to(dtype)
