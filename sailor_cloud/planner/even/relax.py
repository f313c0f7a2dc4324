"""Bounds by microbatch size alone: the fewest devices of a pipeline whose stages are busy no longer than a limit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import StageCosts
from sailor_cloud.planner.even.suffix import least_neighbours

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_LIMITS = 96
# Prices of a pool's devices in terms of the first pool's; fewer where there are more pools.
_PRICES = {1: 1, 2: 13, 3: 7, 4: 4}
_FEWEST_PRICES = 3
_SPREAD = 16.0
_SUMS = 48


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxed:
    """limits_s: [limits], ascending; prices: [prices, pools]; least: [limits, prices], the least price of the devices
    of a pipeline none of whose stages is busy for longer. way_s: the least way of one microbatch. update_s: the least
    of the longest update."""

    limits_s: Floats
    prices: Floats
    least: Floats
    way_s: float
    update_s: float

    def bottleneck_s(self, vectors: Ints) -> Floats:
        """Return what the busiest stage of a pipeline with no more devices takes at least; infinite where none fits."""
        first = np.zeros(len(vectors), dtype=np.int64)
        for column, price in zip(self.least.T, self.prices, strict=True):
            # `column` falls with the limit: the first limit at which the devices are worth enough.
            worth = vectors @ price * (1.0 + 1e-9)
            first = np.maximum(first, np.searchsorted(-column, -worth, side="left"))
        below = np.concatenate([[0.0], self.limits_s[:-1], [np.inf]])
        return np.asarray(below[first])


def relax(costs: StageCosts) -> Relaxed:
    """Return the bounds of a microbatch size; links are the cheapest, memory is that of a last stage."""
    layers = costs.layers
    before, after = least_neighbours(costs)
    compute = costs.compute_s.min(axis=0)
    busy = compute + before[:, :, None] + after[:, None, :]
    finite = busy[np.isfinite(busy)]
    limits = np.geomspace(finite[finite > 0].min(), finite.max() * 1.0001, _LIMITS)
    prices = np.zeros((len(some := _prices(int(costs.counted.sum()))), len(costs.counted)))
    prices[:, costs.counted] = some
    priced = costs.use @ prices.T
    least = np.full((layers + 1, _LIMITS, len(prices)), np.inf)
    least[layers] = 0.0
    way = np.full(layers + 1, np.inf)
    way[layers] = 0.0
    for first in range(layers - 1, -1, -1):
        ends = np.arange(first + 1, layers + 1)
        way[first] = (compute[:, first, ends] + way[ends]).min()
        for k in range(costs.kinds):
            fits = busy[k, first, ends, None] <= limits
            some = fits[:, -1]
            if not some.any():
                continue
            rest = np.where(fits[some][:, :, None], least[ends[some]], np.inf).min(axis=0)
            np.minimum(least[first], rest + priced[k], out=least[first])
    return Relaxed(
        limits_s=limits, prices=prices, least=least[0], way_s=float(way[0]), update_s=_least_update(costs.update_s)
    )


def least_sync_s(costs: StageCosts, sync_s: Floats, vectors: Ints) -> Floats:
    """Return what the longest sum of a pipeline takes at least by its number of devices, all pools together.

    sync_s: [kind, first, end]; vectors: [vectors, pools]. Few devices hold many layers each.
    """
    layers = costs.layers
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


def _least_update(update_s: Floats) -> float:
    """Some stage holds the first layer, and some stage the last."""
    return float(max(update_s[:, 0, 1:].min(), update_s[:, :-1, -1].min()))


def _prices(pools: int) -> Floats:
    count = _PRICES.get(pools, _FEWEST_PRICES)
    if pools > len(_PRICES) + 1:
        # One pool dearer or cheaper than the others at a time.
        rows = [np.ones(pools)]
        for pool in range(pools):
            for factor in (1.0 / _SPREAD, _SPREAD):
                rows.append(np.where(np.arange(pools) == pool, factor, 1.0))
        return np.array(rows)
    steps = np.geomspace(1.0 / _SPREAD, _SPREAD, count) if count > 1 else np.ones(1)
    return np.array([[1.0, *rest] for rest in product(steps, repeat=pools - 1)])
