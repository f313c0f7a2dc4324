"""Bounds by microbatch size alone that join both ends of a pipeline's time: its busiest stage and its way.

At prices of devices in seconds, the least of a pipeline's way and the price of its devices, none of its stages busy
for longer than a limit: what the devices of a vector are worth taken off, that is what its way takes at least.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import StageCosts
from sailor_cloud.planner.even.suffix import least_neighbours

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LIMITS = 56
_COARSE = 8
_SUMS = 48
# Prices of a device of the first pool, as shares of the least way of one microbatch, and those of other pools' devices
# in terms of it; fewer where there are more pools.
_SHARES = tuple(2.0**power for power in range(-8, 4))
_FEWER_SHARES = (1 / 64, 1 / 16, 1 / 4, 1.0)
_RATIOS = {2: tuple(2.0**power for power in range(-3, 4)), 3: (1 / 16, 1 / 4, 1.0, 4.0, 16.0)}
_EXACT = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """What pipelines of a microbatch size take at least.

    limits_s: [limits], ascending; below_s: the limits below them: a pipeline counts at the lowest that it keeps.
    prices_s: [prices, pools], seconds per device, 0 for the exact pools; the first is 0. way_s: [limits, prices], the
    least of the way and the price of its devices. worths: [worths, pools], prices of devices where the way is free;
    least: [limits, worths], the least price of the devices then. update_s: the least of the longest update.
    handed: the most stages, where these hand microbatches round and the way is shared among them; else 0.
    """

    limits_s: Floats
    below_s: Floats
    prices_s: Floats
    way_s: Floats
    worths: Floats
    least: Floats
    update_s: float
    handed: int = 0
    _coarse: list[Relaxed] = field(default_factory=list)

    def rest_s(self, vectors: Ints) -> Floats:
        """Return the least way by devices and limit, shape [vectors, limits], infinite where none keeps the limit."""
        paid, worth = (prices @ vectors.T * (1.0 + _EXACT) for prices in (self.prices_s, self.worths))
        found = np.repeat(self.below_s[:, None], len(vectors), axis=1)
        rest = np.empty_like(found)
        for way, each in zip(self.way_s.T, paid, strict=True):
            np.subtract(way[:, None], each, out=rest)
            np.maximum(found, rest, out=found)
        for least, each in zip(self.least.T, worth, strict=True):
            found[least[:, None] > each] = np.inf
        return found.T

    def priced_s(self, mean: Floats, microbatches: int) -> Floats:
        """Return what plans take at least whose pipelines use so many devices in the mean, by each of the prices.

        At prices some pipeline's devices are worth no more than the mean. mean: [pools].
        """
        return self.roomy_s(self.prices_s @ mean, self.worths @ mean, microbatches)

    def roomy_s(self, paid: Floats, worth: Floats, microbatches: int) -> Floats:
        """Return the same where a pipeline's devices are worth no more than `paid` and `worth` at each of the prices.

        paid: [prices]; worth: [worths].
        """
        below = self.below_s[:, None]
        scarce = np.where(self.least > worth * (1.0 + _EXACT), np.inf, 0.0)
        way = np.maximum(np.hstack([self.way_s - paid * (1.0 + _EXACT), scarce]), below)
        return self._least_s(way, microbatches)

    def _least_s(self, way: Floats, microbatches: int) -> Floats:
        """Return the least seconds of an iteration over all limits; way: [limits, ...]."""
        if microbatches == 1:
            return np.asarray(way.min(axis=0) + self.update_s)
        pace = self.below_s[:, None]
        if self.handed:
            pace = np.maximum(pace, way / self.handed)
        return np.asarray((way + (microbatches - 1) * pace).min(axis=0) + self.update_s)

    def coarse(self) -> Relaxed:
        """Return the same with few limits."""
        if not self._coarse:
            kept = np.arange(_COARSE - 1, len(self.limits_s), _COARSE)
            below = self.below_s[kept - _COARSE + 1]
            way, least = self.way_s[kept], self.least[kept]
            self._coarse.append(
                replace(self, limits_s=self.limits_s[kept], below_s=below, way_s=way, least=least, _coarse=[])
            )
        return self._coarse[0]

    def least_s(self, vectors: Ints, microbatches: int) -> Floats:
        """Return the least seconds of an iteration by devices, gradient sums left out."""
        return self._least_s(self.rest_s(vectors).T, microbatches)


def relax(costs: StageCosts) -> Relaxed:
    """Return the bounds of a microbatch size; memory is that of a last stage, links those of the kinds at a cut."""
    before, after = least_neighbours(costs)
    layers = costs.layers
    compute = costs.compute_s.min(axis=0)
    busy = compute + before[:, :, None] + after[:, None, :]
    compute = np.where(np.isfinite(compute), compute, 0.0)
    busy[:, 1:, -1] += (costs.last_before - 1.0) * before[:, 1:]
    limits = _limits(busy)
    prices, worths = _prices(costs, np.where(np.isfinite(busy), compute, np.inf))
    priced = costs.use @ np.concatenate([prices, worths]).T
    # Whether the way counts.
    paid = np.arange(len(prices) + len(worths)) < len(prices)
    # [cut, kind before it, limit, price]
    rest = np.full((layers + 1, costs.kinds, _LIMITS, len(paid)), np.inf)
    # By what the cut behind counts: what ends the pipeline, and what other stages follow.
    begun = np.empty((2, costs.kinds, _LIMITS, len(paid)))
    every = np.arange(_LIMITS)
    lowest = np.searchsorted(limits, busy)
    for first in range(layers - 1, -1, -1):
        begun[:] = np.inf
        for k in range(costs.kinds):
            spent = compute[k, first, :, None] * paid
            ends = np.flatnonzero(np.isfinite(busy[k, first, :layers]))
            if len(ends):
                room = rest[ends, k]
                room += spent[ends, None]
                room[every < lowest[k, first, ends, None]] = np.inf
                np.add(room.min(axis=0), priced[k], out=begun[1, k])
            if np.isfinite(busy[k, first, layers]):
                begun[0, k, lowest[k, first, layers] :] = spent[layers] + priced[k]
        if first == 0:
            break
        both = enumerate((costs.last_before, 1.0)) if costs.last_before != 1.0 else [(0, 1.0)]
        if costs.last_before == 1.0:
            np.minimum(begun[0], begun[1], out=begun[0])
        for (turn, behind), k in product(list(both), range(costs.kinds)):
            cuts = costs.after_way_s[:, k, first] + behind * costs.before_way_s[:, k, first]
            # Where the way is free, a cut only has to be possible.
            spent = np.where(paid | np.isinf(cuts)[:, None], cuts[:, None], 0.0)
            np.minimum(rest[first], spent[:, None] + begun[turn, k], out=rest[first])
    # Some stage holds the first layer, and some stage the last.
    update = max(float(costs.update_s[:, 0, 1:].min()), float(costs.update_s[:, :-1, -1].min()))
    whole = begun.min(axis=(0, 1))
    return Relaxed(
        limits_s=limits,
        below_s=np.concatenate([limits[:1] * (1.0 - 1e-8), limits[:-1]]),
        prices_s=prices,
        way_s=whole[:, paid],
        worths=worths,
        least=whole[:, ~paid],
        update_s=update,
        handed=costs.max_stages if costs.handed else 0,
    )


def least_sync_s(costs: StageCosts, sync_s: Floats, vectors: Ints) -> Floats:
    """Return what the longest sum of a pipeline takes at least by its number of devices, all pools together.

    sync_s: [kind, first, end]; vectors: [vectors, pools]. Few devices hold many layers each.
    """
    layers = costs.layers
    if len(sync_s) > costs.kinds:
        sync_s = np.minimum(sync_s[: costs.kinds], sync_s[costs.kinds :])
    possible = np.isfinite(costs.compute_s).any(axis=0)
    sums = np.where(possible, sync_s, np.inf)
    limits = np.unique(np.quantile(sums[possible], np.linspace(0.0, 1.0, _SUMS), method="lower"))
    weights = costs.use[:, costs.counted].sum(axis=1).astype(np.float64)
    least = np.full((layers + 1, len(limits)), np.inf)
    least[layers] = 0.0
    for first in range(layers - 1, -1, -1):
        short = sums[:, first, first + 1 :, None] <= limits
        least[first] = np.where(short, least[first + 1 :] + weights[:, None, None], np.inf).min(axis=(0, 1))
    # `least` falls with the limit: at the first one at which the devices suffice, or above the one before it.
    at = np.searchsorted(-least[0], -(vectors[:, costs.counted].sum(axis=1) + 1e-9), side="left")
    # Sums take on no value between two neighbours of the quantiles where all values are among them.
    every = np.unique(sums[possible])
    above = np.concatenate(
        [[every[0]], every[np.minimum(np.searchsorted(every, limits, side="right"), len(every) - 1)]]
    )
    return np.asarray(above[at])


def least_way_s(costs: StageCosts) -> float:
    """Return the least seconds of one microbatch on any devices, links left out."""
    return _least_way_s(costs.compute_s.min(axis=(0, 1)))


def longest_busy_s(costs: StageCosts) -> float:
    """Return what no stage is busy for longer than."""
    compute, before, after = (
        float(part[np.isfinite(part)].max(initial=0.0)) for part in (costs.compute_s, costs.before_s, costs.after_s)
    )
    return compute + before * max(1.0, costs.last_before) + after * max(1.0, float(costs.first_after.max()))


def _limits(busy: Floats) -> Floats:
    """Return limits from the least that some pipeline keeps."""
    layers, least = busy.shape[1] - 1, busy.min(axis=0)
    lowest = np.full(layers + 1, np.inf)
    lowest[layers] = 0.0
    for first in range(layers - 1, -1, -1):
        lowest[first] = np.maximum(least[first, first + 1 :], lowest[first + 1 :]).min()
    highest = float(busy[np.isfinite(busy)].max()) * 1.0001
    # No pipeline keeps to less than `lowest`, so nothing is lost below it.
    return np.geomspace(min(float(lowest[0]), highest) * (1.0 + 1e-9), highest * (1.0 + 1e-6), _LIMITS)


def _prices(costs: StageCosts, compute: Floats) -> tuple[Floats, Floats]:
    """Return prices in seconds per device, and prices in any unit, shape [prices, pools] each."""
    counted = np.flatnonzero(costs.counted)
    pools, least = len(counted), _least_way_s(compute.min(axis=0))
    # Without any pipeline all prices are alike.
    scale = least if np.isfinite(least) else 1.0
    if pools == 1 or pools in _RATIOS:
        ratios = _RATIOS.get(pools, ())
        every = np.array([(1.0, *others) for others in product(ratios, repeat=pools - 1)])
    else:
        every = np.concatenate([np.ones((1, pools)), np.eye(pools)])
    shares = _SHARES if pools == 1 else _FEWER_SHARES
    paid = np.concatenate([np.zeros((1, pools)), *(share * scale * every for share in shares)])
    prices, worths = np.zeros((len(paid), len(costs.counted))), np.zeros((len(every), len(costs.counted)))
    prices[:, counted], worths[:, counted] = paid, every
    return prices, worths


def _least_way_s(compute: Floats) -> float:
    """Return the least sum over stages from the first layer to the last; compute: [first, end]."""
    layers = len(compute) - 1
    least = np.full(layers + 1, np.inf)
    least[layers] = 0.0
    for first in range(layers - 1, -1, -1):
        least[first] = (compute[first, first + 1 :] + least[first + 1 :]).min()
    return float(least[0])
