"""Splits plans by the zones of their nodes, as branches of the proof: one zone, or several, which costs egress.

With nodes in several zones there are two cases. Either every layer is in two zones, or some layer is only in one zone,
its home, and all pipelines pass through home. In the second case, another layer may be only in other zones, so that
every pipeline crosses zones. Otherwise some pipelines stay at home, and the others pay for the egress of their samples
and of their layers' all-reduces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bound.bounds import (
    Resource,
    device_rates,
    device_seconds,
    iteration_bound_s,
    offered,
    spending,
)
from sailor_cloud.planner.bound.programme import linear
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.quotas import quota_arrays
from sailor_cloud.planner.space.space import Space
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]

# The factors by which a bound from work alone is raised at a time: the first while it can, then the second.
_STEPS = 1.05, 1.01
_ROUNDED = 1e-9
# The ranges of samples that cross zones, as parts of the batch.
_PARTS = 0.5, 0.25, 0.125, 0.02, 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """The least cost of pipelines over several zones.

    `sample_usd`: the tensors of one sample over a cut. `layer_usd`: the all-reduce of each layer, shape [layers].
    """

    sample_usd: float
    layer_usd: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Plans whose nodes are distributed over zones in one way.

    `rings_cross`: whether all-reduces leave a zone; None if some may. `every_crosses`: whether every pipeline has a cut
    between zones. `egress_usd`: the least of an iteration. `homes`: zones that sell the same. One of them is home, the
    zone of all pipelines that do not cross. The others follow `crossing` and leave some work to other zones; `samples`:
    the least and the most that they process.
    """

    name: str
    space: Space
    rings_cross: bool | None = None
    every_crosses: bool = False
    egress_usd: float = 0.0
    homes: tuple[str, ...] = ()
    crossing: Crossing | None = None
    samples: tuple[int, int] = (0, 0)

    @property
    def least_pipelines(self) -> int:
        """The fewest pipelines.

        An all-reduce over zones has at least two members, and pipelines that cross need others at home.
        """
        return 2 if self.rings_cross or self.crossing is not None else 1

    @property
    def pools(self) -> list[int]:
        """The pools for pipelines of the pricing problem."""
        return [n for n, pool in enumerate(self.space.pools) if not self.homes or pool.offer.zone in self.homes]

    @property
    def other_pools(self) -> list[int]:
        """The pools outside the first home."""
        return [number for number, pool in enumerate(self.space.pools) if pool.offer.zone != self.homes[0]]

    def work_bound_s(self, target: Target, units: Mapping[str, int], known_s: float) -> float:
        """Return a lower bound on these plans' iterations in seconds, from work alone; stops at `known_s`."""
        seconds = iteration_bound_s(self.space, target, self.egress_usd)
        for step in _STEPS if self.crossing is not None else ():
            while seconds < known_s:
                supply = Supply.of(self, target, units, seconds, seconds * step)
                if supply is not None and supply.most_work() >= self.space.batch:
                    break
                seconds *= step
        return seconds


def placements(space: Space) -> Iterator[Placement]:
    """Yield placements that together contain all plans of a space."""
    zones = sorted({pool.offer.zone for pool in space.pools})
    if len(zones) == 1:
        yield Placement(name="", space=space, rings_cross=False)
        return
    for zone in zones:
        kept = [number for number, pool in enumerate(space.pools) if pool.offer.zone == zone]
        yield Placement(name=f"all in {zone}", space=space.part(kept, zero_stage=space.zero_stage), rings_cross=False)
    crossing = _crossing(space)
    yield Placement(
        name="every all-reduce between zones",
        space=space,
        rings_cross=True,
        egress_usd=float(crossing.layer_usd.sum()),
    )
    usd = crossing.sample_usd * space.batch
    yield Placement(name="every pipeline over several zones", space=space, every_crosses=True, egress_usd=usd)
    for homes in _alike(space, zones):
        most = space.batch
        for part in _PARTS:
            least = int(part * space.batch) + 1
            if least <= most:
                name = f"{least} to {most} samples in pipelines from {' or '.join(homes)} to other zones"
                yield Placement(name=name, space=space, homes=homes, crossing=crossing, samples=(least, most))
                most = least - 1


