"""When to wait for spot capacity and when to pay for on-demand, so that a job meets its deadline at the least cost.

The longer capacity has been there, the longer it is expected to stay: its hazard falls as 1 / age (a Lomax
distribution), as in public availability traces, where many spells are short and a few last for days. Dynamic
programming over time left, work left and that age gives the expected cost of each choice. One step is one change-over:
the time from an order until training goes on. On-demand capacity is taken to be there whenever it is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

# Ages of capacity in change-overs: classes begin here, and the last has no end.
AGES = (0.0, 1.0, 2.0, 5.0, 12.0, 36.0)
# The class in which capacity of another zone is found when one is lost.
OTHER_AGE = 3
# Capacity of age a (in change-overs) is lost at a rate of tail / (a + START_AGE).
START_AGE = 1.0
# A change-over is so many ticks long; the trace is read once a tick.
TICKS_PER_CHANGE_OVER = 4
IDLE, ON_DEMAND = -2, -1
# What our policy assumes before it has seen anything: how fast the hazard of a loss falls with age, how long a spell
# without capacity lasts, and how many spells that assumption weighs. Chosen on the traces of one date
# (aws-02-15-2023); benchmarks/launch/spot_policies.py reports the other dates apart.
TAIL_ASSUMED, SPELL_WITHOUT_S, SPELLS_ASSUMED = 0.5, 7200.0, 1.0
_RATE_STEP = 1.25
_TICK = 1.0 / TICKS_PER_CHANGE_OVER
_Table = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotMarket:
    """What is known of the market, per change-over time.

    `tail`: how fast the hazard of a loss falls with age; `elsewhere`: the chance that another zone has capacity when
    one is lost; `appear`: the chance that capacity comes back where no zone has any.
    """

    tail: float
    elsewhere: float
    appear: float


def hazard(tail: float, age: float) -> float:
    """Return the chance that capacity of an age is lost within one change-over time."""
    return min(0.9, 1.0 - math.pow((age + START_AGE) / (age + START_AGE + 1.0), tail))


def age_class(age: float) -> int:
    """Return the class of an age in change-overs."""
    return max(index for index, begin in enumerate(AGES) if age >= begin)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedCosts:
    """Expected USD until the work is done, by [age class, time left, work left], times in change-overs.

    Where no zone has capacity there is no age.
    """

    idle_without: _Table
    on_demand_without: _Table
    idle: _Table
    on_demand: _Table
    spot: _Table


def between(table: _Table, time_left: float, work_left: float) -> float:
    """Return the value of a table [time left, work left] between its points."""
    row = min(max(time_left, 0.0), table.shape[0] - 1.001)
    column = min(max(work_left, 0.0), table.shape[1] - 1.001)
    i, j = int(row), int(column)
    a, b = row - i, column - j
    upper = (1 - b) * table[i, j] + b * table[i, j + 1]
    lower = (1 - b) * table[i + 1, j] + b * table[i + 1, j + 1]
    return float((1 - a) * upper + a * lower)


@lru_cache(maxsize=256)
def expected_costs(
    market: SpotMarket, spot_usd: float, on_demand_usd: float, time_steps: int, work_steps: int
) -> ExpectedCosts:
    """Return the expected costs of the best choices; prices are USD per change-over time.

    Waiting and spot are choices only while on-demand could still finish in time afterwards.
    """
    classes = len(AGES)
    work = np.arange(work_steps + 1, dtype=float)
    middles = [(a + b) / 2 for a, b in zip(AGES, (*AGES[1:], 4 * AGES[-1]), strict=True)]
    lost = np.array([hazard(market.tail, age) for age in middles])[:, None]
    ageing = np.array([1.0 / (b - a) for a, b in pairwise(AGES)] + [0.0])[:, None]
    next_class = np.minimum(np.arange(classes) + 1, classes - 1)
    none: list[_Table] = [np.zeros((time_steps + 1, work_steps + 1)) for _ in range(2)]
    some: list[_Table] = [np.zeros((classes, time_steps + 1, work_steps + 1)) for _ in range(3)]
    (idle_without, held_without), (idle, held, spot) = none, some
    ordered, running = on_demand_usd * (work + 1), on_demand_usd * work
    ordered[0] = 0.0
    idle_without[0], held_without[0] = ordered, running
    idle[:, 0], held[:, 0], spot[:, 0] = ordered, running, ordered

    def older(values: _Table) -> _Table:
        return (1 - ageing) * values + ageing * values[next_class]

    for left in range(1, time_steps + 1):
        before = left - 1
        gone = market.elsewhere * idle[OTHER_AGE, before] + (1 - market.elsewhere) * idle_without[before]
        gone_held = market.elsewhere * held[OTHER_AGE, before] + (1 - market.elsewhere) * held_without[before]
        back = (1 - market.appear) * idle_without[before] + market.appear * idle[0, before]
        back_held = (1 - market.appear) * held_without[before] + market.appear * held[0, before]
        kept, kept_held = older(idle[:, before]), older(held[:, before])
        after, after_held = (1 - lost) * kept + lost * gone, (1 - lost) * kept_held + lost * gone_held
        spot_on = older(spot[:, before])
        start = spot_usd + (1 - lost) * spot_on + lost * gone
        # A step in which the node is lost is trained for half of its time.
        stay = spot_usd + (1 - lost) * _less(spot_on) + lost * 0.5 * (gone + _less(gone))
        forced = left <= work
        may_wait = left >= work + 2
        idle_without[left] = np.minimum(on_demand_usd + back_held, np.where(may_wait, back, np.inf))
        held_without[left] = np.minimum(on_demand_usd + _less(back_held), np.where(may_wait, back, np.inf))
        free = np.where(may_wait, np.minimum(after, start), np.inf)
        idle[:, left] = np.minimum(on_demand_usd + after_held, free)
        held[:, left] = np.minimum(on_demand_usd + _less(after_held), free)
        for table, certain in ((idle_without, ordered), (held_without, running)):
            table[left] = np.where(forced, certain, table[left])
        idle[:, left] = np.where(forced, ordered, idle[:, left])
        held[:, left] = np.where(forced, running, held[:, left])
        spot[:, left] = np.minimum(np.where(left >= work + 1, stay, np.inf), idle[:, left])
        for table in (*none, *some):
            table[..., left, 0] = 0.0
    return ExpectedCosts(
        idle_without=idle_without, on_demand_without=held_without, idle=idle, on_demand=held, spot=spot
    )


def _less(table: _Table) -> _Table:
    """Return the values for one step of work less."""
    return np.concatenate((table[..., :1], table[..., :-1]), axis=-1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTask:
    """A job that one set of nodes works on: how much, until when, at which prices.

    `change_over_s` passes between an order and training, on either market, and is paid for.
    """

    work_s: float
    deadline_s: float
    change_over_s: float
    spot_usd_per_hour: float
    on_demand_usd_per_hour: float

    @property
    def tick_s(self) -> float:
        return self.change_over_s / TICKS_PER_CHANGE_OVER

    @property
    def work_ticks(self) -> int:
        return math.ceil(self.work_s / self.tick_s - 1e-9)

    @property
    def ticks(self) -> int:
        return math.floor(self.deadline_s / self.tick_s + 1e-9)

    @property
    def all_on_demand_usd(self) -> float:
        return (self.work_ticks + TICKS_PER_CHANGE_OVER) * self.tick_s / 3600 * self.on_demand_usd_per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What a policy knows at a tick: zones with capacity, what it holds, what is left."""

    tick: int
    time_left: int
    work_left: int
    held: int
    starting: int
    up: tuple[bool, ...]

    @property
    def may_wait(self) -> bool:
        """Say whether on-demand can still finish in time if this tick brings nothing."""
        return self.time_left - 1 >= self.work_left + TICKS_PER_CHANGE_OVER

    @property
    def may_stay(self) -> bool:
        """Say whether on-demand can still finish in time if the spot node held is lost after this tick."""
        done = 1 if self.starting == 0 else 0
        return self.time_left - 1 >= self.work_left - done + TICKS_PER_CHANGE_OVER


