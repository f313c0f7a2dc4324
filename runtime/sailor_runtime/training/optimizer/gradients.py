"""All-reduces gradients during the backward pass, and computes their norm over the whole model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from sailor_runtime.spec import ModelSpec
from sailor_runtime.training.model.architecture import layer_parameters
from sailor_runtime.training.pipeline.exchange import BackgroundQueue, Exchange
from sailor_runtime.training.pipeline.layout import Atom
from sailor_runtime.training.pipeline.stage import StageModule

# Limits one message of an all-reduce, and so how many gradients must be ready before it starts.
BUCKET_ELEMENTS = 4 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """An atom's place in this rank's shard; `layer` is the first of the model's layers that use the parameter.

    It begins at `start` along `cut_dim` of the shard, and at `origin` of the parameter.
    """

    parameter: str
    layer: int
    cut_dim: int
    start: int
    origin: int
    length: int
    contributes: bool
    counts: bool

    def of(self, shard: Tensor) -> Tensor:
        """Return the view of this part in a tensor of the shard's shape."""
        return shard.narrow(self.cut_dim, self.start, self.length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some rows of a part, which one of its holders updates under ZeRO."""

    part: Part
    first: int
    rows: int

    def of(self, shard: Tensor) -> Tensor:
        """Return the view of this share in a tensor of the shard's shape."""
        return self.part.of(shard).narrow(0, self.first, self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Parts that are all-reduced in one message; `exchange` is None if only this rank holds them.

    `flat` contains their gradients one after the other, None if they must be copied for the all-reduce: a parameter
    whose atoms have different holders can't be in two messages. With ZeRO, `shares` are those of each holder, and `own`
    is the number of this one.
    """

    exchange: Exchange | None
    parts: tuple[Part, ...]
    flat: Tensor | None = None
    shares: tuple[tuple[Share, ...], ...] = ()
    own: int = 0

    @property
    def own_shares(self) -> tuple[Share, ...]:
        return self.shares[self.own]

    @property
    def layer(self) -> int:
        return min(part.layer for part in self.parts)

    def order(self, holders: tuple[int, ...]) -> tuple[Any, ...]:
        """Return the key by which every rank sorts its all-reduces: last layers first."""
        first = self.parts[0]
        return (-self.layer, holders, first.parameter, first.start)


class GradientAllReduce:
    """The all-reduces of one rank, in an order that all ranks share.

    Without ZeRO, each holder receives a whole bucket. With ZeRO, each holder receives only its share, in `totals` (a
    reduce-scatter). From stage 2 on, parameters that only one layer uses are reduce-scattered after each of its
    passes. These are in `scattered`; only their shares are accumulated over microbatches.

    An all-reduce starts when its layers have their gradients of all microbatches and all earlier all-reduces have
    started. It overlaps with the backward passes of lower layers. The order never depends on timing, so results are
    deterministic and ranks can't deadlock.

    `in_place`: gradients may be placed in memory so that all-reduces need no copies. `wire`: their format in transit,
    None for their own; they are accumulated in their own format.
    """

    def __init__(
        self,
        rank: int,
        model: ModelSpec,
        atoms: Iterable[Atom],
        module: StageModule,
        exchange: Callable[[tuple[int, ...]], Exchange | None],
        background: BackgroundQueue,
        *,
        zero_stage: int = 0,
        in_place: bool = True,
        wire: torch.dtype | None = None,
        bucket_elements: int | None = None,
    ) -> None:
        self._module = module
        self._background = background
        self._sharded = zero_stage > 0
        self._scattered = module.scattered if zero_stage >= 2 else frozenset()
        self._in_place = in_place and not self._sharded
        self._wire = wire
        # Read here, not in the signature, so that a test can make many all-reduces of a small model.
        limit = BUCKET_ELEMENTS if bucket_elements is None else bucket_elements
        uses = _uses(model)
        by_holders: dict[tuple[int, ...], list[Part]] = defaultdict(list)
        for atom in atoms:
            shard = module.shards.get(atom.parameter)
            place = None if shard is None else shard.place(atom.start, atom.end)
            if rank not in atom.holders or place is None:
                continue
            by_holders[atom.holders].append(
                Part(
                    parameter=atom.parameter,
                    layer=uses[atom.parameter][0],
                    cut_dim=atom.cut_dim,
                    start=place,
                    origin=atom.start,
                    length=atom.end - atom.start,
                    contributes=rank in atom.contributors,
                    counts=atom.holders[0] == rank,
                )
            )
        ordered = [
            (bucket.order(holders), bucket)
            for holders, parts in by_holders.items()
            for bucket in self._cut(exchange(holders), holders.index(rank), parts, limit)
        ]
        # All buckets; then those reduced after each pass and those reduced once.
        self.every = [self._laid_out(bucket) for _, bucket in sorted(ordered, key=lambda pair: pair[0])]
        self.scattered = [bucket for bucket in self.every if bucket.parts[0].parameter in self._scattered]
        self.buckets = [bucket for bucket in self.every if bucket.parts[0].parameter not in self._scattered]
        self._sums_of_shares = [self._empty_shares(bucket) for bucket in self.scattered]
        # Of the last pass: each bucket's number, and its reduce-scatter, which may still run.
        self._passing: list[tuple[int, Any]] = []
        # On this rank a parameter is complete with its first layer here, a bucket with that of all its parameters; a
        # tied parameter may be in two layers.
        first_use = {name: min(u for u in uses[name] if u in module.layers) for name in module.trained}
        self._done_with = [min(first_use[part.parameter] for part in bucket.parts) for bucket in self.buckets]
        self._begun: list[tuple[Any, Tensor | None]] = []
        # With ZeRO, the sums of this rank's shares in the order of the buckets, then of those scattered.
        self.totals: list[Tensor] = []
        # The number of all-reduces, from the first, that have completed and are in the gradients.
        self._ended = 0

    def clear(self) -> None:
        """Prepare for an iteration."""
        self._begun.clear()
        self.totals.clear()
        self._ended = 0
        for sums in self._sums_of_shares:
            sums.zero_()

    @torch.no_grad()
    def layer_done(self, layer: int) -> None:
        """Start the all-reduces that become possible once a layer has its gradients of all microbatches.

        All-reduces of a tied weight wait for other stages, which need this stage's passes. If passes wait for
        all-reduces, these therefore start after the last pass.
        """
        if self.scattered and layer > self._module.layers[0]:
            return
        while len(self._begun) < len(self.buckets) and self._done_with[len(self._begun)] >= layer:
            self._begun.append(self._begin(self.buckets[len(self._begun)]))

    @torch.no_grad()
    def pass_done(self, layer: int) -> None:
        """Begin to scatter the gradients of a layer's pass, and free them; wait for those of the previous layer."""
        self._end_pass()
        for number, bucket in enumerate(self.scattered):
            if bucket.layer == layer:
                self._passing.append((number, self._scatter(bucket)))
        self._module.drop_gradients(layer)

    @torch.no_grad()
    def finish(self) -> Tensor:
        """Complete the all-reduce of every gradient; return this rank's share of the squared norm, float64.

        Each atom counts on one rank, so the shares sum to the squared norm of the whole model's gradient.
        """
        self.layer_done(self._module.layers[0])
        while self._ended < len(self.buckets):
            self._end()
        self._end_pass()
        for bucket, sums in zip(self.scattered, self._sums_of_shares, strict=True):
            self.totals += self._by_share(bucket, sums)
        counted = self.totals
        if not self._sharded:
            counted = [self._gradient(part) for bucket in self.buckets for part in bucket.parts if part.counts]
        if not counted:
            return torch.zeros((), dtype=torch.float64)
        return torch.stack(torch._foreach_norm(counted)).double().pow(2).sum()

    def _cut(self, exchange: Exchange | None, own: int, parts: list[Part], limit: int) -> list[Bucket]:
        """Group parts of the same holders, among which this rank is number `own`, into buckets."""
        shapes = self._module.shapes
        count = 1 if exchange is None else exchange.size
        return [
            Bucket(
                exchange=exchange,
                parts=each,
                shares=tuple(tuple(_shares(each, shapes, index, count)) for index in range(count))
                if self._sharded
                else (),
                own=own if exchange is not None else 0,
            )
            for each in _buckets(parts, shapes, limit, self._scattered)
        ]

    def _laid_out(self, bucket: Bucket) -> Bucket:
        """Place the gradients of a bucket where they are all-reduced, if its parts are whole parameters.

        Several parts of one parameter, as of a packed matrix, are then adjacent, unless they are columns of it.
        """
        of_one: dict[str, list[Part]] = defaultdict(list)
        for part in bucket.parts:
            of_one[part.parameter].append(part)
        shapes = {name: self._module.parameters[name].shape for name in of_one}
        whole = all(
            sum(part.length for part in parts) == shapes[name][parts[0].cut_dim]
            and (parts[0].cut_dim == 0 or len(parts) == 1)
            for name, parts in of_one.items()
        )
        if bucket.exchange is None or not whole or not self._in_place:
            return bucket
        gradients = {name: self._module.gradient(name) for name in of_one}
        sizes = [gradient.numel() for gradient in gradients.values()]
        flat = next(iter(gradients.values())).new_zeros(sum(sizes))
        self._module.keep_gradients_in(
            {name: place.view(shapes[name]) for name, place in zip(gradients, flat.split(sizes), strict=True)}
        )
        return replace(bucket, flat=flat)

    def _begin(self, bucket: Bucket) -> tuple[Any, Tensor | None]:
        """Start an all-reduce; return it, and its copy of the gradients if there is one."""
        exchange = bucket.exchange
        if exchange is None:
            return None, None
        if bucket.flat is not None:
            for part in bucket.parts:
                if not part.contributes:
                    self._gradient(part).zero_()
            return self._sum(exchange, bucket.flat), None
        # First free the copies of completed all-reduces, so that few exist at a time.
        while self._ended < len(self._begun) and _has_ended(self._begun[self._ended][0]):
            self._end()
        if self._sharded:
            flat = self._by_holder(bucket)
            return self._background.begin(lambda: exchange.sum_parts(flat, self._wire or flat.dtype)), None
        views = [self._gradient(part) for part in bucket.parts]
        pieces = [
            view.reshape(-1) if part.contributes else torch.zeros_like(view).reshape(-1)
            for view, part in zip(views, bucket.parts, strict=True)
        ]
        flat = torch.cat(pieces)
        return self._sum(exchange, flat), flat

    def _sum(self, exchange: Exchange, flat: Tensor) -> Any:
        if exchange.crosses or self._wire is not None:
            return self._background.begin(lambda: exchange.sum_all(flat, self._wire or flat.dtype))
        return dist.all_reduce(flat, group=exchange.group, async_op=True)

    def _by_holder(self, bucket: Bucket) -> Tensor:
        """Return a copy of a bucket's gradients: equally long parts with the shares of each holder in turn."""
        views = [[share.of(self._module.gradient(share.part.parameter)) for share in each] for each in bucket.shares]
        size = max(sum(view.numel() for view in each) for each in views)
        # Gradients of a single pass have the format of the weights; sums have single precision at least.
        like = self._module.gradient(bucket.parts[0].parameter)
        flat = like.new_zeros(size * len(views), dtype=torch.promote_types(like.dtype, torch.float32))
        for row, each, shares in zip(flat.view(len(views), size), views, bucket.shares, strict=True):
            at = 0
            for view, share in zip(each, shares, strict=True):
                if share.part.contributes:
                    row[at : at + view.numel()].view(view.shape).copy_(view)
                at += view.numel()
        return flat

    def _empty_shares(self, bucket: Bucket) -> Tensor:
        """Return an empty tensor for the sums of this rank's shares of a bucket, one after the other."""
        size = sum(share.of(self._module.shapes[share.part.parameter]).numel() for share in bucket.own_shares)
        like = self._module.parameters[bucket.parts[0].parameter]
        return like.new_zeros(size, dtype=torch.promote_types(like.dtype, torch.float32), requires_grad=False)

    def _by_share(self, bucket: Bucket, flat: Tensor) -> list[Tensor]:
        """Return this rank's shares in `flat`, which are one after the other."""
        shapes = [share.of(self._module.shapes[share.part.parameter]).shape for share in bucket.own_shares]
        sizes = [shape.numel() for shape in shapes]
        found = flat[: sum(sizes)].split(sizes)
        return [each.view(shape) for each, shape in zip(found, shapes, strict=True)]

    def _scatter(self, bucket: Bucket) -> Any:
        """Begin to sum a pass's gradients of a bucket; return the sum of this rank's shares, or a task for it."""
        exchange, flat = bucket.exchange, self._by_holder(bucket)
        if exchange is None:
            return flat
        return self._background.begin(lambda: exchange.sum_parts(flat, self._wire or flat.dtype))

    def _end_pass(self) -> None:
        """Wait for the scattered gradients of the last pass, and add them up."""
        for number, sums in self._passing:
            total = sums if isinstance(sums, Tensor) else sums.wait()
            own = self._sums_of_shares[number]
            own.add_(total[: own.numel()])
        self._passing.clear()

    def _end(self) -> None:
        """Wait for the first all-reduce that has not completed, and copy its totals to the gradients."""
        work, flat = self._begun[self._ended]
        bucket = self.buckets[self._ended]
        total = None if work is None else work.wait()
        if self._sharded:
            if isinstance(total, Tensor):
                self.totals += self._by_share(bucket, total)
            else:
                self.totals += [share.of(self._module.gradient(share.part.parameter)) for share in bucket.own_shares]
        elif flat is not None:
            views = [self._gradient(part) for part in bucket.parts]
            totals = flat.split([view.numel() for view in views])
            for view, total in zip(views, totals, strict=True):
                view.copy_(total.view(view.shape))
        self._begun[self._ended] = (None, None)
        self._ended += 1

    def _gradient(self, part: Part) -> Tensor:
        return part.of(self._module.gradient(part.parameter))


def _has_ended(work: Any) -> bool:
    return work is None or bool(work.is_completed())


def _uses(model: ModelSpec) -> dict[str, list[int]]:
    """Return the layers that use each parameter, ascending."""
    uses: dict[str, list[int]] = defaultdict(list)
    for layer in range(model.layers):
        for spec in layer_parameters(model, layer):
            uses[spec.name].append(layer)
    return uses


def _shares(parts: Sequence[Part], parameters: Mapping[str, Tensor], index: int, count: int) -> Iterable[Share]:
    """Return the rows of some parts that holder `index` of `count` updates."""
    for part in parts:
        rows = part.of(parameters[part.parameter]).shape[0]
        first, end = rows * index // count, rows * (index + 1) // count
        if end > first:
            yield Share(part=part, first=first, rows=end - first)


def _buckets(
    parts: list[Part], parameters: Mapping[str, Tensor], limit: int, scattered: Collection[str]
) -> list[tuple[Part, ...]]:
    """Group parts into messages of at most `limit` elements (or one part), last layers first.

    Parameters that are scattered after each pass share messages only with those of their layer. All holders group
    equally: parts have the same sizes everywhere, and layers are the whole model's.
    """
    result: list[list[Part]] = []
    filled = limit
    group = None
    for part in sorted(parts, key=lambda part: (-part.layer, part.parameter in scattered, part.parameter, part.start)):
        size = parameters[part.parameter].narrow(part.cut_dim, part.start, part.length).numel()
        alone = part.layer if part.parameter in scattered else None
        if filled + size > limit or alone != group:
            result.append([])
            filled = 0
        group = alone
        result[-1].append(part)
        filled += size
    return [tuple(parts) for parts in result]
