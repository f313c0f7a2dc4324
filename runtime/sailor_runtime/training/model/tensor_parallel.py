"""The collectives inside a stage whose layers are cut over several devices."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function


class _Enter(Function):
    """Identity forward, sum over the group backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Leave(Function):
    """Sum over the group forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        value = value.contiguous().clone()
        dist.all_reduce(value, group=group)
        return value

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class TensorParallel:
    """The devices of one stage; without a group every operation is the identity."""

    def __init__(self, group: dist.ProcessGroup | None, size: int, index: int) -> None:
        self.group = group
        self.size = size
        self.index = index

    def enter(self, value: Tensor) -> Tensor:
        """Hand a replicated value to cut parameters."""
        return value if self.group is None else _Enter.apply(value, self.group)

    def leave(self, value: Tensor) -> Tensor:
        """Sum partial results of cut parameters to a replicated value."""
        return value if self.group is None else _Leave.apply(value, self.group)

    def maximum(self, value: Tensor) -> Tensor:
        """Return the largest value over the group, without gradient."""
        if self.group is None:
            return value
        value = value.clone()
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return value