@dataclass(slots=True, kw_only=True)
class LeastExpectedCost:
    """Our policy: at each tick the choice of the least expected cost, by what it has seen of the market so far."""

    task: SpotTask
    _zones: list[_ZoneHistory] = field(default_factory=list)
    # Times that capacity came back where no zone had any, and the change-overs that passed without.
    _returns: float = SPELLS_ASSUMED
    _waited: float = 0.0
    # Losses of an instance's zone while another zone had capacity, and all of them.
    _elsewhere: float = 1.0
    _lost: float = 2.0

    def choose(self, moment: Moment) -> int:
        self.see(moment.up)
        there = [zone for zone, up in enumerate(moment.up) if up]
        best = min(there, key=lambda zone: (self.hazard(zone), zone), default=IDLE)
        choices = [ON_DEMAND]
        if moment.held >= 0 and moment.may_stay:
            choices.append(moment.held)
        if moment.held < 0 and moment.may_wait and best >= 0:
            choices.append(best)
        if moment.may_wait:
            choices.append(IDLE)
        if len(choices) == 1:
            return ON_DEMAND
        usd = self.expected_usd(moment, moment.held if moment.held >= 0 else best)
        return min(choices, key=lambda choice: (usd(choice), choice != moment.held, choice))

    def hazard(self, zone: int) -> float:
        """Return the chance that a zone's capacity is lost within one change-over time."""
        return self._zones[zone].hazard

    def see(self, up: Sequence[bool]) -> None:
        """Count what was lost and what came back since the tick before."""
        if not self._zones:
            self._zones = [_ZoneHistory() for _ in up]
            self._waited = SPELLS_ASSUMED * SPELL_WITHOUT_S / self.task.change_over_s
        if not any(zone.there for zone in self._zones):
            self._waited += _TICK
            self._returns += any(up)
        for zone, there in zip(self._zones, up, strict=True):
            if zone.see(there):
                self._lost += 1
                self._elsewhere += any(up)

    def expected_usd(self, moment: Moment, spot: int) -> Callable[[int], float]:
        """Return what each choice is expected to cost until the work is done; `spot` is the zone that would be used."""
        task = self.task
        zone = self._zones[spot] if spot >= 0 else min(self._zones, key=lambda zone: zone.tail)
        hours = task.change_over_s / 3600
        market = SpotMarket(
            tail=_rounded(zone.tail),
            elsewhere=round(self._elsewhere / self._lost * 5) / 5 if len(self._zones) > 1 else 0.0,
            appear=_rounded(min(0.9, 1.0 - math.exp(-self._returns / self._waited))),
        )
        costs = expected_costs(
            market,
            task.spot_usd_per_hour * hours,
            task.on_demand_usd_per_hour * hours,
            math.ceil(task.ticks * _TICK) + 1,
            math.ceil(task.work_ticks * _TICK) + 1,
        )
        up = any(moment.up)

        def usd(choice: int) -> float:
            starting = moment.starting if choice == moment.held else TICKS_PER_CHANGE_OVER
            ticks = 1 if choice == IDLE else max(1, starting)
            trained = 0 if choice == IDLE or starting else 1
            time_left, work_left = (moment.time_left - ticks) * _TICK, (moment.work_left - trained) * _TICK
            later = age_class(zone.age + ticks * _TICK)
            lost = 1.0 - math.pow(1.0 - zone.hazard, ticks * _TICK)

            def then(kept: NDArray[np.float64], other: NDArray[np.float64], without: NDArray[np.float64]) -> float:
                none = between(without, time_left, work_left)
                if not up:
                    back = 1.0 - math.pow(1.0 - market.appear, ticks * _TICK)
                    return back * between(kept[0], time_left, work_left) + (1.0 - back) * none
                found = between(other[OTHER_AGE], time_left, work_left)
                gone = market.elsewhere * found + (1.0 - market.elsewhere) * none
                return lost * gone + (1.0 - lost) * between(kept[later], time_left, work_left)

            if choice == IDLE:
                return then(costs.idle, costs.idle, costs.idle_without)
            if choice == ON_DEMAND:
                paid = ticks * task.tick_s / 3600 * task.on_demand_usd_per_hour
                return paid + then(costs.on_demand, costs.on_demand, costs.on_demand_without)
            paid = ticks * task.tick_s / 3600 * task.spot_usd_per_hour
            return paid + then(costs.spot, costs.idle, costs.idle_without)

        return usd


@dataclass(slots=True)
class _ZoneHistory:
    """How long capacity of one zone has been there, and how it was lost before; ages in change-overs."""

    losses: float = SPELLS_ASSUMED
    exposure: float = SPELLS_ASSUMED / TAIL_ASSUMED
    age: float = 0.0
    there: bool = False

    @property
    def tail(self) -> float:
        """Return the estimate of the most likely hazard, with what is assumed before anything was seen."""
        return self.losses / self.exposure

    @property
    def hazard(self) -> float:
        return hazard(self.tail, self.age)

    def see(self, there: bool) -> bool:
        """Take one tick in, and say whether capacity was lost in it."""
        lost = self.there and not there
        if self.there:
            self.exposure += _TICK / (self.age + START_AGE)
            self.losses += lost
        self.age = self.age + _TICK if self.there and there else 0.0
        self.there = there
        return lost


def _rounded(rate: float) -> float:
    """Round a rate to a step of a geometric scale, so that one table serves many moments."""
    return float(_RATE_STEP ** round(math.log(rate, _RATE_STEP)))
