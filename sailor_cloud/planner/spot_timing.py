"""When to wait for spot capacity and when to pay for on-demand, to meet a deadline at little cost.

Spot nodes are bought and kept as long as on-demand could still meet the deadline after their loss. Slack is the time
until the deadline minus the time that on-demand alone needs. An absence of spot capacity may use a share of the slack
beyond a reserve. Then the job trains on demand, and returns to spot once capacity has lasted. On-demand capacity is
assumed to be always available.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

# A change-over is the time from an order until training continues. The trace is read once a tick.
TICKS_PER_CHANGE_OVER = 4
IDLE, ON_DEMAND = -2, -1
# The share of the slack that one absence may use, and the reserve for later losses, in change-overs. Chosen on the
# traces of one date (aws-02-15-2023); benchmarks/launch/spot_policies.py reports the other dates separately.
WAIT_SHARE, RESERVE = 0.5, 12.0


def longest_wait(slack: float, change_over: float) -> float:
    """Return how long a job may wait in one absence of spot capacity. `slack`: at its beginning."""
    return WAIT_SHARE * max(0.0, slack - RESERVE * change_over)


def settled_after(spot_usd: float, on_demand_usd: float) -> float:
    """Return after how many change-overs of spot capacity a run leaves on-demand nodes; prices are per hour.

    The rule expects capacity to last as long again as it has lasted. In public traces, many spells are short and a few
    last for days. Spot saves the difference of the prices, and costs a start on either market.
    """
    saved = on_demand_usd - spot_usd
    return (spot_usd + on_demand_usd) / saved if saved > 0 else math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotTask:
    """A job for one set of nodes: how much work, until when, at which prices.

    `change_over_s` passes between an order and training on either market, and is paid for.
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
    """The knowledge of a policy at a tick: zones with capacity, nodes in use, and the work and time left."""

    tick: int
    time_left: int
    work_left: int
    held: int
    starting: int
    up: tuple[bool, ...]

    @property
    def may_wait(self) -> bool:
        """Whether on-demand can still finish in time if this tick makes no progress."""
        return self.time_left - 1 >= self.work_left + TICKS_PER_CHANGE_OVER

    @property
    def may_stay(self) -> bool:
        """Whether on-demand can still finish in time if the spot node is lost after this tick."""
        done = 1 if self.starting == 0 else 0
        return self.time_left - 1 >= self.work_left - done + TICKS_PER_CHANGE_OVER


@dataclass(slots=True, kw_only=True)
class BoundedWait:
    """Our policy: wait in each absence with a share of the slack, and leave on-demand for lasting capacity."""

    task: SpotTask
    # For how many ticks each zone has had capacity, and for how many the job has waited without any.
    _ages: list[int] = field(default_factory=list)
    _waited: int = 0

    def choose(self, moment: Moment) -> int:
        ages = self._ages or [0] * len(moment.up)
        self._ages = [age + 1 if up else 0 for age, up in zip(ages, moment.up, strict=True)]
        choice = self._choice(moment)
        self._waited = self._waited + 1 if choice == IDLE else 0
        return choice

    def _choice(self, moment: Moment) -> int:
        if moment.held >= 0 and moment.may_stay:
            return moment.held
        settled = settled_after(self.task.spot_usd_per_hour, self.task.on_demand_usd_per_hour)
        if not moment.may_wait or math.isinf(settled):
            return ON_DEMAND
        best = max(range(len(moment.up)), key=lambda zone: (self._ages[zone], -zone))
        if moment.held == ON_DEMAND:
            return best if self._ages[best] >= settled * TICKS_PER_CHANGE_OVER else ON_DEMAND
        if moment.up[best]:
            return best
        slack = moment.time_left - moment.work_left - TICKS_PER_CHANGE_OVER + self._waited
        return IDLE if self._waited < longest_wait(slack, TICKS_PER_CHANGE_OVER) else ON_DEMAND
