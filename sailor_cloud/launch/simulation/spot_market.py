"""One job on a spot market with a deadline: what a policy costs, and what the best in hindsight would have cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.spot_timing import (
    OTHER_AGE,
    START_AGE,
    SpotMarket,
    age_class,
    between,
    expected_costs,
    hazard,
)

# A change-over is so many ticks long; the trace is read once a tick.
TICKS_PER_CHANGE_OVER = 4
IDLE, ON_DEMAND = -2, -1
# What our policy assumes before it has seen anything: how fast the hazard of a loss falls with age, how long a spell
# without capacity lasts, and how many spells that assumption weighs. Chosen on the traces of one date
# (aws-02-15-2023); benchmarks/launch/spot_policies.py reports the other dates apart.
TAIL_ASSUMED, SPELL_WITHOUT_S, SPELLS_ASSUMED = 0.5, 7200.0, 1.0
_RATE_STEP = 1.25
_TICK = 1.0 / TICKS_PER_CHANGE_OVER


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


class SpotPolicy(Protocol):
    """Chooses at each tick: a zone's number, ON_DEMAND or IDLE."""

    def choose(self, moment: Moment) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotResult:
    """What came of a policy. Lost hours are paid for and do not train: starts, and starts that a preemption ended."""

    usd: float
    finished: bool
    lost_s: float
    preemptions: int
    seconds: float


def play(policy: SpotPolicy, task: SpotTask, up: NDArray[np.bool_]) -> SpotResult:
    """Carry out a task under a policy. `up`: shape [ticks, zones]; Raises ValueError where it is too short."""
    if len(up) < task.ticks:
        raise ValueError(f"the trace has {len(up)} ticks, the deadline needs {task.ticks}")
    held, starting, work, usd, lost, preemptions = IDLE, 0, task.work_ticks, 0.0, 0, 0
    hour = task.tick_s / 3600
    tick = 0
    while tick < task.ticks and work > 0:
        now = tuple(bool(zone) for zone in up[tick])
        if held >= 0 and not now[held]:
            held, starting, preemptions = IDLE, 0, preemptions + 1
        choice = policy.choose(
            Moment(tick=tick, time_left=task.ticks - tick, work_left=work, held=held, starting=starting, up=now)
        )
        if choice != held:
            held, starting = choice, 0 if choice == IDLE else TICKS_PER_CHANGE_OVER
        if held != IDLE:
            usd += hour * (task.on_demand_usd_per_hour if held == ON_DEMAND else task.spot_usd_per_hour)
            if starting:
                starting, lost = starting - 1, lost + 1
            else:
                work -= 1
        tick += 1
    return SpotResult(
        usd=usd, finished=work == 0, lost_s=lost * task.tick_s, preemptions=preemptions, seconds=tick * task.tick_s
    )


def least_usd(task: SpotTask, up: NDArray[np.bool_]) -> float:
    """Return the least cost of the task for one who knows the whole trace and pays the same change-overs."""
    zones, work = up.shape[1], task.work_ticks
    hour = task.tick_s / 3600
    price = np.array([task.spot_usd_per_hour * hour] * zones + [task.on_demand_usd_per_hour * hour])
    # held[market, starting ticks left, work left]; idle[work left]. Work that is left at the deadline can't be done.
    held = np.full((zones + 1, TICKS_PER_CHANGE_OVER, work + 1), np.inf)
    held[:, :, 0] = 0.0
    idle = held[0, 0].copy()
    for tick in range(task.ticks - 1, -1, -1):
        there = np.append(up[tick], True)
        begun = price[there, None] + held[there, TICKS_PER_CHANGE_OVER - 1]
        other = np.minimum(idle, begun.min(axis=0))
        stay = np.empty_like(held)
        stay[:, 1:] = price[:, None, None] + held[:, :-1]
        stay[:, 0, 1:] = price[:, None] + held[:, 0, :-1]
        stay[~there] = np.inf
        held = np.minimum(stay, other)
        held[:, :, 0] = 0.0
        other[0] = 0.0
        idle = other
    return float(idle[work])


class Greedy:
    """Take spot while there is any; wait without; on-demand until the end once waiting would miss the deadline."""

    def choose(self, moment: Moment) -> int:
        if moment.held >= 0 and moment.may_stay:
            return moment.held
        if moment.held == ON_DEMAND or not moment.may_wait:
            return ON_DEMAND
        return _first(moment.up)


@dataclass(slots=True, kw_only=True)
class UniformProgress:
    """Keep to the pace work / deadline: Wu et al., Can't Be Late, NSDI'24, section 4.

    Behind the pace and without spot it takes on-demand, and keeps it until it is two change-overs ahead. Spot is taken
    whenever there is any, and kept. With less than two change-overs of slack it stays on demand.
    """

    task: SpotTask
    _last: bool = False

    def choose(self, moment: Moment) -> int:
        slack = moment.time_left - moment.work_left
        if moment.held >= 0 and moment.may_stay:
            return moment.held
        if self._last or slack < 2 * TICKS_PER_CHANGE_OVER or not moment.may_wait:
            self._last = True
            return ON_DEMAND
        pace = self.task.work_ticks / self.task.ticks
        done = self.task.work_ticks - moment.work_left
        if moment.held == ON_DEMAND and done < pace * (moment.tick + 2 * TICKS_PER_CHANGE_OVER):
            return ON_DEMAND
        spot = _first(moment.up)
        if spot == IDLE and done < pace * moment.tick:
            return ON_DEMAND
        return spot


def _first(up: Sequence[bool]) -> int:
    return next((zone for zone, there in enumerate(up) if there), IDLE)


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
        self._look(moment.up)
        there = [zone for zone, up in enumerate(moment.up) if up]
        best = min(there, key=lambda zone: (self._zones[zone].hazard, zone), default=IDLE)
        choices = [ON_DEMAND]
        if moment.held >= 0 and moment.may_stay:
            choices.append(moment.held)
        if moment.held < 0 and moment.may_wait and best >= 0:
            choices.append(best)
        if moment.may_wait:
            choices.append(IDLE)
        if len(choices) == 1:
            return ON_DEMAND
        spot = moment.held if moment.held >= 0 else best
        zone = min(self._zones, key=lambda zone: zone.tail) if spot < 0 else self._zones[spot]
        look_ahead = self._look_ahead(moment, zone)
        return min(choices, key=lambda choice: (look_ahead(choice), choice != moment.held, choice))

    def _look(self, up: Sequence[bool]) -> None:
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

    def _look_ahead(self, moment: Moment, zone: _ZoneHistory) -> Callable[[int], float]:
        """Return what each choice is expected to cost until the work is done."""
        task = self.task
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


POLICIES: Mapping[str, Callable[[SpotTask], SpotPolicy]] = {
    "least-expected-cost": lambda task: LeastExpectedCost(task=task),
    "uniform-progress": lambda task: UniformProgress(task=task),
    "greedy": lambda task: Greedy(),
}
