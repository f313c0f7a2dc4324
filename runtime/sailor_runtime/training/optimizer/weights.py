"""The weights that the optimizer updates: whole shards, or with ZeRO-1 the piece of each atom that this rank owns."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.training.model.weights import FirstWeights
from sailor_runtime.training.optimizer import gradients
from sailor_runtime.training.pipeline.layout import Atom
from sailor_runtime.training.pipeline.stage import Shard, StageModule

# Half-open intervals of a parameter, one per dimension, in coordinates of the whole parameter.
Region = tuple[tuple[int, int], ...]
# What each holder sends at once: parts of parameters, together a bucket or one more than that: a large embedding is
# gathered at once, when no activations are held.
Round = list[list[tuple[str, Region]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a parameter that this rank updates; `value` is the parameter itself where nothing needs a copy.

    `region` is None for all of this rank's shard.
    """

    parameter: str
    region: Region | None
    value: Tensor

    def boxes(self, shard: Shard, held: Tensor) -> list[tuple[tuple[int, ...], Tensor]]:
        """Return the parts of `held`, a tensor of this piece's shape, each with its offsets in the parameter."""
        if self.region is None:
            return shard.boxes(held)
        return [(tuple(start for start, _ in self.region), held)]


class MasterWeights:
    """The pieces of one rank in the master precision, and their way back into the parameters of all holders."""

    def __init__(
        self,
        rank: int,
        module: StageModule,
        atoms: Iterable[Atom],
        group: Callable[[tuple[int, ...]], dist.ProcessGroup | None],
        *,
        master: torch.dtype,
        zero_stage: int,
        offload: bool = False,
    ) -> None:
        """`offload` keeps the pieces in the node's memory, whatever device the parameters are on."""
        self._module = module
        self._offload = offload
        self._group = group
        self._rank = rank
        self._copied = zero_stage > 0 or module.dtype != master or offload
        self._master = master
        self._exchanged: dict[tuple[int, ...], list[Round]] = {}
        owned = self._divide(atoms) if zero_stage > 0 else self._whole_shards()
        self.pieces = tuple(
            Piece(parameter=name, region=region, value=self._value(name, region)) for name, region in owned
        )

    @torch.no_grad()
    def fill(self, first: FirstWeights) -> None:
        """Set pieces and parameters to the values before the first step."""
        for name, shard in self._module.shards.items():
            self.set_shard(name, shard.of(first(shard.spec, self._master)))

    @torch.no_grad()
    def set_shard(self, name: str, shard_value: Tensor) -> None:
        """Set a parameter and its pieces from this rank's shard in the master precision."""
        self._module.parameters[name].copy_(shard_value)
        if self._copied:
            for piece in self.pieces:
                if piece.parameter == name:
                    piece.value.copy_(_within(shard_value, self._module.shards[name], piece.region))

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Give each piece its part of the summed gradient."""
        for piece in self.pieces:
            gradient = self._module.gradient(piece.parameter)
            if self._copied:
                gradient = _within(gradient, self._module.shards[piece.parameter], piece.region).contiguous()
                gradient = gradient.to(piece.value.device)
            piece.value.grad = gradient

    @torch.no_grad()
    def publish(self) -> None:
        """Bring updated pieces into this rank's parameters."""
        if not self._copied:
            return
        for piece in self.pieces:
            self._target(piece.parameter, piece.region).copy_(piece.value)
            piece.value.grad = None

    @torch.no_grad()
    def gather(self) -> None:
        """Bring the pieces that other ranks updated into this rank's parameters; a collective."""
        for holders in sorted(self._exchanged):
            for owned in self._exchanged[holders]:
                self._exchange(holders, owned)

    def _exchange(self, holders: tuple[int, ...], owned: Round) -> None:
        targets = [[self._target(name, region) for name, region in parts] for parts in owned]
        size = max(sum(target.numel() for target in parts) for parts in targets)
        device = next(iter(self._module.parameters.values())).device
        buffers = [torch.empty(size, dtype=self._module.dtype, device=device) for _ in holders]
        mine = holders.index(self._rank)
        own = torch.cat([*(target.reshape(-1) for target in targets[mine]), buffers[mine]])[:size]
        dist.all_gather(buffers, own, group=self._group(holders))
        for index, parts in enumerate(targets):
            sizes = [target.numel() for target in parts]
            if index != mine and parts:
                for target, flat in zip(parts, buffers[index][: sum(sizes)].split(sizes), strict=True):
                    target.copy_(flat.view(target.shape))

    def _target(self, name: str, region: Region | None) -> Tensor:
        return _within(self._module.parameters[name].detach(), self._module.shards[name], region)

    def _value(self, name: str, region: Region | None) -> Tensor:
        parameter = self._module.parameters[name]
        if not self._copied:
            return parameter
        sizes = parameter.shape if region is None else [end - start for start, end in region]
        device = torch.device("cpu") if self._offload else parameter.device
        return torch.empty(sizes, dtype=self._master, device=device, requires_grad=True)

    def _whole_shards(self) -> list[tuple[str, Region | None]]:
        return [(name, None) for name in self._module.trained]

    def _divide(self, atoms: Iterable[Atom]) -> list[tuple[str, Region | None]]:
        """Cut each atom into one piece of rows per holder; note who owns what, return what this rank owns."""
        owned: list[tuple[str, Region | None]] = []
        exchanged: dict[tuple[int, ...], list[Round]] = defaultdict(list)
        room: dict[tuple[int, ...], int] = defaultdict(int)
        for atom in atoms:
            shard = self._module.shards.get(atom.parameter)
            if shard is None or self._rank not in atom.holders:
                continue
            if shard.place(atom.start, atom.end) is None:
                continue
            if room[atom.holders] <= 0:
                exchanged[atom.holders].append([[] for _ in atom.holders])
                room[atom.holders] = gradients.BUCKET_ELEMENTS
            parts = exchanged[atom.holders][-1]
            for index, holder in enumerate(atom.holders):
                region = _share(shard, atom, index, len(atom.holders))
                if region[0][0] == region[0][1]:
                    continue
                parts[index].append((atom.parameter, region))
                room[atom.holders] -= math.prod(end - start for start, end in region)
                if holder == self._rank:
                    owned.append((atom.parameter, region))
        self._exchanged = {holders: rounds for holders, rounds in exchanged.items() if len(holders) > 1}
        return owned


def _share(shard: Shard, atom: Atom, index: int, count: int) -> Region:
    """Return share `index` of `count` of an atom, cut along the parameter's first dimension."""
    bounds = [(0, size) for size in shard.spec.shape]
    bounds[atom.cut_dim] = (atom.start, atom.end)
    first, end = bounds[0]
    bounds[0] = (first + (end - first) * index // count, first + (end - first) * (index + 1) // count)
    return tuple(bounds)


def _within(value: Tensor, shard: Shard, region: Region | None) -> Tensor:
    """Return the view of a region, or of all, in a tensor that holds `shard`."""
    for dim, (start, end) in enumerate(region or ()):
        first = shard.place(start, end) if dim == shard.cut_dim else start
        assert first is not None
        value = value.narrow(dim, first, end - start)
    return value
