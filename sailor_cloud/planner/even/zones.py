"""Even plans by how they lie in zones, where traffic between zones costs money and money is limited.

A plan lies in one zone; or all of its rings or all of its pipelines are of several zones, and it pays for that; or some
layer's ring and some pipeline stay in one zone, its home. In the last case every other pipeline stands at home but for
stages whose rings cross, which pay for both. Such pipelines are few, or have few layers elsewhere; since they, too,
have to be fast enough with what they have at home, the others get little more than their share of its devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import StageCosts, Worth
from sailor_cloud.planner.even.differing_space import DifferingSpace
from sailor_cloud.planner.even.raising import Sharing
from sailor_cloud.planner.even.space import EvenSpace, every_table
from sailor_cloud.planner.even.tables import Tables
from sailor_cloud.planner.even.traffic import Traffic
from sailor_cloud.planner.even.worth import Prices
from sailor_cloud.planner.goals import TIE, Figure, Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Space
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(slots=True)
class Anywhere(DifferingSpace):
    """All plans, or those that pay for traffic everywhere; see raising.Sharing.

    within_s: plans that take longer are not of interest.
    """

    within_s: float = math.inf
    _known: dict[tuple[int, int | None], StageCosts | None] = field(default_factory=dict)

    def costs(self, size: int, replicas: int | None) -> StageCosts | None:
        if (size, replicas) not in self._known:
            self._known[size, replicas] = DifferingSpace.costs(self, size, replicas)
        return self._known[size, replicas]

    def speeds(self, size: int) -> Floats:
        """Return the samples per second of a device of each pool that computes all the time."""
        tables, counted = self.even.tables, self.even.prices.counted
        use = tables.use[:, counted]
        spent = np.where(use > 0, use * tables.layers_s(size).sum(axis=1)[:, None], np.inf).min(axis=0)
        return np.asarray(size / spent)

    def worths(self, size: int, replicas: int, prices: Floats) -> Floats:
        return np.asarray(prices @ self.devices / self.times_over(size, replicas))

    def worth_priced(self, size: int, replicas: int, use: Ints, prices: Ints) -> Worth:
        return self.even.prices.worth_priced(replicas, use[:, 0], prices, times=self.times_over(size, replicas))

    def times_over(self, size: int, replicas: int) -> float:
        # Sharers of optimizer state would have to be counted by the plan's own replicas.
        return float(replicas) if self.even.tables.space.zero_stage else times_over(self.batch // size, replicas)


def times_over(shares: int, replicas: int) -> float:
    """Return how many times over a plan of so many microbatches has what one of its pipelines has, at any prices.

    replicas: the fewest that leave some pipeline as few microbatches as the plan's. Pipelines have so many or one more,
    and one of all has no more for each of its microbatches than all have together. Where that is one of those that have
    more, it counts with plans whose pipelines have so many at least, if there are such plans.
    """
    fewest = shares // replicas
    more = fewest + 1
    alone = fewest * replicas == shares
    return shares / fewest if alone or (more <= shares and shares // (shares // more) == more) else float(replicas)


class Paying(Prices):
    """Prices of plans whose rings all cross zones, or whose pipelines all do."""

    def __init__(self, tables: Tables, target: Target, traffic: Traffic) -> None:
        super().__init__(tables, target)
        self.traffic = traffic

    def egress_usd(self, replicas: int) -> float:
        return self.traffic.everywhere_usd(replicas)


@dataclass(slots=True)
class AtHome(Anywhere):
    """Pipelines of one zone, in plans all of whose pipelines stand there but for stages of a few.

    traffic: what is paid for stages elsewhere, None where there are none.
    """

    traffic: Traffic | None = None
    _work: dict[int, Floats] = field(default_factory=dict)
    _room: dict[int, float] = field(default_factory=dict)

    def worths(self, size: int, replicas: int, prices: Floats) -> Floats:
        most = prices @ self.devices / replicas
        if self.traffic is None:
            return np.asarray(most)
        found = most
        for number in self._numbers(size, replicas):
            away, room = self._away(size, number)
            if len(away):
                found = np.maximum(found, self._share(size, number, away, room, prices))
        return np.asarray(found)

    def worth_priced(self, size: int, replicas: int, use: Ints, prices: Ints) -> Worth:
        """Return the worth of the pipelines that stand at home; what others cost is left out."""
        fewest = [number - max([0, *self._away(size, number)[0]]) for number in self._numbers(size, replicas)]
        return self.even.prices.worth_priced(min(fewest, default=replicas), use[:, 0], prices)

    def _numbers(self, size: int, replicas: int) -> range:
        """Return the numbers of replicas that one of them stands for; each has a device at home."""
        shares = self.batch // size
        return range(replicas, min(shares // (shares // replicas), int(self.devices.sum())) + 1)

    def _away(self, size: int, replicas: int) -> tuple[Ints, Floats]:
        """Return how many pipelines may have stages elsewhere, and what is left for their rings once cuts are paid."""
        if self.traffic is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        shares, away = self.batch // size, np.arange(1, replicas, dtype=np.int64)
        # Those of fewest microbatches first.
        fewest = shares // replicas
        microbatches = away * fewest + np.maximum(away - (replicas * (fewest + 1) - shares), 0)
        room = self._least_room(size) - microbatches * size * self.traffic.usd_per_sample
        able = room >= self.traffic.rings_usd(replicas, float(self.traffic.layer_bytes.min())) * (1.0 - 1e-9)
        return away[able], np.asarray(room[able], dtype=np.float64)

    def _share(self, size: int, replicas: int, away: Ints, room: Floats, prices: Floats) -> Floats:
        """Return what one of the pipelines at home is worth at most, if so many others have stages elsewhere: [prices].

        Those others keep all layers at home but for some whose rings they pay for.
        """
        assert self.traffic is not None
        microbatches = self.batch // size // replicas
        work = self._layers_s(size, prices)
        paid = room / self.traffic.rings_usd(replicas, 1.0)
        rest = work.sum(axis=1)[:, None] - _most_in(work, self.traffic.layer_bytes, paid)
        way = float(self._seconds(size).min(axis=0).sum())
        pace = min(self.within_s / microbatches, max(self.within_s - way, 0.0) / max(microbatches - 1, 1e-9))
        whole = (prices @ self.devices)[:, None]
        kept = np.minimum(np.maximum(rest, 0.0) / max(pace, 1e-12), whole / replicas)
        # At least a device.
        kept = np.maximum(kept, prices.min(axis=1)[:, None])
        return np.asarray(((whole - away * kept) / (replicas - away)).max(axis=1))

    def _seconds(self, size: int) -> Floats:
        """Return the least seconds of a microbatch in each layer, shape [group, layer]."""
        if size not in self._work:
            self._work[size] = self.even.tables.layers_s(size)
        return self._work[size]

    def _layers_s(self, size: int, prices: Floats) -> Floats:
        """Return the least price of a microbatch's device-seconds in each layer; prices: [prices, pools]."""
        use = self.even.tables.use[:, self.even.prices.counted]
        return np.asarray(((prices @ use.T)[:, :, None] * self._seconds(size)).min(axis=1))

    def _least_room(self, size: int) -> float:
        """Return what is left for traffic per iteration of any plan that keeps its limits."""
        if size not in self._room:
            rents = self.even.prices.least_rents / SECONDS_PER_HOUR
            usd = self.batch // size * float(self._layers_s(size, rents[None]).sum())
            self._room[size] = traffic_room(self.even.target, self.even.prices.steps) - usd
        return self._room[size]


