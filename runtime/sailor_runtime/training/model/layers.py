"""A model as a sequence of layers that can be on different devices, whatever its modules are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sailor_runtime.training.model.buffers import Buffers
from sailor_runtime.training.model.dropout import Dropout, DropoutMode
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.tensor_parallel import TensorParallel


@dataclass(frozen=True, slots=True, kw_only=True)
class Microbatch:
    """A layer's inputs besides hidden states: shapes [samples, tokens]; `weight` scales the loss sum of each token."""

    tokens: Tensor
    targets: Tensor
    weight: float
    dropout: Dropout


class StageLayers(ABC):
    """Consecutive layers on one rank: computes them from its shards of their parameters."""

    parameters: dict[str, nn.Parameter]
    # Those of a user's module.
    buffers: Buffers | None = None

    @abstractmethod
    def modules(self, layer: int) -> tuple[nn.Module, ...]:
        """Return the modules that compute a layer; empty if the whole model's own code does."""

    @abstractmethod
    def __call__(self, layer: int, value: Tensor | None, microbatch: Microbatch) -> Tensor:
        """Return the layer's output: hidden states, or after the last layer the weighted loss sum."""


class Architecture(ABC):
    """A model's layers, numbered from 0; the first takes tokens, the last returns the loss.

    `samples_per_pass`: of the reference, which limits its memory; it changes the result only by rounding.
    """

    layers: int
    samples_per_pass: int = 8

    @abstractmethod
    def parameters(self, layer: int) -> tuple[ParameterSpec, ...]:
        """Return the parameters that a layer uses; two layers may share some."""

    @abstractmethod
    def first_values(self, layer: int) -> dict[str, Tensor]:
        """Return random whole parameters of a layer, drawn from torch's generator of the processor."""

    def first_buffers(self) -> dict[str, Tensor]:
        """Return the persistent buffers of a user's module as they were built, by name."""
        return {}

    @abstractmethod
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
        """Return some layers as one rank computes them, their parameters without values.

        absent: parameters that have no memory yet.
        """

    @abstractmethod
    def full_model(
        self, values: Callable[[ParameterSpec], Tensor], dtype: torch.dtype, *, dropout: bool
    ) -> tuple[nn.Module, dict[str, Tensor]]:
        """Return the model as one process runs it, and its parameters by name."""

    @abstractmethod
    def dropout_mode(self, dropout: Dropout) -> DropoutMode:
        """Return the dropout inside a whole model."""

    @abstractmethod
    def loss_sum(self, whole: nn.Module, tokens: Tensor, targets: Tensor, dropping: DropoutMode | None) -> Tensor:
        """Return the sum of the tokens' losses by the whole model's own forward pass."""

    @abstractmethod
    def describe(self, folder: Path, dtype: torch.dtype) -> None:
        """Write the other files that a folder of exported weights needs to be loadable."""
