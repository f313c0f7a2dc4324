"""A user's own layered module: `module: my_package.model:build`.

`build()` returns an object with `layers() -> list[nn.Module]`, `tp_plan` and `loss(output, batch)`. The first layer
takes tokens [samples, tokens], each other layer the output of the previous one, all of shape [samples, tokens, hidden
size] except the last. `tp_plan` maps names such as `layers.*.attention.query` to styles (see cutting). `loss` is the
mean over the tokens of a batch with `tokens` and `targets`. Attention modules have `head_dim` and view heads with -1.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import math
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sailor_runtime.refusal import RefusedError
from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.buffers import Buffers, persistent
from sailor_runtime.training.model.casts import keep_float64
from sailor_runtime.training.model.cutting import Cut, set_parameter
from sailor_runtime.training.model.dropout import Dropout, DropoutMode
from sailor_runtime.training.model.layers import Architecture, Microbatch, StageLayers
from sailor_runtime.training.model.loss_check import LossCheck
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel

# Values that are summed at once, in double precision.
_AT_ONCE = 2**22


class UserModule(Architecture):
    """Layers that a user's function builds from a seed; parameters may be frozen or shared."""

    # No layer is known to treat samples separately, so the reference does.
    samples_per_pass = 1

    def __init__(self, model: ModelSpec) -> None:
        assert model.module is not None
        with _seeded(model.seed), _one_thread():
            self._built = _built(model.module)
            layers = list(self._built.layers())
        if len(layers) != model.layers:
            wanted = f"{model.layers}: embedding, {model.blocks} blocks, head"
            raise RefusedError(f"{model.module} has {len(layers)} layers, its sizes say {wanted}")
        self.name, self.layers = model.module, len(layers)
        self.heads, self.kv_heads = model.heads, model.kv_heads
        self.loss: Callable[[Tensor, Any], Tensor] = self._built.loss
        self.root = nn.Module()
        self.root.layers = nn.ModuleList(layers).eval()
        self._cut = Cut(self.root, dict(self._built.tp_plan))
        first: dict[int, str] = {}
        for name, value in self.root.named_parameters(remove_duplicate=False):
            first.setdefault(id(value), name)
        # The names in each layer, and the other name of a parameter that another layer also uses.
        self.names = {
            layer: {
                f"layers.{layer}.{name}": first[id(value)]
                for name, value in module.named_parameters(remove_duplicate=False)
            }
            for layer, module in enumerate(layers)
        }
        self._specs = {
            layer: tuple({alias: _with_rows(self._cut.parameter(alias)) for alias in names.values()}.values())
            for layer, names in self.names.items()
        }

    @staticmethod
    def layer(whole: nn.Module, layer: int) -> nn.Module:
        """Return a layer of a whole model. Iterating over a module's children would leave out repeated ones."""
        return whole.get_submodule(f"layers.{layer}")

    def parameters(self, layer: int) -> tuple[ParameterSpec, ...]:
        return self._specs[layer]

    def first_values(self, layer: int) -> dict[str, Tensor]:
        return {spec.name: self.root.get_parameter(spec.name).detach().view(spec.shape) for spec in self._specs[layer]}

    def first_buffers(self) -> dict[str, Tensor]:
        return {name: part.get_buffer(leaf) for part, leaf, name in persistent(self.root)}

    def first_sums(self, layers: Iterable[int]) -> dict[str, list[tuple[float, float]]]:
        """Return sums of the first parameters and buffers of some layers, and of each parameter that layers share."""
        uses = Counter(spec.name for specs in self._specs.values() for spec in specs)
        found = {}
        for layer in layers:
            module = self.root.get_submodule(f"layers.{layer}")
            found[f"layer {layer}"] = list(map(_summed, [*module.parameters(), *module.buffers()]))
            shared = [spec.name for spec in self._specs[layer] if uses[spec.name] > 1]
            found |= {name: [_summed(self.root.get_parameter(name))] for name in shared}
        return found

    def dropout_mode(self, dropout: Dropout) -> DropoutMode:
        return DropoutMode(dropout, self.heads, 0)

    def install(self, layer: int, module: nn.Module, parallel: TensorParallel) -> None:
        self._cut.install(f"layers.{layer}", module, parallel)

    def full_model(
        self, values: Callable[[ParameterSpec], Tensor], dtype: torch.dtype, *, dropout: bool
    ) -> tuple[nn.Module, dict[str, Tensor]]:
        whole, parameters = copy.deepcopy(self.root), {}
        for layer, names in self.names.items():
            for spec in self._specs[layer]:
                if spec.name not in parameters:
                    value = values(spec).to(dtype, copy=True).view(self.root.get_parameter(spec.name).shape)
                    parameters[spec.name] = nn.Parameter(value, requires_grad=spec.trainable)
            for name, alias in names.items():
                set_parameter(whole, name, parameters[alias])
        _move_buffers(whole, torch.device("cpu"), dtype)
        return whole, parameters

    def loss_sum(self, whole: nn.Module, tokens: Tensor, targets: Tensor, dropping: DropoutMode | None) -> Tensor:
        nothing = Dropout(probability=0.0, seed=0, step=0, samples=torch.arange(len(tokens)))
        batch = Microbatch(tokens=tokens, targets=targets, weight=1.0, dropout=nothing)
        value = tokens
        with dropping or contextlib.nullcontext(), keep_float64(next(whole.parameters()).dtype):
            for layer in range(self.layers):
                if dropping is not None:
                    dropping.begin(layer)
                value = self.layer(whole, layer)(value)
            return self.loss(value, batch) * tokens.numel()

    def describe(self, folder: Path, dtype: torch.dtype) -> None:
        """Do nothing: the weights have the names of the module's own parameters, and no other format is known."""

    def stage(
        self,
        layers: Sequence[int],
        parallel: TensorParallel,
        device: torch.device,
        dtype: torch.dtype,
        *,
        dropout: bool,
        absent: Collection[str] = (),
    ) -> StageLayers:
        return _Layers(self, layers, parallel, device, dtype, absent)


