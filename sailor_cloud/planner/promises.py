"""What settings promise: the best mix of fractions of pipelines, by linear programmes over iteration times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.bounds import least_fixed_s
from sailor_cloud.planner.columns import Columns
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.master import Master
from sailor_cloud.planner.settings import Setting, Settings
from sailor_cloud.planner.space import Space
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]

# Steps between times of an iteration, and how often the step around the best is halved.
_TIME_STEP = 2.0
_HALVINGS = 5
_MOST_STEPS = 40
# Times without anything better after which a setting is left.
_STALE = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """What a setting promises by its linear programme, with how many pipelines and at which iteration time."""

    value: float
    iteration_s: float
    pipelines: int
    setting: Setting

    @property
    def stages(self) -> int:
        return len(self.setting.cut) - 1


@dataclass
class Promises:
    """Judges settings for one target."""

    space: Space
    target: Target
    settings: Settings
    master: Master = field(init=False)
    fixed_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.master = Master.of(self.space, counts_nodes=self.target.goal is Figure.NODES)
        self.fixed_s = least_fixed_s(self.space)

    @property
    def soonest(self) -> bool:
        return self.target.goal in (Figure.ITERATION_S, Figure.DURATION_S)

    def of(self, setting: Setting, least_s: float, best: float) -> Promise | None:
        """Return the best point of a setting over times of an iteration, or None if none is better than `best`."""
        columns = self.settings.columns_of(setting)
        if columns is None:
            return None
        start = least_s + self.settings.sync_s(setting, 2)
        judge = self._soonest if self.soonest else self._cheapest
        return judge(setting, columns, start, best)

    def _soonest(self, setting: Setting, columns: Columns, start: float, best: float) -> Promise | None:
        low, high = start, self.seconds_of(best) * (1 - 1e-6) if np.isfinite(best) else start
        found: Promise | None = None
        for _ in range(_MOST_STEPS):
            promise = self._at_known(setting, columns, high)
            if promise is not None:
                found = promise
                break
            if np.isfinite(best) or self._hopeless(high):
                return None
            low, high = high, high * _TIME_STEP
        if found is None:
            return None
        for _ in range(_HALVINGS):
            middle = math.sqrt(low * high) if low > 0 else 0.5 * high
            promise = self._at_known(setting, columns, middle)
            if promise is None:
                low = middle
            else:
                high, found = middle, promise
        return found

    def _cheapest(self, setting: Setting, columns: Columns, start: float, best: float) -> Promise | None:
        found: Promise | None = None
        if self.bound(setting, columns) >= best:
            return None
        seconds, stale, least, least_bound = start, 0, math.inf, math.inf
        for _ in range(_MOST_STEPS):
            value = bound = self.bound_at(setting, columns, seconds)
            if bound < min(best, least):
                promise = self._at_known(setting, columns, seconds)
                value = math.inf if promise is None else promise.value
                if promise is not None and value < min(best, least):
                    found = promise
                falls, least = value < least, min(least, value)
            else:
                falls = bound < least_bound
            least_bound = min(least_bound, bound)
            # Infinite where the time is too short for the devices that there are.
            if falls or math.isinf(value):
                stale = 0
            else:
                stale += 1
            if stale == _STALE or self._hopeless(seconds):
                break
            seconds *= _TIME_STEP
        return found

    def bound(self, setting: Setting, columns: Columns) -> float:
        """Return what no mix of these columns is promised for less than, where the goal is money spent.

        It is what the cheapest pipeline alone costs if it never waits.
        """
        if self.target.goal not in (Figure.USD_PER_ITERATION, Figure.TOTAL_USD):
            return -math.inf
        device_s = columns.bottleneck_s / columns.sizes
        each = self.master.device_rates @ columns.devices * device_s / SECONDS_PER_HOUR + columns.usd_per_sample
        usd = float(each.min()) * self.space.batch + setting.sync_usd
        steps = 1 if self.target.goal is Figure.USD_PER_ITERATION else self.space.scenario.job.training.steps or 1
        return usd * steps * (1.0 - 1e-9)

    def bound_at(self, setting: Setting, columns: Columns, seconds: float) -> float:
        """Return what no mix of these columns is promised for less than at an iteration time: the cheapest alone."""
        value = columns.samples(seconds - self.settings.sync_s(setting, 2), self.space.batch)
        rates = self.master.device_rates @ columns.devices
        each = np.divide(rates, value, out=np.full(len(value), np.inf), where=value > 0)
        each += columns.usd_per_sample * SECONDS_PER_HOUR / seconds
        usd_per_hour = float(each.min()) * self.space.batch * (1.0 - 1e-9)
        return float(self.target.value(self.figures(seconds, usd_per_hour, setting.sync_usd)))

    def _at_known(self, setting: Setting, columns: Columns, seconds: float) -> Promise | None:
        """Return what a setting promises at an iteration time, or None if it can't keep the limits there.

        The number of pipelines follows from the mix; a smaller one is tried where their sums would take too long.
        """
        most = len(columns) * self.space.batch
        free = self.master.relaxed(columns, seconds - self.settings.sync_s(setting, 2), most)
        if free is None or not self.keeps(seconds, free.usd_per_hour, setting.sync_usd):
            return None
        wanted = max(1, math.ceil(free.pipelines - 1e-6))
        for pipelines in sorted({max(1, math.ceil(wanted * share)) for share in (1.25, 1.0, 0.6)}, reverse=True):
            mixed = self.master.relaxed(columns, seconds - self.settings.sync_s(setting, pipelines), pipelines)
            if mixed is not None:
                value = float(self.target.value(self.figures(seconds, mixed.usd_per_hour, setting.sync_usd)))
                found = Promise(value=value, iteration_s=seconds, pipelines=pipelines, setting=setting)
                return found if np.isfinite(value) else None
        return None

    def figures(self, iteration_s: float, usd_per_hour: float, sync_usd: float = 0.0) -> dict[Figure, Floats]:
        """Return the figures of a mix; under the goal of fewest nodes, its `usd_per_hour` is their number."""
        steps = self.space.scenario.job.training.steps or 1
        duration = steps * iteration_s + self.fixed_s
        egress_per_hour = sync_usd * SECONDS_PER_HOUR / iteration_s
        values = {
            Figure.ITERATION_S: iteration_s,
            Figure.DURATION_S: duration,
            Figure.TOTAL_USD: duration * usd_per_hour / SECONDS_PER_HOUR + steps * sync_usd,
            Figure.USD_PER_ITERATION: iteration_s * usd_per_hour / SECONDS_PER_HOUR + sync_usd,
            Figure.USD_PER_HOUR: usd_per_hour + egress_per_hour,
            Figure.NODES: usd_per_hour,
        }
        return {figure: np.array(value) for figure, value in values.items()}

    def keeps(self, seconds: float, usd_per_hour: float, sync_usd: float) -> bool:
        """Return whether a mix keeps all limits."""
        return bool(self.target.feasible(self.figures(seconds, usd_per_hour, sync_usd)).all())

    def seconds_of(self, value: float) -> float:
        """Return the iteration time at which the goal, a time, has a value."""
        if self.target.goal is Figure.ITERATION_S:
            return value
        return (value - self.fixed_s) / (self.space.scenario.job.training.steps or 1)

    def _hopeless(self, seconds: float) -> bool:
        """Return whether even the cheapest node alone breaks a limit when iterations take so long."""
        cheapest = min(rate.expected for rate in self.space.rates)
        return not self.keeps(seconds, cheapest, 0.0)
