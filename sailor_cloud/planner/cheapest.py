"""A lower bound on what work costs: whole layers on stages that a microbatch keeps busy as long as the slowest one.

Every device of a pipeline is paid for as long as the pipeline's bottleneck takes with all samples, and longer where it
is filled. So a sample costs no less than the cheapest chain of stages for its bottleneck; which chains there are
depends on the microbatch size, since stages must fit in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space import Space
from sailor_cloud.planner.stage_floors import StageFloors

Floats = NDArray[np.float64]

# Ranges of bottlenecks at first, rounds of halving the best of them, and how many are halved.
_RANGES = 12
_ROUNDS = 10
_HALVED = 32


def cheapest_usd(space: Space, usd_per_s: Mapping[str, float]) -> float:
    """Return USD that no iteration undercuts; usd_per_s: the least for a device of each accelerator."""
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

    A box: whether a pipeline has several microbatches, the number of their size, a range of bottlenecks.
    """
    several, size = boxes[0].astype(int), boxes[1].astype(int)
    begin, end = boxes[2], boxes[3]
    seconds = np.moveaxis(floors.seconds[several, size], 0, -1)
    usd = (rates * floors.tp)[:, None, None, None]
    chains = np.minimum(*_through(np.where(seconds <= end * (1.0 + 1e-12), usd, np.inf).min(axis=0)))
    layers = floors.seconds[0].min(axis=1)
    blocks = floors.blocks * layers[:, 0, 1] if floors.blocks else 0.0
    whole = (layers[:, 1, 0] + layers[:, 2, 0] + blocks)[size]
    # A lone microbatch is in one stage at a time.
    busy = np.where(several == 0, np.maximum(begin, whole), begin)
    return np.asarray(chains * (busy + floors.least_update_s / space.batch))


def _through(stages: Floats) -> tuple[Floats, Floats]:
    """Return the least sum over several stages that follow one another through all blocks, and that of one alone.

    stages: shape [4, blocks + 1, boxes].
    """
    middle, first, last, whole = stages
    blocks = len(first) - 1
    for count in range(1, blocks + 1):
        before = (first[:count] + middle[count:0:-1]).min(axis=0)
        np.minimum(first[count], before, out=first[count])
    return np.asarray((first + last[::-1]).min(axis=0)), np.asarray(whole[blocks])
