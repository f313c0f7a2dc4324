"""When to wait for spot capacity and when to pay for on-demand, so that a job meets its deadline at the least cost.

The longer capacity has been there, the longer it is expected to stay: its hazard falls as 1 / age (a Lomax
distribution), as in public availability traces, where many spells are short and a few last for days. Dynamic
programming over time left, work left and that age gives the expected cost of each choice. One step is one change-over:
the time from an order until training goes on. On-demand capacity is taken to be there whenever it is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
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
