"""Sums gradients over atoms, their norm over the whole model, and clips them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.training.layout import Atom
from sailor_runtime.training.stage import StageModule

# Bounds the copy of the gradients that is made for a sum.
_BUCKET_ELEMENTS = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """An atom as it lies in this rank's shard."""

    parameter: str
    cut_dim: int
    start: int
    length: int
    contributes: bool
    counts: bool


def _elements(part: _Part, parameters: Mapping[str, Tensor]) -> int:
    return parameters[part.parameter].narrow(part.cut_dim, part.start, part.length).numel()


class GradientSum:
    """The sums that one rank takes part in, in an order that all ranks share."""

    def __init__(
        self,
        rank: int,
        atoms: Iterable[Atom],
        module: StageModule,
        group: Callable[[tuple[int, ...]], dist.ProcessGroup | None],
    ) -> None:
        self._module = module
        by_holders: dict[tuple[int, ...], list[_Part]] = defaultdict(list)
        for atom in atoms:
            shard = module.shards.get(atom.parameter)
            if rank not in atom.holders or shard is None or not (shard.start <= atom.start and atom.end <= shard.end):
                continue
            by_holders[atom.holders].append(
                _Part(
                    parameter=atom.parameter,
                    cut_dim=atom.cut_dim,
                    start=atom.start - shard.start,
                    length=atom.end - atom.start,
                    contributes=rank in atom.contributors,
                    counts=atom.holders[0] == rank,
                )
            )
        self._buckets = [
            (group(holders), bucket)
            for holders in sorted(by_holders)
            for bucket in _buckets(by_holders[holders], module.parameters)
        ]

    @torch.no_grad()
    def run(self) -> Tensor:
        """Replace every gradient by its sum over the copies; return this rank's share of the squared norm, float64.

        Each atom counts on one rank, so the shares add up to the squared norm of the whole model's gradient.
        """
        norms: list[Tensor] = []
        for group, parts in self._buckets:
            views = [self._gradient(part) for part in parts]
            if group is not None:
                pieces = [
                    view.reshape(-1) if part.contributes else torch.zeros_like(view).reshape(-1)
                    for view, part in zip(views, parts, strict=True)
                ]
                flat = torch.cat(pieces)
                dist.all_reduce(flat, group=group)
                for view, total in zip(views, flat.split([view.numel() for view in views]), strict=True):
                    view.copy_(total.view(view.shape))
            for view, part in zip(views, parts, strict=True):
                if part.counts:
                    norms.append(torch.linalg.vector_norm(view))
        # One transfer for all, since each would wait for the device.
        return torch.stack(norms).double().pow(2).sum().cpu() if norms else torch.zeros((), dtype=torch.float64)

    @torch.no_grad()
    def scale(self, factor: float) -> None:
        """Multiply every gradient by `factor`."""
        for name in self._module.parameters:
            self._module.gradient(name).mul_(factor)

    def _gradient(self, part: _Part) -> Tensor:
        return self._module.gradient(part.parameter).narrow(part.cut_dim, part.start, part.length)


def _buckets(parts: list[_Part], parameters: Mapping[str, Tensor]) -> list[list[_Part]]:
    result: list[list[_Part]] = []
    filled = _BUCKET_ELEMENTS
    for part in parts:
        size = _elements(part, parameters)
        if filled + size > _BUCKET_ELEMENTS:
            result.append([])
            filled = 0
        result[-1].append(part)
        filled += size
    return result