def _alike(space: Space, zones: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the zones in groups with the same offers, prices and quotas."""
    quotas = quota_arrays(space.candidates)
    sold: dict[str, Counter[tuple[object, ...]]] = {zone: Counter() for zone in zones}
    for number, (pool, rate) in enumerate(zip(space.pools, space.rates, strict=True)):
        offer, row = pool.offer, space.candidates.rows[pool.row]
        kind = (offer.instance_type, offer.accelerator, offer.market, offer.terms)
        sold[offer.zone][*kind, rate, row.devices, *quotas.units[:, number]] += 1
    groups: dict[frozenset[object], tuple[str, ...]] = {}
    for zone, offers in sold.items():
        same = frozenset(offers.items())
        groups[same] = (*groups.get(same, ()), zone)
    return list(groups.values())


def _crossing(space: Space) -> Crossing:
    """Return the least egress of anything that crosses zones."""
    one_of = {pool.offer.zone: number for number, pool in enumerate(space.pools)}
    # An all-reduce over two zones sends its bytes once in each direction; over more zones it sends more.
    both_ways = min(
        space.usd_per_byte(src, dst) + space.usd_per_byte(dst, src) for src, dst in combinations(one_of.values(), 2)
    )
    tables = [
        space.table(pool, tp, 1)
        for pool in {pool.accelerator.name: number for number, pool in enumerate(space.pools)}.values()
        for tp in space.tp_degrees[pool]
    ]
    layers = np.min([np.diff(table.gradient_prefix_bytes) for table in tables], axis=0)
    tied = max(table.gradient_bytes_per_parameter * table.tied_parameters * table.tp for table in tables)
    # A tied weight is at both ends of the model, and reduced once.
    layers[0] = max(0.0, layers[0] - tied)
    if (space.scenario.job.training.sync_every or 1) > 1:
        layers = np.zeros_like(layers)
    inner = min(float(table.boundary_bytes[1:-1].min(initial=np.inf)) for table in tables)
    return Crossing(sample_usd=both_ways * inner if np.isfinite(inner) else np.inf, layer_usd=both_ways * layers)


@dataclass(slots=True)
class Supply:
    """The devices that plans of a placement may have at once, and the samples of pipelines that cross zones.

    The first columns are the devices of each accelerator. With a home, the next columns are busy devices elsewhere,
    idle ones elsewhere, and samples that cross zones. `units`: what a column adds to the units at home, to those for
    the work at home and elsewhere, to those elsewhere, to all, to the devices at home and to all, shape [6, columns].
    Without a home the first four are the same, and the last two. `samples`: to the samples that cross zones.
    """

    units: Floats
    samples: Floats
    rows: Floats
    limits: Floats

    @classmethod
    def of(
        cls, placement: Placement, target: Target, units: Mapping[str, int], least_s: float, most_s: float
    ) -> Supply | None:
        """Return the supply of plans with iterations from `least_s` to `most_s`; None if all cost too much."""
        space, egress_usd = placement.space, placement.egress_usd
        rates = device_rates(space)
        each = np.array([float(units[name]) for name in sorted(rates)])
        rate = np.array([rates[name] for name in sorted(rates)])
        money = spending(space, target, least_s, most_s)
        rows, limits = _taken(offered(space), sorted(rates))
        money_limits = [limit.usd_per_hour(egress_usd) for limit in money]
        if min(money_limits, default=0.0) < 0.0:
            return None
        if placement.crossing is None:
            rows, limits = np.vstack([rows, *[rate] * len(money)]), np.concatenate([limits, money_limits])
            return cls(np.vstack([*[each] * 4, *[np.ones(len(each))] * 2]), np.zeros(len(each)), rows, limits)
        here = [number for number, pool in enumerate(space.pools) if pool.offer.zone == placement.homes[0]]
        home = space.part(here, zero_stage=space.zero_stage)
        near, near_limits = _taken(offered(home), sorted(rates))
        away = space.part(placement.other_pools, zero_stage=space.zero_stage)
        far, far_limits = _taken(offered(away), sorted(rates))
        absent = np.diag([float(name not in device_rates(home)) for name in sorted(rates)])
        work = device_seconds(space)
        # The least units that a sample of each layer takes.
        layer = np.min([units[name] * work[name] for name in sorted(rates)], axis=0) / most_s
        paid = zip(placement.crossing.layer_usd, layer, strict=True)
        per_unit_usd = min((usd / taken for usd, taken in paid if taken > 0.0), default=0.0) / placement.samples[1]
        none, column, zero = np.zeros((len(each), len(each))), np.zeros((len(each), 1)), np.zeros(len(each))
        per_usd = [limit.iterations * SECONDS_PER_HOUR / limit.paid_s for limit in money]
        missing = np.diag([float(name not in device_rates(away)) for name in sorted(rates)])
        every_row = [
            np.hstack([rows, rows, rows, np.zeros((len(rows), 1))]),
            np.hstack([near, np.zeros((len(near), 2 * len(each) + 1))]),
            np.hstack([np.zeros((len(far), len(each))), far, far, np.zeros((len(far), 1))]),
            np.hstack([absent, none, none, column]),
            np.hstack([none, missing, missing, column]),
            # Other zones do at most all work of what crosses.
            np.concatenate([zero, each, zero, [-layer.sum()]]),
            np.concatenate([zero, zero, zero, [1.0]]),
            np.concatenate([zero, zero, zero, [-1.0]]),
            *(
                np.concatenate([rate, rate + usd * per_unit_usd * each, rate, [usd * placement.crossing.sample_usd]])
                for usd in per_usd
            ),
        ]
        return cls(
            np.array(
                [
                    [*each, *zero, *zero, 0.0],
                    [*each, *each, *zero, -layer.sum()],
                    [*zero, *each, *each, 0.0],
                    [*each, *each, *each, 0.0],
                    [*(each > 0.0), *zero, *zero, 0.0],
                    [*(each > 0.0), *(each > 0.0), *(each > 0.0), 0.0],
                ]
            ),
            np.concatenate([zero, zero, zero, [1.0]]),
            np.vstack(every_row),
            np.concatenate(
                [
                    limits,
                    near_limits,
                    far_limits,
                    zero,
                    zero,
                    [0.0, placement.samples[1], -placement.samples[0]],
                    money_limits,
                ]
            ),
        )

    def at_home(self) -> int:
        """Return the most units of pipelines at home."""
        return int(self._most(self.units[0]) * (1.0 + _ROUNDED))

    def at_all(self, crossing: int = 0) -> int:
        """Return the most units of all pipelines, if at least `crossing` samples cross zones; 0 if these cost too much.

        What a sample costs can't be paid for devices.
        """
        return int(self._most(self.units[3], crossing) * (1.0 + _ROUNDED))

    def most(self, row_prices: Floats, sample: float) -> float:
        """Return the largest value of the supply.

        `row_prices`: of a unit of each row of `units`, in samples. `sample`: of a sample that crosses zones.
        """
        return self._most(row_prices @ self.units + sample * self.samples)

    def most_work(self) -> float:
        """Return the samples that devices without idle time process if some samples cross zones."""
        work = self.units[1]
        return self._most(np.append(work[:-1], 0.0)) / -float(work[-1])

    def _most(self, weights: Floats, crossing: int = 0) -> float:
        """Return the largest value, by prices of the rows that cover each column; 0 if too many samples cross zones."""
        rows, limits = self.rows, self.limits
        if crossing:
            rows, limits = np.vstack([rows, -self.samples]), np.append(limits, -float(crossing))
        solved = linear(-weights, rows, limits)
        if solved is None:
            return 0.0
        # Rounding may leave a column uncovered by the prices; the rest counts for the largest possible amount.
        missing = np.maximum(0.0, weights - solved.prices @ rows)
        least = np.where(rows > 0.0, limits[:, None] / np.where(rows > 0.0, rows, 1.0), np.inf)
        alone = least[(rows >= 0.0).all(axis=1)].min(axis=0)
        return float(solved.prices @ limits + missing @ np.where(missing > 0.0, alone, 0.0))


def _taken(resources: Sequence[Resource], names: Sequence[str]) -> tuple[Floats, Floats]:
    """Return how much of each resource a device of each accelerator takes, and the limits."""
    rows = np.array([[each.each.get(name, 0.0) for name in names] for each in resources])
    return rows, np.array([each.limit for each in resources])