class _Layers(StageLayers):
    def __init__(
        self,
        architecture: UserModule,
        layers: Sequence[int],
        parallel: TensorParallel,
        device: torch.device,
        dtype: torch.dtype,
        absent: Collection[str],
    ) -> None:
        self._architecture, self._parallel, self._dtype = architecture, parallel, dtype
        self.parameters = {}
        # Modules, attributes and parameters of one element, which these modules know as scalars.
        self._scalars: dict[int, list[tuple[nn.Module, str, nn.Parameter]]] = defaultdict(list)
        root = nn.Module()
        root.layers = nn.ModuleDict()
        for layer in layers:
            module = copy.deepcopy(architecture.root.get_submodule(f"layers.{layer}"))
            architecture.install(layer, module, parallel)
            root.layers[str(layer)] = module
            for spec in architecture.parameters(layer):
                if spec.name not in self.parameters:
                    self.parameters[spec.name] = spec.empty_shard(
                        parallel.size, parallel.index, device, dtype, absent=spec.name in absent
                    )
            for name, alias in architecture.names[layer].items():
                set_parameter(root, name, self.parameters[alias])
                if architecture.root.get_parameter(name).dim() == 0:
                    self._scalars[layer].append((*_place(root, name), self.parameters[alias]))
            _move_buffers(module, device, dtype)
        self._modules = {layer: root.layers[str(layer)] for layer in layers}
        self.buffers = Buffers(root, architecture.root)
        self._loss_check = LossCheck(architecture.loss, architecture.name)
        groups = architecture.heads // architecture.kv_heads
        self._first_head = architecture.kv_heads * parallel.index // parallel.size * groups

    def modules(self, layer: int) -> tuple[nn.Module, ...]:
        return (self._modules[layer],)

    def __call__(self, layer: int, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        dropping: Any = contextlib.nullcontext()
        if microbatch.dropout.probability > 0.0:
            dropping = DropoutMode(microbatch.dropout, self._architecture.heads, self._first_head)
            dropping.begin(layer)
        for module, name, parameter in self._scalars[layer]:
            module._parameters.pop(name, None)
            module.__dict__[name] = parameter.view(())
        with dropping, keep_float64(self._dtype):
            result: Tensor = self._modules[layer](microbatch.tokens if value is None else value)
            if layer == self._architecture.layers - 1:
                result = self._loss_check(result, microbatch) * (microbatch.tokens.numel() * microbatch.weight)
        self._parallel.forget()
        return result


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed the generators of torch, numpy and Python, and restore them afterwards."""
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # numpy takes 32 bits.
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread: nodes differ in cores, and sums, as in orthogonal_, differ with their number."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _summed(value: Tensor) -> tuple[float, float]:
    """Return the sum of magnitudes, and a sum in which each place has its own weight.

    NaN counts as 0, infinity as 1.
    """
    magnitude, placed, flat = 0.0, 0.0, value.detach().cpu().resolve_conj().reshape(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).reshape(-1)
    for number, part in enumerate(flat.split(_AT_ONCE)):
        numbers = part.double().nan_to_num(nan=0.0, posinf=1.0, neginf=-1.0)
        magnitude += float(numbers.abs().sum())
        placed += math.cos(number) * float(numbers @ torch.arange(len(numbers), dtype=torch.float64).cos_())
    return magnitude, placed


def _built(place: str) -> Any:
    path, _, function = place.partition(":")
    try:
        build = functools.reduce(getattr, function.split("."), importlib.import_module(path))
        built = build()  # type: ignore[operator]
    except (ImportError, AttributeError, TypeError) as error:
        raise RefusedError(f"module {place}: {error}; name a function without arguments, package.file:build") from error
    for name in ("layers", "tp_plan", "loss"):
        if not hasattr(built, name):
            raise RefusedError(
                f"the result of {place} has no {name}; it needs layers(), tp_plan and loss(output, batch)"
            )
    return built


def _with_rows(spec: ParameterSpec) -> ParameterSpec:
    """Return the spec of a parameter that has a dimension 0 to cut: a scalar's has one element."""
    return spec if spec.shape else replace(spec, shape=(1,))


def _place(root: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return root.get_submodule(path), leaf


def _move_buffers(module: nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    for part in module.modules():
        for name, buffer in part.named_buffers(recurse=False):
            wide = dtype == torch.float64 and buffer.is_floating_point()
            part._buffers[name] = buffer.to(device, dtype if wide else buffer.dtype)
