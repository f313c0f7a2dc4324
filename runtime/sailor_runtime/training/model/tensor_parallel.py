"""The collectives inside a stage whose layers are cut over several devices."""

from __future__ import annotations

from collections.abc import Sequence
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
        return _summed(gradient, ctx.group), None


class _Leave(Function):
    """Sum over the group forward, identity backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup) -> Tensor:
        return _summed(value, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class _Gather(Function):
    """All ranks' columns side by side forward, this rank's columns backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup, sizes: tuple[int, ...], index: int) -> Tensor:
        ctx.sizes, ctx.index = sizes, index
        return _gathered(value, group, sizes, index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return gradient.split(ctx.sizes, -1)[ctx.index], None, None, None


class _Split(Function):
    """This rank's columns forward, all ranks' columns side by side backward."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, group: dist.ProcessGroup, sizes: tuple[int, ...], index: int) -> Tensor:
        ctx.group, ctx.sizes, ctx.index = group, sizes, index
        return value.split(sizes, -1)[index]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        return _gathered(gradient, ctx.group, ctx.sizes, ctx.index), None, None, None


def _summed(value: Tensor, group: dist.ProcessGroup) -> Tensor:
    value = value.contiguous().clone()
    dist.all_reduce(value, group=group)
    return value


def _gathered(value: Tensor, group: dist.ProcessGroup, sizes: tuple[int, ...], index: int) -> Tensor:
    # Shares may differ by a piece, and collectives need equal ones.
    whole = value.new_zeros((*value.shape[:-1], sum(sizes)))
    whole.split(sizes, -1)[index].copy_(value)
    dist.all_reduce(whole, group=group)
    return whole


class TensorParallel:
    """The devices of one stage; without a group every operation is the identity."""

    def __init__(self, group: dist.ProcessGroup | None, size: int, index: int) -> None:
        self.group = group
        self.size = size
        self.index = index
        self._entered: list[tuple[Tensor, Tensor]] = []

    def enter(self, value: Tensor) -> Tensor:
        """Pass a replicated value to cut parameters; if several use the same value, its gradient is summed once."""
        if self.group is None:
            return value
        for known, entered in self._entered:
            if known is value:
                return entered
        self._entered.append((value, _Enter.apply(value, self.group)))
        return self._entered[-1][1]

    def forget(self) -> None:
        """Release the values that were passed to a layer, after it has run."""
        self._entered.clear()

    def leave(self, value: Tensor) -> Tensor:
        """Sum partial results of cut parameters to a replicated value."""
        return value if self.group is None else _Leave.apply(value, self.group)

    def gather(self, value: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return all ranks' columns; `sizes` has each rank's number of them."""
        return value if self.group is None else _Gather.apply(value, self.group, tuple(sizes), self.index)

    def split(self, value: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return this rank's columns of a replicated value."""
        return value if self.group is None else _Split.apply(value, self.group, tuple(sizes), self.index)

    def gather_parts(self, flat: Tensor) -> None:
        """Fill a flat tensor of which every rank has the part of its own number; parts are equally long."""
        if self.group is not None:
            dist.all_gather_single(flat, flat.chunk(self.size)[self.index], group=self.group)

    def maximum(self, value: Tensor) -> Tensor:
        """Return the largest value over the group, without gradient."""
        if self.group is None:
            return value
        value = value.clone()
        dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.group)
        return value
