"""The layers of a spec's model, their parameters, and random first values of these."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.layers import Architecture
from sailor_runtime.training.model.parameters import ParameterSpec
from sailor_runtime.training.model.transformer import Transformer
from sailor_runtime.training.model.user_module import UserModule


@functools.lru_cache(maxsize=8)
def architecture_of(model: ModelSpec) -> Architecture:
    """Return the layers of a model. Raises RefusedError for one that can't be cut, and says which part."""
    return Transformer(model) if model.module is None else UserModule(model)


def layer_parameters(model: ModelSpec, layer: int) -> tuple[ParameterSpec, ...]:
    """Return the parameters of one layer; a tied head names the embedding's weight again."""
    return architecture_of(model).parameters(layer)


def range_parameters(model: ModelSpec, layers: Iterable[int]) -> dict[str, ParameterSpec]:
    """Return the parameters of some layers by name; shared ones appear once."""
    return {spec.name: spec for layer in layers for spec in layer_parameters(model, layer)}


def untied_parameters(model: ModelSpec) -> frozenset[str]:
    """Return the trained parameters that only one layer uses."""
    specs = [spec for layer in range(model.layers) for spec in layer_parameters(model, layer)]
    uses = Counter(spec.name for spec in specs)
    return frozenset(spec.name for spec in specs if spec.trainable and uses[spec.name] == 1)


class RandomWeights:
    """Whole parameters with the values that the model's own code gives them, the same under every plan and precision.

    A layer's values depend only on seed and layer. Those of one layer are cached, since parameters are requested layer
    by layer.
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
