"""One job on a spot market with a deadline: the cost of a policy, and the optimum in hindsight."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.spot_timing import (
    IDLE,
    ON_DEMAND,
    TICKS_PER_CHANGE_OVER,
    BoundedWait,
    Moment,
    SpotTask,
)


class SpotPolicy(Protocol):
    """Chooses at each tick: a zone's number, ON_DEMAND or IDLE."""

    def choose(self, moment: Moment) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotResult:
    """The result of a policy. Lost hours are paid but train nothing: starts, also those that a preemption ended."""

    usd: float
    finished: bool
    lost_s: float
    preemptions: int
    seconds: float


def play(policy: SpotPolicy, task: SpotTask, up: NDArray[np.bool_]) -> SpotResult:
    """Carry out a task under a policy. `up`: shape [ticks, zones]. Raises ValueError if it is too short."""
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
    """Return the least cost of the task with the whole trace known and the same change-overs."""
    zones, work = up.shape[1], task.work_ticks
    hour = task.tick_s / 3600
    price = np.array([task.spot_usd_per_hour * hour] * zones + [task.on_demand_usd_per_hour * hour])
    # held[market, starting ticks left, work left]; idle[work left]. Work left at the deadline is infeasible.
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
    """Use spot while available; otherwise wait, and use on-demand to the end once waiting would miss the deadline."""

    def choose(self, moment: Moment) -> int:
        if moment.held >= 0 and moment.may_stay:
            return moment.held
        if moment.held == ON_DEMAND or not moment.may_wait:
            return ON_DEMAND
        return _first(moment.up)


@dataclass(slots=True, kw_only=True)
class UniformProgress:
    """Keep to the pace work / deadline: Wu et al., Can't Be Late, NSDI'24, section 4.

    Behind the pace and without spot, it uses on-demand until it is two change-overs ahead. It uses spot whenever
    available, and keeps it. With less than two change-overs of slack it stays on demand.
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


POLICIES: Mapping[str, Callable[[SpotTask], SpotPolicy]] = {
    "bounded-wait": lambda task: BoundedWait(task=task),
    "uniform-progress": lambda task: UniformProgress(task=task),
    "greedy": lambda task: Greedy(),
}
