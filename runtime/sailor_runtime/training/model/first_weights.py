"""The weights before the first step: random, or those of a checkpoint that the job names."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.huggingface import SavedWeights
from sailor_runtime.training.model.parameters import ParameterSpec, random_values

FirstWeights = Callable[[ParameterSpec, torch.dtype], Tensor]


def first_weights(model: ModelSpec, seed: int) -> FirstWeights:
    """Return a function that gives one whole parameter; what it gives depends on no plan."""
    if model.weights is not None:
        return SavedWeights(model.weights, model).whole
    return lambda spec, dtype: random_values(spec, seed, dtype)
