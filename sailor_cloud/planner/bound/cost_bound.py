"""A lower bound on the cost of work, with whole layers in each stage.

A run pays for every device of a pipeline while its bottleneck processes all samples, and during the pipeline's fill. So
a sample costs at least as much as the cheapest chain of stages with that bottleneck. Which chains are possible depends
on the microbatch size, because stages must fit in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import StageTable

Floats = NDArray[np.float64]

# The initial ranges of bottlenecks, the rounds in which the best ranges are halved, and how many are halved.
_RANGES = 12
_ROUNDS = 10
_HALVED = 32
# How many microbatch sizes have their own times, besides powers of two. A size between two of them is charged the time
# per sample of the larger one, if the smallest size between them fits.
_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
# The largest rounding error of a sum of parts, in bytes.
_ROUNDED = 64.0
# The least number of microbatches that each sort of stage holds, in pipelines with more than one.
_HELD = np.array([[2], [2], [1], [1]])


def cheapest_usd(space: Space, usd_per_s: Mapping[str, float]) -> float:
    """Return a lower bound on the USD of an iteration. `usd_per_s`: the least for a device of each accelerator."""
    kept: dict[object, float] = space.remembered.setdefault("cheapest", {})
    key = tuple(sorted(usd_per_s.items()))
    if key not in kept:
        kept[key] = _cheapest_usd(space, usd_per_s)
    return kept[key]


def _cheapest_usd(space: Space, usd_per_s: Mapping[str, float]) -> float:
    floors = StageFloors.of(space)
    finite = floors.seconds[np.isfinite(floors.seconds)]
    if not finite.size:
        return float("inf")
    edges = np.geomspace(float(finite.min()), float(finite.max()) * (1.0 + 1e-9), _RANGES + 1)
    held, size, low = (axis.ravel() for axis in np.indices((2, len(floors.sizes), _RANGES)))
    boxes = np.stack([held, size, edges[low], edges[low + 1]])
    rates = np.array([usd_per_s[name] for name in floors.accelerators])
    found = least_usd(space, floors, rates, boxes)
    for _ in range(_ROUNDS):
        space.known.deadline.check()
        best = np.argsort(found, kind="stable")[:_HALVED]
        middle = np.sqrt(boxes[2, best] * boxes[3, best])
        lower, upper = boxes[:, best].copy(), boxes[:, best].copy()
        lower[3], upper[2] = middle, middle
        rest = np.delete(np.arange(len(found)), best)
        halves = np.concatenate([lower, upper], axis=1)
        boxes = np.concatenate([boxes[:, rest], halves], axis=1)
        closer = np.maximum(least_usd(space, floors, rates, halves), np.tile(found[best], 2))
        found = np.concatenate([found[rest], closer])
    return float(found.min()) * space.batch


def least_usd(space: Space, floors: StageFloors, rates: Floats, boxes: Floats) -> Floats:
    """Return the least USD of a sample in each box, shape [4, boxes].

    A box is defined by three things: whether a pipeline has several microbatches, the index of their size, and a range
    of bottlenecks.
    """
    several, size = boxes[0].astype(int), boxes[1].astype(int)
    begin, end = boxes[2], boxes[3]
    seconds = np.moveaxis(floors.seconds[several, size], 0, -1)
    usd = (rates * floors.tp)[:, None, None, None]
    chains = np.minimum(*_through(np.where(seconds <= end * (1.0 + 1e-12), usd, np.inf).min(axis=0)))
    layers = floors.seconds[0].min(axis=1)
    blocks = floors.blocks * layers[:, 0, 1] if floors.blocks else 0.0
    whole = (layers[:, 1, 0] + layers[:, 2, 0] + blocks)[size]
    # A single microbatch is in one stage at a time.
    busy = np.where(several == 0, np.maximum(begin, whole), begin)
    return np.asarray(chains * (busy + floors.least_update_s / space.batch))


def _through(stages: Floats) -> tuple[Floats, Floats]:
    """Return the least sum over consecutive stages that hold all blocks, and the least of a single stage.

    stages: shape [4, blocks + 1, boxes].
    """
    middle, first, last, whole = stages
    blocks = len(first) - 1
    for count in range(1, blocks + 1):
        before = (first[:count] + middle[count:0:-1]).min(axis=0)
        np.minimum(first[count], before, out=first[count])
    return np.asarray((first + last[::-1]).min(axis=0)), np.asarray(whole[blocks])


@dataclass(frozen=True, slots=True, kw_only=True)
class StageFloors:
    """Stages of every kind: an accelerator with a tp degree.

    accelerators, tp: shape [kinds]. sizes: microbatch sizes, rising; the last also represents all larger ones. seconds:
    of one sample, shape [2, sizes, kinds, 4, blocks + 1], stages with neither end, with the embedding, with the head,
    and with both; infinite if a stage fits on no device. Index 0: pipelines with one microbatch; index 1: others, in
    which a stage before the last holds at least two. least_update_s: of any plan's optimizer step.
    """

    accelerators: tuple[str, ...]
    tp: Floats
    sizes: tuple[int, ...]
    seconds: Floats
    least_update_s: float

    @property
    def blocks(self) -> int:
        return int(self.seconds.shape[-1]) - 1

    @classmethod
    def of(cls, space: Space) -> StageFloors:
        key = f"stage floors {space.zero_stage} {space.numbers}"
        known: StageFloors | None = space.known.searches.get(key)
        if known is None:
            known = space.known.searches[key] = _floors(space)
        return known


def _floors(space: Space) -> StageFloors:
    kinds: dict[tuple[str, int], int] = {}
    for index, pool in enumerate(space.pools):
        for tp in space.tp_degrees[index]:
            kinds.setdefault((pool.accelerator.name, tp), index)
    sizes = _sizes(space.batch)
    seconds = np.full((2, len(sizes), len(kinds), 4, space.layers - 1), np.inf)
    for row, ((_, tp), where) in enumerate(kinds.items()):
        before = None
        for column, size in enumerate(sizes):
            stages = _Stages(space, where, tp, size)
            seconds[:, column, row] = stages.seconds(before) / size
            if not np.isfinite(seconds[:, column, row]).any():
                break
            before = stages
    used = np.isfinite(seconds).any(axis=(0, 2, 3, 4))
    tables = [space.table(where, tp, 1) for (_, tp), where in kinds.items()]
    shards = space.batch if space.zero_stage else 1
    return StageFloors(
        accelerators=tuple(name for name, _ in kinds),
        tp=np.array([tp for _, tp in kinds], dtype=np.float64),
        sizes=tuple(size for size, kept in zip(sizes, used, strict=True) if kept),
        seconds=seconds[:, used],
        least_update_s=float(np.min([np.diff(table.update_prefix_s) for table in tables], axis=0).max()) / shards,
    )


def _sizes(batch: int) -> list[int]:
    sizes = list(_SIZES)
    while sizes[-1] < batch:
        sizes.append(2 * sizes[-1])
    return [*(size for size in sizes if size < batch), batch]


@dataclass(slots=True)
class _Stages:
    """All stages of one kind at one microbatch size, with activations kept or recomputed."""

    space: Space
    pool: int
    tp: int
    size: int
    _bytes: dict[Recompute, Floats] = field(default_factory=dict)

    def table(self, again: Recompute = Recompute.NONE) -> StageTable:
        return self.space.table(self.pool, self.tp, self.size, recompute=again)

    def seconds(self, before: _Stages | None) -> Floats:
        """Return the seconds of one microbatch if a size above `before` fits, shape [2, 4, blocks + 1].

        Stages recompute as little as memory allows.
        """
        single, (_, _, some) = np.arange(self.space.layers), _ranges(self.space.layers)
        limit = self.table().limit_bytes + _ROUNDED
        found = np.full((2, *some.shape), np.inf)
        for again in self.space.kinds:
            missing = some & np.isinf(found)
            if not missing.any():
                break
            seconds = _by_blocks(np.asarray(self.table(again).compute_s(single, single + 1)), again)
            found = np.where(missing & (self._least_bytes(before, again) <= limit), seconds, found)
        return found

    def _least_bytes(self, before: _Stages | None, again: Recompute) -> Floats:
        """Return the bytes of stages at the smallest size above another one; bytes are linear in the size."""
        most = self.bytes_of(again)
        if before is None:
            return most
        least = before.bytes_of(again)
        return np.asarray(least + (most - least) / (self.size - before.size))

    def bytes_of(self, again: Recompute) -> Floats:
        """Return the bytes of stages with one microbatch, and with `_HELD` microbatches, shape [2, 4, blocks + 1]."""
        if again not in self._bytes:
            first, end, _ = _ranges(self.space.layers)
            table, replicas = self.table(again), self.space.batch if self.space.zero_stage else 1
            one = np.asarray(table.memory_bytes(first, end, in_flight=1, replicas=replicas), dtype=np.float64)
            each = table.memory.activation_bytes(first, end)
            self._bytes[again] = np.stack([one, one + (_HELD - 1) * each])
        return self._bytes[again]


def _ranges(layers: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return first layers and ends of all stages, shape [4, blocks + 1], and which of them exist."""
    count = np.arange(layers - 1)
    first = np.stack([np.ones_like(count), np.zeros_like(count), layers - 1 - count, np.zeros_like(count)])
    end = np.stack([1 + count, 1 + count, np.full_like(count, layers), np.full_like(count, layers)])
    some = np.stack([count > 0, count >= 0, count >= 0, count == layers - 2])
    return first, np.maximum(end, first + 1), some


def _by_blocks(each: Floats, again: Recompute) -> Floats:
    """Return sums over the layers of every stage. The least block represents all blocks, or all of its kind."""
    count = np.arange(len(each) - 1)
    blocks = each[1:-1].min() * count if len(count) > 1 else np.zeros(1)
    if again is Recompute.SELECTIVE and len(count) > 1:
        blocks += (each[again.blocks(len(each))].min() - each[1:-1].min()) * (count // 2)
    return np.stack([blocks, blocks + each[0], blocks + each[-1], blocks + each[0] + each[-1]])
