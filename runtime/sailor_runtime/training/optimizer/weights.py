"""The weights that the optimizer updates: whole shards, or with ZeRO this rank's piece of each atom."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from sailor_runtime.training.model.weights import FirstWeights
from sailor_runtime.training.optimizer.gradients import Bucket, GradientAllReduce, Share
from sailor_runtime.training.pipeline.exchange import BackgroundQueue, Exchange, Task
from sailor_runtime.training.pipeline.stage import Shard, StageModule

# Half-open intervals of a parameter, one per dimension, in coordinates of the whole parameter.
Region = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a parameter that this rank updates; `value` is the parameter itself if no copy is needed.

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
    """The pieces of one rank in the master precision, and their exchange with the parameters of all holders."""

    def __init__(
        self,
        module: StageModule,
        gradients: GradientAllReduce,
        background: BackgroundQueue,
        *,
        master: torch.dtype,
        zero_stage: int,
        offload: bool = False,
    ) -> None:
        """`offload` keeps the pieces in the node's memory, whatever the parameters' device."""
        self._module = module
        self._offload = offload
        self._background = background
        self._buckets = [*gradients.buckets, *gradients.scattered] if zero_stage > 0 else []
        # After a step, first layers first; weights absent between passes are gathered before each pass instead.
        self._gathered = [
            bucket
            for bucket in reversed(gradients.every if zero_stage > 0 else [])
            if bucket.parts[0].parameter not in module.absent
        ]
        self._uses = {
            name: [layer for layer in module.layers if name in {spec.name for spec in module.specs[layer]}]
            for name in module.trained
        }
        self._gathering: list[tuple[list[int], Task]] = []
        self._copied = zero_stage > 0 or module.dtype != master or offload
        self.master = master
        owned: list[tuple[str, Region | None]] = [(name, None) for name in module.trained]
        if zero_stage > 0:
            shares = [share for bucket in self._buckets for share in bucket.own_shares]
            owned = [(share.part.parameter, self._region(share)) for share in shares]
        self.pieces = tuple(
            Piece(parameter=name, region=region, value=self._value(name, region)) for name, region in owned
        )
        # By layer, the buckets of absent weights, each with its own pieces; then the gathers that have begun.
        self._absent: dict[int, list[tuple[Bucket, list[Tensor]]]] = defaultdict(list)
        self._present: dict[int, list[Task]] = {}
        values = iter([piece.value for piece in self.pieces])
        for bucket in self._buckets:
            own = [next(values).detach() for _ in bucket.own_shares]
            if bucket.parts[0].parameter in module.absent:
                self._absent[bucket.layer].append((bucket, own))

    @torch.no_grad()
    def fill(self, first: FirstWeights, alive: Callable[[], None], *, only_frozen: bool) -> None:
        """Set pieces and parameters to the values before the first step.

        alive: called after each. only_frozen: trained ones stay as they are.
        """
        for name, shard in self._module.shards.items():
            if not (only_frozen and self._module.parameters[name].requires_grad):
                self._set_shard(name, shard.of(first(shard.spec, self.master)))
                alive()

    def _set_shard(self, name: str, shard_value: Tensor) -> None:
        """Set a parameter and its pieces from this rank's shard in the master precision."""
        if name not in self._module.absent:
            self._module.parameters[name].copy_(shard_value)
        if self._copied:
            for piece in self.pieces:
                if piece.parameter == name:
                    piece.value.copy_(_within(shard_value, self._module.shards[name], piece.region))

    @torch.no_grad()
    def take_gradients(self, totals: Sequence[Tensor]) -> None:
        """Give each piece its part of the summed gradient; with ZeRO those are `totals`."""
        for number, piece in enumerate(self.pieces):
            gradient = totals[number] if self._buckets else self._module.gradient(piece.parameter)
            piece.value.grad = gradient.contiguous().to(piece.value.device)

    @torch.no_grad()
    def publish(self) -> None:
        """Copy updated pieces into this rank's parameters."""
        if not self._copied:
            return
        for piece in self.pieces:
            if piece.parameter not in self._module.absent:
                self._target(piece.parameter, piece.region).copy_(piece.value)
            piece.value.grad = None

    def gather(self) -> None:
        """Begin to copy the pieces that other ranks updated into this rank's parameters; a collective.

        It continues during the next forward pass, first layers first; `wait_for` waits until a layer has all of its
        own.
        """
        for bucket in self._gathered:
            exchange = bucket.exchange
            if exchange is not None:
                task = self._background.begin(partial(self._gather, exchange, bucket))
                for part in bucket.parts:
                    self._gathering.append((self._uses[part.parameter], task))

    def wait_for(self, layer: int) -> None:
        """Wait until a layer has the weights that others updated."""
        if not self._gathering:
            return
        for _, task in [each for each in self._gathering if layer in each[0]]:
            task.wait()
        self._gathering = [each for each in self._gathering if layer not in each[0]]

    def begin_gather(self, layer: int) -> None:
        """Begin to gather the absent weights of a layer for a pass; a collective."""
        if layer in self._present or layer not in self._module.layers:
            return
        for bucket, _ in self._absent[layer]:
            for name in {part.parameter for part in bucket.parts}:
                value = self._module.parameters[name]
                value.untyped_storage().resize_(value.numel() * value.itemsize)
        self._present[layer] = [
            self._background.begin(partial(self._gather_pieces, bucket, own)) for bucket, own in self._absent[layer]
        ]

    def wait_for_pass(self, layer: int) -> None:
        """Wait until the absent weights of a layer are gathered."""
        for task in self._present[layer]:
            task.wait()

    def free(self, layer: int) -> None:
        """Free the weights of a layer that are absent between passes."""
        del self._present[layer]
        for bucket, _ in self._absent[layer]:
            for part in bucket.parts:
                self._module.parameters[part.parameter].untyped_storage().resize_(0)

    def local_parts(self, name: str) -> list[tuple[tuple[int, ...], Tensor]]:
        """Return this rank's parts of a parameter between steps, with their offsets in the parameter."""
        shard = self._module.shards[name]
        if name not in self._module.absent:
            return shard.boxes(self._module.parameters[name].detach())
        return [
            box for piece in self.pieces if piece.parameter == name for box in piece.boxes(shard, piece.value.detach())
        ]

    def wait_for_all(self) -> None:
        """Wait until all layers have the weights that others updated."""
        for layer in self._module.layers:
            self.wait_for(layer)

    def _gather(self, exchange: Exchange, bucket: Bucket) -> None:
        targets = [
            [share.of(self._module.parameters[share.part.parameter].detach()) for share in each]
            for each in bucket.shares
        ]
        rows = _rows_of(targets)
        _laid(rows[bucket.own], targets[bucket.own], into=False)
        exchange.gather_parts(rows.view(-1))
        for number, each in enumerate(targets):
            if number != bucket.own:
                _laid(rows[number], each, into=True)

    def _gather_pieces(self, bucket: Bucket, own: list[Tensor]) -> None:
        """Fill absent weights from the pieces of all holders."""
        # Unlike `detach`, `data` has its own version counter: autograd must not treat the gathered values as a change.
        targets = [
            [share.of(self._module.parameters[share.part.parameter].data) for share in each] for each in bucket.shares
        ]
        if bucket.exchange is None:
            for target, value in zip(targets[bucket.own], own, strict=True):
                target.copy_(value)
            return
        rows = _rows_of(targets)
        _laid(rows[bucket.own], own, into=False)
        bucket.exchange.gather_parts(rows.view(-1))
        for row, each in zip(rows, targets, strict=True):
            _laid(row, each, into=True)

    def piece_view(self, shard_value: Tensor, piece: Piece) -> Tensor:
        """Return the view of a piece in a tensor of its parameter's shard."""
        return _within(shard_value, self._module.shards[piece.parameter], piece.region)

    def _target(self, name: str, region: Region | None) -> Tensor:
        return _within(self._module.parameters[name].detach(), self._module.shards[name], region)

    def _value(self, name: str, region: Region | None) -> Tensor:
        parameter = self._module.parameters[name]
        if not self._copied:
            return parameter
        sizes = parameter.shape if region is None else [end - start for start, end in region]
        device = torch.device("cpu") if self._offload else parameter.device
        return torch.empty(sizes, dtype=self.master, device=device, requires_grad=True)

    def _region(self, share: Share) -> Region:
        """Return the region of a share in its parameter."""
        part = share.part
        bounds = [(0, size) for size in self._module.shards[part.parameter].spec.shape]
        bounds[part.cut_dim] = (part.origin, part.origin + part.length)
        first = bounds[0][0] + share.first
        return ((first, first + share.rows), *bounds[1:])


def _rows_of(targets: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return a row for each holder's tensors, as long as the longest needs."""
    size = max(sum(target.numel() for target in each) for each in targets)
    return next(target for each in targets for target in each).new_empty((len(targets), size))


def _laid(row: Tensor, targets: Sequence[Tensor], *, into: bool) -> None:
    """Copy a row's tensors, one after the other, into targets, or from them."""
    at = 0
    for target in targets:
        place = row[at : at + target.numel()].view(target.shape)
        (target if into else place).copy_(place if into else target)
        at += target.numel()


def _within(value: Tensor, shard: Shard, region: Region | None) -> Tensor:
    """Return the view of a region, or of all, in a tensor of `shard`."""
    for dim, (start, end) in enumerate(region or ()):
        first = shard.place(start, end) if dim == shard.cut_dim else start
        assert first is not None
        value = value.narrow(dim, first, end - start)
    return value
