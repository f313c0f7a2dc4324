"""A model as a row of layers that can stand on different devices, whatever its modules are."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.dropout import Dropout, Dropping
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """What a layer needs besides its input: shapes [samples, tokens]; `weight` scales the loss sum of each token."""

    tokens: Tensor
    targets: Tensor
    weight: float
    dropout: Dropout


class StageLayers(ABC):
    """Consecutive layers on one rank: computes them from its shards of their parameters."""

    parameters: dict[str, nn.Parameter]

    @abstractmethod
    def __call__(self, layer: int, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        """Return the layer's output: hidden states, or after the last layer the weighted loss sum."""


class Architecture(ABC):
    """A model's layers, numbered from 0; the first takes tokens, the last gives the loss."""

    layers: int

    @abstractmethod
    def parameters(self, layer: int) -> tuple[ParameterSpec, ...]:
        """Return the parameters that a layer uses; two layers may use the same."""

    @abstractmethod
    def first_values(self, layer: int) -> dict[str, Tensor]:
        """Return random whole parameters of a layer, drawn from torch's generator of the processor."""

    @abstractmethod
    def stage(
        self, layers: range, parallel: TensorParallel, device: torch.device, dtype: torch.dtype, *, dropout: bool
    ) -> StageLayers:
        """Return some layers as one rank computes them, their parameters without values."""

    @abstractmethod
    def whole(
        self, values: Callable[[ParameterSpec], Tensor], dtype: torch.dtype, *, dropout: bool
    ) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the model as one process runs it, and its parameters by name."""

    @abstractmethod
    def dropping(self, dropout: Dropout) -> Dropping:
        """Return what drops elements inside a whole model."""

    @abstractmethod
    def loss_sum(self, whole: nn.Module, tokens: Tensor, targets: Tensor, dropping: Dropping | None) -> Tensor:
        """Return the sum of the tokens' losses by the whole model's own forward pass."""

    @abstractmethod
    def describe(self, folder: Path, dtype: torch.dtype) -> None:
        """Write what else a folder of exported weights needs so that others can load it."""


@functools.lru_cache(maxsize=8)
def architecture_of(model: ModelSpec) -> Architecture:
    """Return the layers of a model. Raises RefusedError for one that can't be cut, and says which part."""
    # Imported here, since transformers takes a second that only ranks need.
    from sailor_runtime.training.model.transformer import Transformer
    from sailor_runtime.training.model.user_module import UserModule

    return Transformer(model) if model.module is None else UserModule(model)


def layer_parameters(model: ModelSpec, layer: int) -> tuple[ParameterSpec, ...]:
    """Return the parameters of one layer; a tied head names the embedding's weight again."""
    return architecture_of(model).parameters(layer)


def range_parameters(model: ModelSpec, layers: Iterable[int]) -> dict[str, ParameterSpec]:
    """Return the parameters of some layers by name, a parameter that two of them use once."""
    return {spec.name: spec for layer in layers for spec in layer_parameters(model, layer)}


class RandomWeights:
    """Whole parameters with the values that the model's own code gives them, the same under every plan and precision.

    A layer's values are a function of seed and layer alone; those of one layer are kept, since parameters are asked for
    layer by layer.
    """

    def __init__(self, model: ModelSpec, seed: int) -> None:
        self._architecture = architecture_of(model)
        self._seed = seed
        self._first_use: dict[str, int] = {}
        for layer in range(self._architecture.layers):
            for spec in self._architecture.parameters(layer):
                self._first_use.setdefault(spec.name, layer)
        self._kept: tuple[int, dict[str, Tensor]] = (-1, {})

    def __call__(self, spec: ParameterSpec, dtype: torch.dtype) -> Tensor:
        layer = self._first_use[spec.name]
        if self._kept[0] != layer:
            digest = hashlib.sha256(f"{self._seed}/{layer}".encode()).digest()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int.from_bytes(digest[:7], "big"))
                self._kept = (layer, self._architecture.first_values(layer))
        return self._kept[1][spec.name].to(dtype)