def sharing(space: Space, kinds: Kinds, target: Target) -> list[Sharing]:
    """Return spaces that together hold all even plans; none where something else than time is minimised."""
    traffic, found = Traffic.of(space, kinds), list[Sharing]()
    for tables in every_table(space, kinds):
        even = EvenSpace(tables, target)
        if not even.timed:
            return []
        if traffic is not None and math.isfinite(traffic_room(target, even.prices.steps)):
            even.prices = Paying(tables, target, traffic)
            home = EvenSpace(Tables(space, kinds, lengths=tables.lengths, within=True), target)
            found.append(AtHome(home, traffic=traffic))
        found.append(Anywhere(even))
    return found


def traffic_room(target: Target, steps: int | None) -> float:
    """Return the most USD per iteration that limits leave to devices and traffic, infinite where none does."""
    room = math.inf
    for limit in target.limits:
        if limit.figure is Figure.USD_PER_ITERATION:
            room = min(room, limit.at_most * (1.0 + TIE))
        if limit.figure is Figure.TOTAL_USD and steps:
            room = min(room, limit.at_most * (1.0 + TIE) / steps)
    return room


def _most_in(work: Floats, nbytes: Floats, most: Floats) -> Floats:
    """Return the most work in layers of at most so many bytes, parts of layers allowed; shape [prices, most]."""
    rates = work / np.maximum(nbytes, 1e-12)
    order = np.argsort(-rates, axis=1, kind="stable")
    size, rate = nbytes[order], np.take_along_axis(rates, order, axis=1)
    before = np.cumsum(size, axis=1) - size
    taken = np.clip(most[None, :, None] - before[:, None], 0.0, size[:, None])
    return np.asarray((taken * rate[:, None]).sum(axis=2))
