"""What plans cost of which some stage stands in one area alone: rent and traffic, by how many pipelines cross areas."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations_with_replacement

import numpy as np
from numpy.typing import NDArray
from sailor_formulas import Artifact

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Intervals of how many pipelines cross, and of the share of the parameters that stages elsewhere hold.
_COUNTS, _SHARES = 48, 20
_DEGREES = (1, 2, 4)


@dataclass(slots=True, kw_only=True)
class Away:
    """Plans of so many pipelines at some prices of devices, all worth a least amount at them.

    The area with the stage that stands alone is home: all pipelines that don't cross stand there, and where there is
    one, stages that others have elsewhere sum across. there: devices by area and GPU, shape [areas, gpus]; rents: USD
    per hour by GPU; ring_usd: all sums across; pipeline_usd: what a pipeline that crosses sends; within_s: seconds of
    an iteration at most; sum_s_per_byte: what a sum takes at least for each byte of a device.
    """

    artifact: Artifact
    gpus: tuple[str, ...]
    size: int
    replicas: int
    prices: Ints
    rents: Floats
    there: Ints
    ring_usd: float
    pipeline_usd: float
    within_s: float
    sum_s_per_byte: float
    _work: Floats = field(init=False)

    def __post_init__(self) -> None:
        self._work = self._least_work()

    def longest_s(self, worth: Floats, budget: float) -> Floats:
        """Return the most seconds within a budget, negative where there are none. worth: that of each pipeline."""
        whole, every = worth * self.replicas, self.there.sum(axis=0)
        alone = self._rate(whole, np.zeros_like(whole), np.zeros_like(every), every)
        longest = (budget - self.replicas * self.pipeline_usd) / np.maximum(alone, 1e-9)
        if self.replicas == 1:
            return longest
        most, room, moved = self._crossing(budget)
        work = float(self._work.sum())
        home = np.maximum(worth, work) * (self.replicas - most) + most * work - moved
        for here in self.there:
            rate = self._rate(whole, home, here, every - here)
            possible = (home <= self.prices @ here * (1.0 + 1e-9)) & (room >= 0)
            seconds = np.where(possible, room / np.maximum(rate, 1e-9), -1.0)
            longest = np.maximum(longest, seconds.max(axis=0))
        return longest

    def _crossing(self, budget: float) -> tuple[Ints, Floats, Floats]:
        """Return the most pipelines that cross, what is left for rent, and the worth of work elsewhere at most.

        One entry for each interval of how many cross and of the share of parameters elsewhere; shape [intervals, 1].
        """
        edges = np.unique(np.linspace(1, self.replicas, min(_COUNTS, self.replicas - 1) + 1).astype(np.int64))
        shares = np.linspace(0.0, 1.0, _SHARES + 1)
        movable = self._movable(shares[1:])
        fewest, most = edges[:-1, None], edges[1:, None] - 1
        room = budget - fewest * self.pipeline_usd - shares[:-1] * self.ring_usd
        moved = most * movable
        return np.repeat(most, len(movable), axis=1).reshape(-1, 1), room.reshape(-1, 1), moved.reshape(-1, 1)

    def _rate(self, whole: Floats, home: Floats, here: Ints, elsewhere: Ints) -> Floats:
        """Return USD per second of devices worth `whole` together, of those at home `home`, at least.

        By any rates for a unit of worth, of all and at home, less what devices are overrated by.
        """
        rates = [0.0, *sorted(self.rents / self.prices)]
        best = np.zeros(np.broadcast(whole, home).shape)
        for low, high in combinations_with_replacement(rates, 2):
            over = np.maximum(high * self.prices - self.rents, 0.0) @ here
            over += np.maximum(low * self.prices - self.rents, 0.0) @ elsewhere
            best = np.maximum(best, low * whole + (high - low) * home - over)
        return np.asarray(best / 3600.0)

    def _movable(self, shares: Floats) -> Floats:
        """Return the most worth of a pipeline's layers with such shares of the parameters, parts of layers allowed."""
        weights = self.artifact.layer_sizes(1, "params_floats")
        order = np.argsort(-self._work / np.maximum(weights, 1e-9))
        held, work = (np.concatenate([[0.0], np.cumsum(each[order])]) for each in (weights, self._work))
        return np.interp(shares * held[-1], held, work)

    def _least_work(self) -> Floats:
        """Return the least worth of devices that get through each layer in time.

        A stage's seconds for all microbatches, of all other layers for one, and of its gradients' sum are no more than
        those of the iteration. All are counted by layer: of others those on the fastest devices, of sums the least for
        a byte.
        """
        microbatches = -(-self.artifact.batch // (self.size * self.replicas))
        summed = self.artifact.layer_sizes(1, "params_floats") * 4.0 * self.sum_s_per_byte
        known = [
            (price, tp, self.artifact.layer_times(gpu, self.size, tp)[:, :2].sum(axis=1))
            for gpu, price in zip(self.gpus, self.prices, strict=True)
            for tp in _DEGREES
            if self.artifact.known(gpu, self.size, tp)
        ]
        fastest = np.min([spent for _, _, spent in known], axis=0)
        worth = [price * (tp * (microbatches * spent - fastest) + summed) for price, tp, spent in known]
        return np.asarray(np.min(worth, axis=0) / max(self.within_s - float(fastest.sum()), 1e-9))
