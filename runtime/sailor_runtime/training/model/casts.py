"""Float64 through modules that cast to float32 internally."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Lifted(TorchFunctionMode):
    """Computes in float64 where modules ask for float32."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is Tensor.float:
            function = Tensor.double
        args = tuple(torch.float64 if value is torch.float32 else value for value in args)
        kwargs = {k: torch.float64 if v is torch.float32 else v for k, v in (kwargs or {}).items()}
        return function(*args, **kwargs)


@contextlib.contextmanager
def keep_float64(dtype: torch.dtype) -> Iterator[None]:
    """If a model computes in float64, prevent its modules' casts to float32 for norms, rotations or softmax."""
    with _Lifted() if dtype == torch.float64 else contextlib.nullcontext():
        yield
