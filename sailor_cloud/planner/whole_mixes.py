"""Plans of whole pipelines near what the linear programme of a setting promises in fractions of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from sailor_cloud.model.offer import Market
from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.columns import Column, Columns
from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.packing import pack
from sailor_cloud.planner.promises import Promise, Promises
from sailor_cloud.planner.settings import Settings
from sailor_cloud.planner.space import Space

# Whole mixes looked at in each setting, and by how much time may grow for them.
WHOLE_MIXES = 2
STRETCH = (1.0, 1.005, 1.01, 1.02, 1.04, 1.08, 1.15, 1.25, 1.4, 1.6, 1.9, 2.3, 2.8, 3.4)
# Money hardly depends on the time in fractions of pipelines, but does in whole ones: all of these are solved.
_SPREAD = tuple(2.0 ** (power / 2) for power in range(-9, 7))
# What is asked to take so many times as long as the best plan known does not get better than that.
_REACH = 1.25

_Mix = tuple[Column, ...]


@dataclass
class WholeMixes:
    """Solves settings in whole numbers, puts the pipelines on nodes and judges them; `solved` counts programmes."""

    space: Space
    settings: Settings
    promises: Promises
    assessor: Assessor
    solved: int = field(init=False, default=0)
    _node_devices: dict[int, int] = field(init=False, default_factory=dict)
    _markets: dict[int, Market] = field(init=False)

    def __post_init__(self) -> None:
        for pool in self.space.pools:
            self._node_devices[pool.row] = max(pool.devices, self._node_devices.get(pool.row, 0))
        self._markets = _cheapest_markets(self.space)

    def near(self, promise: Promise, *, fitting: bool, best: float = np.inf) -> list[Draft]:
        """Return the drafts of whole mixes near a promise that keep the limits, the first ones where time is the goal.

        `fitting`: of pipelines only that fill nodes without a rest, so that none is torn apart by the next one; else of
        all, none where all of them do. `best` is the goal's value of a plan that is known already.
        """
        columns = self._columns(promise, fitting=fitting)
        if columns is None:
            return []
        if not self.promises.soonest:
            times = [promise.iteration_s * stretch for stretch in _SPREAD]
            return [draft for seconds in times for draft in self._drafts(self._mix(columns, promise, seconds))]
        most = self.promises.seconds_of(best) * _REACH
        return self._soonest(columns, promise, [each for each in STRETCH if promise.iteration_s * each <= most])

    def _columns(self, promise: Promise, *, fitting: bool) -> Columns | None:
        columns = self.settings.columns_of(promise.setting)
        if columns is None:
            return None
        fitted = [column for column in columns.every if self._fits(column)]
        if not fitting:
            return columns if len(fitted) < len(columns) else None
        return Columns.of(fitted) if fitted else None

    def _soonest(self, columns: Columns, promise: Promise, stretches: Sequence[float]) -> list[Draft]:
        """Return the first drafts, as time grows.

        Where a time is enough for whole pipelines more time nearly always is, too; where not, the first may be missed.
        """
        mixes: dict[int, _Mix | None] = {}

        def mix(at: int) -> _Mix | None:
            if at not in mixes:
                mixes[at] = self._mix(columns, promise, promise.iteration_s * stretches[at])
            return mixes[at]

        low, high = 0, len(stretches)
        if high and mix(0) is None:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (low, middle) if mix(middle) is not None else (middle, high)
            low = high
        found: list[Draft] = []
        for at in range(low, len(stretches)):
            found += self._drafts(mix(at))
            if len(found) == WHOLE_MIXES:
                break
        return found

    def _mix(self, columns: Columns, promise: Promise, seconds: float) -> _Mix | None:
        """Return the cheapest whole mix at a time of an iteration."""
        self.solved += 1
        schedule = seconds - self.settings.sync_s(promise.setting, promise.pipelines)
        return self.promises.master.whole(columns, schedule, promise.pipelines)

    def _drafts(self, mix: _Mix | None) -> list[Draft]:
        """Return the draft of a whole mix, if there is room for it and it keeps the limits."""
        slots = None if mix is None else pack(self.settings.kinds, [part.chain for part in mix], self._markets)
        if mix is None or slots is None:
            return []
        shapes = [
            Shape(slots=places, cut=part.chain.cut, microbatch_size=part.chain.microbatch_size)
            for places, part in zip(slots, mix, strict=True)
        ]
        draft = self.assessor.draft(shapes)
        return [draft] if draft is not None and self.assessor.keeps(draft) else []

    def _fits(self, column: Column) -> bool:
        """Return whether the devices that a pipeline takes of each row divide its largest node, or are whole nodes."""
        for row, devices in enumerate(column.devices):
            largest = self._node_devices.get(row, 1)
            if devices and largest % devices and devices % largest:
                return False
        return True


def _cheapest_markets(space: Space) -> dict[int, Market]:
    """Return where each row buys: in its cheapest market."""
    cheapest: dict[int, tuple[float, Market]] = {}
    for pool, rate in zip(space.pools, space.rates, strict=True):
        entry = (rate.expected / pool.devices, pool.offer.market)
        cheapest[pool.row] = min(cheapest.get(pool.row, entry), entry)
    return {row: market for row, (_, market) in cheapest.items()}
