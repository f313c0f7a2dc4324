"""What plans are worth by their devices alone, as lines over the seconds of an iteration."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.offer import Market
from sailor_cloud.planner.bounds import least_fixed_s
from sailor_cloud.planner.even.costs import Worth
from sailor_cloud.planner.even.tables import Tables
from sailor_cloud.planner.goals import TIE, Figure, Target
from sailor_cloud.simulator import preemptions_per_hour, startup_s
from sailor_cloud.simulator.money import lost_fraction
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_OF_TIME = frozenset({Figure.ITERATION_S, Figure.DURATION_S})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Choice:
    """One market per accelerator: USD and preemptions per hour of a device of each pool, the least of any node."""

    usd_per_hour: Floats
    preemptions_per_hour: Floats


@dataclass(frozen=True, slots=True)
class _Line:
    slope: Floats
    offset: Floats


class Prices:
    """Turns devices and seconds into figures that no plan with so many devices undercuts.

    Devices cost what the cheapest node of their accelerator costs per device; idle devices are left out, and so is
    traffic but for what `egress_usd` says.
    """

    def __init__(self, tables: Tables, target: Target) -> None:
        self.space, self.target = tables.space, target
        self.steps = self.space.scenario.job.training.steps
        self.max_nodes = self.space.scenario.job.constraints.max_nodes
        providers = sorted({pool.offer.provider for pool in self.space.pools})
        self.restart_s = min(startup_s(provider) for provider in providers)
        self.fixed_s = least_fixed_s(self.space)
        self.counted = np.array([area is None for _, area in tables.pools])
        names = [name for name, area in tables.pools if area is None]
        self.node_share = self._spread(
            [min(1.0 / pool.devices for pool in self.space.pools if pool.accelerator.name == name) for name in names]
        )
        there = [
            sorted({pool.offer.market for pool in self.space.pools if pool.accelerator.name == name}) for name in names
        ]
        self.choices = [self._choice(names, markets) for markets in product(*there)]

    @property
    def timed(self) -> bool:
        """Whether time alone is minimised, so that more devices are only limited."""
        return self.target.goal in _OF_TIME and not (self.target.goal is Figure.DURATION_S and self._preempted)

    @property
    def rising(self) -> bool:
        """Whether money and nodes play no part."""
        limited = {limit.figure for limit in self.target.limits}
        allowed = {Figure.ITERATION_S} if self._preempted else _OF_TIME
        return self.timed and limited <= allowed and self.max_nodes is None

    @property
    def least_rents(self) -> Floats:
        """USD per hour of a device of each accelerator, in the cheapest market."""
        return np.asarray(np.min([choice.usd_per_hour for choice in self.choices], axis=0)[self.counted])

    def worth(self, replicas: int, use: Ints) -> Worth:
        """Return the worth of vectors of devices per replica, shape [vectors, pools]."""
        devices = use * replicas
        nodes = np.ceil(devices * self.node_share - 1e-9).sum(axis=1)
        egress = self.egress_usd(replicas)
        return self._worth([self._lines(choice, devices, nodes, egress) for choice in self.choices], nodes)

    def egress_usd(self, replicas: int) -> float:
        """Return the least USD of traffic per iteration; so many replicas may stand for more."""
        return 0.0

    def worth_priced(self, replicas: int, use: Ints, prices: Ints, *, times: float | None = None) -> Worth:
        """Return the least worth of any devices of a replica that are worth so much at whole prices.

        use: [vectors]; prices: by accelerator, the pools that count all of its devices. times: how many times over the
        plan has them at least; by default once for each replica.
        """
        least = _Choice(
            usd_per_hour=np.min(
                [self._per_price(choice.usd_per_hour, prices) for choice in self.choices], keepdims=True
            ),
            preemptions_per_hour=np.min(
                [self._per_price(choice.preemptions_per_hour, prices) for choice in self.choices], keepdims=True
            ),
        )
        devices = (use[:, None] * (replicas if times is None else times)).astype(np.float64)
        nodes = np.ceil(devices[:, 0] * self._per_price(self.node_share, prices) - 1e-9)
        return self._worth([self._lines(least, devices, nodes, self.egress_usd(replicas))], nodes)

    def _per_price(self, values: Floats, prices: Ints) -> float:
        return float((values[self.counted] / prices).min())

    def _worth(self, lines: list[dict[Figure, _Line]], nodes: Floats) -> Worth:
        longest = np.max([self._longest_s(each, len(nodes)) for each in lines], axis=0)
        if self.max_nodes is not None:
            longest = np.where(nodes <= self.max_nodes, longest, -1.0)
        goals = [each[self.target.goal] for each in lines]
        return Worth(
            slope=np.min([goal.slope for goal in goals], axis=0),
            offset=np.min([goal.offset for goal in goals], axis=0),
            longest_s=longest,
        )

    @property
    def _preempted(self) -> bool:
        return any(choice.preemptions_per_hour.any() for choice in self.choices)

    def _choice(self, names: list[str], markets: tuple[Market, ...]) -> _Choice:
        usd, lost = [], []
        for name, market in zip(names, markets, strict=True):
            nodes = [
                (
                    rate.expected / pool.devices,
                    preemptions_per_hour(pool.offer, self.space.scenario.catalog) / pool.devices,
                )
                for pool, rate in zip(self.space.pools, self.space.rates, strict=True)
                if pool.accelerator.name == name and pool.offer.market is market
            ]
            usd.append(min(each for each, _ in nodes))
            lost.append(min(each for _, each in nodes))
        return _Choice(usd_per_hour=self._spread(usd), preemptions_per_hour=self._spread(lost))

    def _spread(self, values: list[float]) -> Floats:
        """Return values of the pools that count all devices of an accelerator, 0 for the pools of regions."""
        found = np.zeros(len(self.counted))
        found[self.counted] = values
        return found

    def _longest_s(self, lines: dict[Figure, _Line], count: int) -> Floats:
        longest = np.full(count, np.inf)
        for limit in self.target.limits:
            line = lines[limit.figure]
            room = limit.at_most * (1.0 + TIE) - line.offset
            with np.errstate(divide="ignore", invalid="ignore"):
                most = np.where(line.slope > 0, room / line.slope, np.where(room >= 0, np.inf, -1.0))
            longest = np.minimum(longest, most)
        return longest

    def _lines(self, choice: _Choice, devices: Ints | Floats, nodes: Floats, egress_usd: float) -> dict[Figure, _Line]:
        """Return each figure as a line over the seconds of an iteration; devices: [vectors, pools of the choice]."""
        one, nothing = np.ones(len(devices)), np.zeros(len(devices))
        usd_per_hour = devices @ choice.usd_per_hour
        lost = lost_fraction(
            devices @ choice.preemptions_per_hour,
            interval_s=self.space.scenario.job.checkpoint.every,
            checkpoint_s=0.0,
            restart_s=self.restart_s,
        )
        per_s = usd_per_hour / SECONDS_PER_HOUR
        duration = (self.steps or 1) * (one + lost)
        return {
            Figure.ITERATION_S: _Line(one, nothing),
            Figure.DURATION_S: _Line(duration, self.fixed_s * one),
            Figure.TOTAL_USD: _Line(duration * per_s, self.fixed_s * per_s + (self.steps or 1) * egress_usd),
            Figure.USD_PER_ITERATION: _Line(per_s, nothing + egress_usd),
            Figure.USD_PER_HOUR: _Line(nothing, usd_per_hour),
            Figure.NODES: _Line(nothing, nodes),
        }
