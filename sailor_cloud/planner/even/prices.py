"""Whole prices of devices, and what plans cost at least by what one of their pipelines is worth at them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Prices of a device, in whole numbers: all of these for two pools, some for more.
_HIGHEST = 12
_PAIR = 2
_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
_FEW_POOLS = 3


def least_rent(worth: Floats, prices: Ints, rents: Floats, devices: Ints) -> Floats:
    """Return what plans cost at least whose devices are together worth so much at some prices.

    A plan's devices cost their rents. At a rate for a unit of worth they cost that worth, less what pools of which the
    rate makes more than their rent are overrated by, which are no more devices than there are. worth: [...]; prices,
    rents, devices: [pools].
    """
    rates = rents / prices
    over = np.maximum(rates[:, None] * prices - rents, 0.0) @ devices
    return np.asarray((worth[..., None] * rates - over).max(axis=-1))


def whole_prices(values: Floats) -> Ints:
    """Return whole prices in about the same proportions."""
    every = price_vectors(len(values))
    return np.asarray(every[nearest(every, values)])


def nearest(every: Ints, price: Floats) -> int:
    """Return the whole prices in about the same proportions."""
    logs = np.log(every / every.sum(axis=1, keepdims=True))
    wanted = np.log(price / price.sum())
    return int(((logs - wanted) ** 2).sum(axis=1).argmin())


def amidst(every: Ints) -> Ints:
    """Return those of some prices whose proportions are about the mean."""
    shares = every / every.sum(axis=1, keepdims=True)
    return np.asarray(every[nearest(every, np.exp(np.log(shares).mean(axis=0)))])


@cache
def price_vectors(pools: int) -> Ints:
    """Return whole prices without a common divisor, shape [vectors, pools]."""
    return np.array(sorted(_vectors(pools)), dtype=np.int64)


def _vectors(pools: int) -> Iterator[tuple[int, ...]]:
    if pools == 1:
        yield (1,)
        return
    steps: Sequence[int] = range(1, _HIGHEST + 1) if pools == _PAIR else _STEPS
    if pools > _FEW_POOLS:
        # One pool dearer or cheaper than the others.
        yield (1,) * pools
        for pool, price in product(range(pools), _STEPS[1:]):
            yield tuple(price if pool == each else 1 for each in range(pools))
            yield tuple(1 if pool == each else price for each in range(pools))
        return
    for vector in product(steps, repeat=pools):
        if math.gcd(*vector) == 1:
            yield vector
