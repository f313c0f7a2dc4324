"""A lower bound on the seconds of an iteration: work, layers in whole stages, filling of pipelines and all-reduces.

Some pipeline of any plan carries at least as many samples as its devices are worth, by prices that make all devices
together worth the batch. So no plan is sooner than the soonest pipeline that is worth its devices. Pipelines are
looked at in boxes, ranges of bottleneck, time of sums, microbatch size and number of pipelines; boxes are halved, the
least bound first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bound_boxes import PIPELINES, Boxes, halved
from sailor_cloud.planner.box_bounds import CHOICES, BoxBounds, Worth
from sailor_cloud.planner.space import Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Rounds of halving, and how many boxes are halved in each where stages are few: fewer where there are more than these.
_ROUNDS = 36
_HALVED = 48
_STAGES = 900
# Boxes are halved while their range is worth more than this share of the bound.
_FINE = 0.01
# The ranges of pipelines that the first boxes begin at: 1, 2, 3, 5, 9 and 17 pipelines.
_FIRST_PIPELINES = (0, 1, 2, 3, 5, 7)


def soonest_s(space: Space, prices: Mapping[str, float], least_s: float) -> float:
    """Return seconds that no iteration undercuts, at least `least_s`, which bounds it for other reasons.

    prices: samples that each device of an accelerator must carry; the devices of any plan are worth the batch at most.
    """
    kept: dict[object, float] = space.remembered.setdefault("soonest", {})
    key = (tuple(sorted(prices.items())), least_s)
    if key not in kept:
        kept[key] = _soonest_s(space, prices, least_s)
    return kept[key]


def _soonest_s(space: Space, prices: Mapping[str, float], least_s: float) -> float:
    known: BoxBounds | None = space.remembered.get("box bounds")
    if known is None:
        known = space.remembered["box bounds"] = BoxBounds(space)
    worth = Worth(
        each=np.array([prices.get(name, 0.0) for name in known.floors.accelerators]),
        home_devices=max(pool.devices for pool in space.pools),
    )
    return _Search(known, worth, least_s).seconds()


@dataclass(slots=True)
class _Search:
    """`best`: the choices that were best for a box; `whole`: which boxes have been asked at all."""

    known: BoxBounds
    worth: Worth
    least_s: float
    boxes: Boxes = field(init=False)
    bounds: Floats = field(init=False)
    best: Ints = field(init=False)
    whole: NDArray[np.bool_] = field(init=False)

    def seconds(self) -> float:
        self.boxes = self._first()
        self.bounds, self.best = self.known.bounds(self.boxes, self.worth, _all(len(self.boxes)))
        self.whole = np.ones(len(self.boxes), dtype=bool)
        number = max(4, min(_HALVED, _HALVED * _STAGES // self.known.floors.seconds[0, 0].size))
        for _ in range(_ROUNDS):
            low = np.argsort(self.bounds, kind="stable")[:number]
            ask = low[~self.whole[low]]
            if len(ask):
                found, self.best[ask] = self.known.bounds(self.boxes[ask], self.worth, _all(len(ask)))
                self.bounds[ask], self.whole[ask] = np.maximum(self.bounds[ask], found), True
            elif not self._halve(low):
                break
        return max(self.least_s, float(self.bounds.min()))

    def _halve(self, low: Ints) -> bool:
        """Halve boxes, the least first, where that may bring more; return whether it may for the least."""
        gains = self._gains(self.boxes[low])
        coarse = gains.max(axis=0) > _FINE * self.bounds[low]
        if not coarse[0]:
            return False
        low, dimension = low[coarse], gains[:, coarse].argmax(axis=0)
        parts = halved(self.boxes[low], dimension)
        found, better = self.known.bounds(parts, self.worth, np.tile(self.best[low], (2, 1)))
        rest = np.delete(np.arange(len(self.boxes)), low)
        self.boxes = self.boxes[rest].joined(parts)
        self.bounds = np.concatenate([self.bounds[rest], np.maximum(found, np.tile(self.bounds[low], 2))])
        self.best = np.concatenate([self.best[rest], better])
        # Other prices may be better where sizes or numbers of pipelines are others.
        self.whole = np.concatenate([self.whole[rest], np.tile(dimension < 2, 2)])
        return True

    def _first(self) -> Boxes:
        """Return the boxes that cover all pipelines."""
        floors, space, rates = self.known.floors, self.known.space, self.known.rates
        layers = [floors.seconds[0, :, :, 0, 1:2], floors.seconds[0, :, :, 1, :1], floors.seconds[0, :, :, 2, :1]]
        least = max(float(layer.min()) for layer in layers if layer.size)
        bottlenecks = np.geomspace(least, self.known.longest_s, 5)
        slow = rates[np.isfinite(rates)]
        whole_s = 2.0 * float(floors.nbytes.max()) / float(rates[1].min()) if slow.size else 0.0
        sums = [0.0, *(whole_s * share for share in (1 / 16, 1 / 8, 1 / 4, 1.0)), math.inf]
        most = min(space.batch, sum(row.devices for row in space.candidates.rows))
        last = sum(number <= most for number in PIPELINES) - 1
        starts = [start for start in _FIRST_PIPELINES if start <= last]
        counts = [(start, end - 1) for start, end in pairwise([*starts, last + 1])]
        rows = [
            (low, high, early, late, 0, len(floors.sizes) - 1, *count)
            for low, high in pairwise(bottlenecks)
            for count in counts
            for early, late in pairwise(sums if count[0] and slow.size else [0.0, math.inf])
        ]
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        return Boxes(**{each.name: column for each, column in zip(fields(Boxes), columns, strict=True)})

    def _gains(self, boxes: Boxes) -> Floats:
        """Return what halving each range may be worth in seconds, roughly; shape [ranges, boxes]."""
        floors, least_s = self.known.floors, self.least_s
        sizes = np.array(floors.sizes, dtype=np.float64)
        least = floors.seconds[0].min(axis=1)
        whole = least[:, 1, 0] + least[:, 2, 0] + (floors.blocks * least[:, 0, 1] if floors.blocks else 0.0)
        whole = np.minimum.accumulate(whole)
        ranges = np.array([1.0 - 1.0 / max(2, number) for number in PIPELINES])
        late = np.where(np.isfinite(boxes.sums_end), boxes.sums_end, boxes.sums)
        size_s = (sizes[boxes.size_end] - sizes[boxes.size]) * whole[boxes.size_end]
        size_s += least_s * np.maximum(0.0, whole[boxes.size] / whole[boxes.size_end] - 1.0)
        more = ranges[boxes.pipelines_end] / ranges[boxes.pipelines] - 1.0
        return np.stack(
            [
                np.log(boxes.bottleneck_end / boxes.bottleneck) * least_s,
                late - boxes.sums,
                np.where(boxes.size_end > boxes.size, size_s, 0.0),
                np.where(boxes.pipelines_end > boxes.pipelines, more * late + 0.1 * least_s, 0.0),
            ]
        )


def _all(boxes: int) -> Ints:
    """Return all choices for each of so many boxes."""
    return np.tile(np.arange(len(CHOICES)), (boxes, 1))
