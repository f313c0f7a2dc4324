"""Parameters of a model as tensor parallelism cuts them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import nn


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One parameter of the whole model; `cut_dim` is the dimension that tensor parallelism cuts, None if replicated.

    `packed` are the sizes of the matrices in it, one after the other along that dimension. Each is cut separately, into
    `pieces` indivisible pieces: attention heads, or single rows. `partial`: on each rank the gradient of the replicated
    parameter covers only that rank's computation. A parameter that is not `trainable` has no gradient.
    """

    name: str
    shape: tuple[int, ...]
    cut_dim: int | None = None
    packed: tuple[int, ...] = ()
    pieces: int = 1
    partial: bool = False
    trainable: bool = True

    def intervals(self, tp: int, index: int) -> tuple[tuple[int, int], ...]:
        """Return rank `index`'s intervals of `tp` along `cut_dim`: a part of each packed matrix, adjacent ones joined.

        Shares differ by at most one piece. For a replicated parameter it is all of dimension 0.
        """
        if self.cut_dim is None:
            return ((0, self.shape[0]),)
        first, end = self.pieces * index // tp, self.pieces * (index + 1) // tp
        found: list[tuple[int, int]] = []
        for start, stop in pairwise([0, *accumulate(self.packed)]):
            size = (stop - start) // self.pieces
            if found and found[-1][1] == start + first * size:
                found[-1] = (found[-1][0], start + end * size)
            else:
                found.append((start + first * size, start + end * size))
        return tuple(found)

    def empty_shard(
        self, tp: int, index: int, device: torch.device, dtype: torch.dtype, *, absent: bool = False
    ) -> nn.Parameter:
        """Return an empty tensor for rank `index`'s part of `tp`; with `absent`, its shape without memory."""
        shape = list(self.shape)
        shape[self.cut_dim or 0] = sum(end - start for start, end in self.intervals(tp, index))
        value = torch.empty(shape, dtype=dtype, device=device)
        if absent:
            value.untyped_storage().resize_(0)
        return nn.Parameter(value, requires_grad=self.trainable)
