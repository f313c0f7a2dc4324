"""How tensor parallelism cuts modules: the styles of transformers' plans, applied to shards of any size.

A plan maps names, with `*` for a layer's number, to styles. Modules that are not in the plan are replicated.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sailor_runtime.refusal import RefusedError
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel

COLUMNS = ("colwise", "packed_colwise", "colwise_gather_output", "colwise_rep")
ROWS = ("rowwise", "rowwise_split_input", "rowwise_rep")
_GATHERED = ("colwise_gather_output", "colwise_rep")
_SPLIT = ("rowwise_split_input", "rowwise_rep")
VOCABULARY, PARTIAL, EXPERTS = "embedding_rowwise", "replicated_with_grad_allreduce", "moe_tp_experts"
# Whole experts, some on each device: their weights, and the module that routes tokens to them.
WHOLE, WHOLE_EXPERTS = "grouped_gemm", "ep_dispatch_experts"
_STYLES = (*COLUMNS, *ROWS, VOCABULARY, PARTIAL, EXPERTS, WHOLE, WHOLE_EXPERTS)
# Attributes of attention modules with their number of heads or the width of all heads.
_OF_HEADS = ("num_heads", "num_key_value_heads", "split_size")


class Cut:
    """A plan on the modules of one model, which may be on the meta device."""

    def __init__(self, root: nn.Module, plan: Mapping[str, str]) -> None:
        self._root = root
        self._plan = dict(plan)
        for name, style in self._plan.items():
            if style not in _STYLES:
                raise RefusedError(f"{name} is cut {style!r}, which is not supported; supported: {', '.join(_STYLES)}")

    def style(self, name: str) -> str | None:
        return self._plan.get(re.sub(r"(?<=\.)\d+(?=\.)", "*", name))

    def parameter(self, name: str, alias: str | None = None) -> ParameterSpec:
        """Return how a parameter is cut; `alias` is its other name if two modules share it."""
        path, leaf = name.rpartition(".")[::2]
        module, value = self._root.get_submodule(path), self._root.get_parameter(name)
        style = self.style(name) or self.style(path)
        shape = tuple(value.shape)
        spec = {"name": alias or name, "shape": shape, "trainable": value.requires_grad}
        if style is None or style in (EXPERTS, WHOLE_EXPERTS):
            return ParameterSpec(**spec)
        if style == PARTIAL:
            return ParameterSpec(**spec, partial=True)
        if style == WHOLE:
            return ParameterSpec(**spec, cut_dim=0, packed=shape[:1], pieces=shape[0])
        dim = _cut_dim(module, leaf, value, columns=style in COLUMNS or style == VOCABULARY)
        if dim is None:
            return ParameterSpec(**spec)
        parent = self._root.get_submodule(path.rpartition(".")[0])
        packed = (shape[dim],)
        if style == "packed_colwise":
            packed = _packed(parent, shape[dim])
        return ParameterSpec(**spec, cut_dim=dim, packed=packed, pieces=self._pieces(path, parent, packed))

    def _pieces(self, path: str, parent: nn.Module, packed: tuple[int, ...]) -> int:
        """Return the number of indivisible pieces: groups of query heads with one key-value head, or single rows."""
        size = getattr(parent, "head_dim", None)
        if size is None:
            return math.gcd(*packed)
        prefix = path.rpartition(".")[0]
        widths: list[int] = []
        for child, module in parent.named_children():
            style = self.style(f"{prefix}.{child}")
            if style in COLUMNS:
                weight = module.get_parameter("weight")
                width = weight.shape[_given(_cut_dim(module, "weight", weight, columns=True))]
                widths += _packed(parent, width) if style == "packed_colwise" else [width]
        return min(widths) // size

    def install(self, prefix: str, module: nn.Module, parallel: TensorParallel) -> None:
        """Make `module`, whose parameters are called `prefix`..., compute with this rank's shards of them.

        Its parameters must still be whole; afterwards each is replaced by `set_parameter`.
        """
        if parallel.size == 1:
            return
        for name, part in list(module.named_modules()):
            path = f"{prefix}.{name}" if name else prefix
            style = self.style(path)
            if style is not None:
                self._install(path, part, style, parallel)
            if hasattr(part, "head_dim"):
                self._local_heads(path, part, parallel)

    def _install(self, path: str, module: nn.Module, style: str, parallel: TensorParallel) -> None:
        if style == WHOLE_EXPERTS:
            count = int(module.num_experts)
            start, end = count * parallel.index // parallel.size, count * (parallel.index + 1) // parallel.size
            module.num_experts = end - start
            module.register_forward_pre_hook(lambda module, given: _own_experts(given, start, end))
        if style in (EXPERTS, WHOLE_EXPERTS):
            module.register_forward_pre_hook(
                lambda module, given: (
                    parallel.enter(given[0]),
                    *(parallel.enter(v) if v.is_floating_point() else v for v in given[1:]),
                )
            )
            module.register_forward_hook(lambda module, given, result: parallel.leave(result))
        elif style in COLUMNS or style in ROWS:
            spec = self.parameter(f"{path}.weight")
            sizes = [sum(e - s for s, e in spec.intervals(parallel.size, i)) for i in range(parallel.size)]
            if style in COLUMNS:
                if hasattr(module, "nf"):
                    module.nf = sizes[parallel.index]
                module.register_forward_pre_hook(lambda module, given: (parallel.enter(given[0]), *given[1:]))
                if style in _GATHERED:
                    module.register_forward_hook(lambda module, given, result: parallel.gather(result, sizes))
            else:
                module.forward = _rows(module, parallel, sizes if style in _SPLIT else None)
        elif style == VOCABULARY:
            [rows] = self.parameter(f"{path}.weight").intervals(parallel.size, parallel.index)
            _cut_vocabulary(module, rows, parallel)

    def _local_heads(self, path: str, attention: nn.Module, parallel: TensorParallel) -> None:
        """Adapt an attention module whose columns stay cut to this rank's heads."""
        styles = {name: self.style(f"{path}.{name}") for name, _ in attention.named_children()}
        cut = next((name for name, style in styles.items() if style in ("colwise", "packed_colwise")), None)
        if cut is None:
            return
        pieces = self.parameter(f"{path}.{cut}.weight").pieces
        own = pieces * (parallel.index + 1) // parallel.size - pieces * parallel.index // parallel.size
        names = [name for name in _OF_HEADS if hasattr(attention, name)]
        for name in names:
            setattr(attention, name, getattr(attention, name) * own // pieces)
        if "num_key_value_heads" in names:
            # Phi 3 reads the number of query heads from the configuration.
            config: Any = copy.copy(attention.config)
            config.num_attention_heads = config.num_attention_heads * own // pieces
            attention.config = config


def set_parameter(root: nn.Module, name: str, value: nn.Parameter) -> None:
    path, leaf = name.rpartition(".")[::2]
    root.get_submodule(path)._parameters[leaf] = value


def _cut_dim(module: nn.Module, leaf: str, value: Tensor, *, columns: bool) -> int | None:
    """Return the dimension of a module's outputs (`columns`) or inputs in one of its parameters."""
    if value.dim() == 1:
        return 0 if columns else None
    outputs, inputs = value.dim() - 2, value.dim() - 1
    if hasattr(module, "nf"):
        # transformers' Conv1D keeps its weight as [in, out].
        outputs, inputs = inputs, outputs
    return outputs if columns else inputs


def _packed(parent: nn.Module, width: int) -> tuple[int, ...]:
    """Return the widths of the matrices in a packed one: queries, keys and values, or a gate and its input."""
    if not hasattr(parent, "head_dim"):
        return (width // 2, width // 2)
    if hasattr(parent, "num_key_value_heads"):
        keys = int(parent.num_key_value_heads) * int(parent.head_dim)
        return (width - 2 * keys, keys, keys)
    return (width // 3,) * 3


def _rows(module: nn.Module, parallel: TensorParallel, sizes: list[int] | None) -> Callable[[Tensor], Tensor]:
    """Return the forward pass of a linear layer whose inputs are cut; its bias is added once, after the sum."""
    transposed = hasattr(module, "nf")

    def forward(value: Tensor) -> Tensor:
        if sizes is not None:
            value = parallel.split(value, sizes)
        weight = module.get_parameter("weight")
        product = parallel.leave(value @ weight if transposed else F.linear(value, weight))
        bias = module._parameters.get("bias")
        return product if bias is None else product + bias

    return forward


def _own_experts(given: tuple[Tensor, ...], start: int, end: int) -> tuple[Tensor, ...]:
    """Number this rank's experts from 0; other ranks' experts get a number that the module ignores."""
    states, chosen, *rest = given
    return (states, torch.where((chosen >= start) & (chosen < end), chosen - start, end - start), *rest)


def _cut_vocabulary(module: nn.Module, rows: tuple[int, int], parallel: TensorParallel) -> None:
    """Look up only this rank's rows; rows of other ranks count as zero, and the sum is whole."""
    start, end = rows
    own: list[Tensor] = []

    def before(module: nn.Module, given: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        tokens = given[0]
        own[:] = [(tokens >= start) & (tokens < end)]
        return (torch.where(own[0], tokens - start, 0), *given[1:])

    def after(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
        return parallel.leave(result * own.pop().unsqueeze(-1).to(result.dtype))

    module.register_forward_pre_hook(before)
    module.register_forward_hook(after)


def _given(dim: int | None) -> int:
    assert dim is not None
    return dim
