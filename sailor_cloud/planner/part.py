"""The search of one part of a space, step by step; no step depends on what another one of the same kind finds.

Gradient sums of neighbouring layers wait for one another where pipelines are cut in different places, so pipelines
share their cut here; they differ in accelerators, tp, zones, microbatch size and count. A setting is a cut and a set of
kinds, whose slowest link all sums are charged at. Within a setting the cheapest mix at a given time is a linear
programme over columns, which the chain programme supplies. The best settings are solved in whole numbers, put on nodes
and judged exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.blocks import Blocks
from sailor_cloud.planner.chains import Lanes
from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.effort import Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.group_search import GroupSearch
from sailor_cloud.planner.link_classes import TYPICAL_PIPELINES
from sailor_cloud.planner.overlap import Factors, Overlap
from sailor_cloud.planner.promises import Promise, Promises
from sailor_cloud.planner.refine import refined
from sailor_cloud.planner.settings import BOTTLENECKS, Setting, Settings
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.whole_mixes import WholeMixes

Floats = NDArray[np.float64]

_PRICING_ROUNDS = 2
# A setting is worth solving while its linear programme promises no more than this times the best promise, and no more
# than that times what is known: single steps make plans better than their settings promise.
_SLACK = 1.1
RIPE = 1.05
# Of what a draft becomes step by step so many are kept, the last ones.
POLISHED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a step brought: drafts in the part, how many columns were rated, plans judged or programmes solved.

    Drafts of blocks and groups may break limits: single steps may make them keep all.
    """

    drafts: tuple[Draft, ...]
    columns: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Likely:
    """The settings of one cut, each with about the least seconds of an iteration, the least first."""

    cut: tuple[int, ...]
    settings: tuple[tuple[float, Setting], ...]

    @property
    def least_s(self) -> float:
        return self.settings[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Promised:
    """What the settings of a cut promise, and how many columns were found for that."""

    promises: tuple[Promise, ...]
    columns: int


class Part:
    """A part of a space, or all of it, with what searches of it share."""

    def __init__(self, space: Space, target: Target, effort: Effort) -> None:
        self.space, self.target, self.effort = space, target, effort
        self.settings = Settings.of(space, cuts=effort.cuts)
        self.promises = Promises(space, target, self.settings)
        self.assessor = Assessor(space, target)
        self.overlap = Overlap(self.assessor)
        self.blocks = Blocks(space, target, effort)
        self.groups = GroupSearch(self.overlap)
        # By cut, kinds and value of a promise.
        self._priced: dict[tuple[object, ...], tuple[Settings, Promises, Promise]] = {}

    def judged(self) -> Found:
        """Return the drafts of the most promising blocks, after they were judged."""
        return Found(drafts=tuple(self.blocks.nearly_kept), columns=self.blocks.rated, nodes=self.blocks.judged)

    def grouped(self) -> Found:
        """Return the best drafts of a group of equal pipelines for each accelerator, after they were drawn."""
        return Found(drafts=tuple(self.groups.best()), columns=0, nodes=self.groups.judged)

    def likely(self, others: Sequence[Part] = ()) -> list[Likely]:
        """Return the settings, cut by cut, but for those that another, smaller part has, too."""
        work = self._work_s()
        rows = self._rows
        known = [other._rows for other in others if other._rows < rows and self._shares_limits(other)]
        by_cut: dict[tuple[int, ...], list[tuple[float, int, Setting]]] = {}
        for number, setting in enumerate(self.settings.every()):
            among = {self.settings.kinds.members[k].row for k in setting.members}
            if any(among <= there for there in known):
                continue
            by_cut.setdefault(setting.cut, []).append((self._estimate(setting, work), number, setting))
        return [
            Likely(cut=cut, settings=tuple((least, setting) for least, _, setting in sorted(found, key=_first_two)))
            for cut, found in by_cut.items()
        ]

    def promised(self, likely: Likely, known: float, best: float) -> Promised:
        """Return what settings of a cut promise, without those that can't come near `best`, the best promise so far.

        `known` is the value of a plan that is known already.
        """
        found = []
        for least_s, setting in likely.settings:
            start = least_s - self.settings.sync_s(setting, TYPICAL_PIPELINES)
            promise = self.promises.of(setting, start, min(known * RIPE, best * _SLACK))
            if promise is not None:
                found.append(promise)
                best = min(best, promise.value)
        return Promised(promises=tuple(found), columns=len(self.settings.columns.get(likely.cut, ())))

    def whole(self, promise: Promise, best: float, *, fitting: bool) -> Found:
        """Return the drafts of a setting, after pricing in columns that fit it better.

        `fitting`: of pipelines that fill nodes without a rest; else of all, where there are others.
        """
        setting = promise.setting
        settings, promises, promise = self._priced_in(promise)
        wholes = WholeMixes(self.space, settings, promises, self.assessor)
        drafts = wholes.near(promise, fitting=fitting, best=best)
        fresh = len(settings.columns[setting.cut]) - len(self.settings.columns[setting.cut])
        return Found(drafts=tuple(drafts), columns=fresh if fitting else 0, nodes=wholes.solved)

    def _priced_in(self, promise: Promise) -> tuple[Settings, Promises, Promise]:
        """Return the settings with columns that fit a promise better, and what is promised with them."""
        key = (promise.setting.cut, promise.setting.members, promise.value)
        if key not in self._priced:
            settings = self.settings.apart(promise.setting)
            promises = Promises(self.space, self.target, settings)
            for _ in range(_PRICING_ROUNDS):
                if not self._price_in(promises, promise):
                    break
                promise = promises.of(promise.setting, promise.iteration_s * 0.5, promise.value) or promise
            self._priced[key] = settings, promises, promise
        return self._priced[key]

    def polished(self, draft: Draft, factors: Factors) -> list[Draft]:
        """Return what a draft becomes step by step where it is judged by about what the replay finds.

        `factors`: as in `Overlap`.
        """
        better = refined(self.assessor, draft, replace(self.overlap, factors=factors).rank)
        return [self.overlap.expected(each) for each in better[-POLISHED:]]

    @property
    def _rows(self) -> frozenset[int]:
        return frozenset(pool.row for pool in self.space.pools)

    def _shares_limits(self, other: Part) -> bool:
        return self.space.candidates.rows == other.space.candidates.rows

    def _work_s(self) -> dict[int, float]:
        """Return, per row, the device-seconds of a sample by its fastest kind."""
        each: dict[int, float] = {}
        for kind in self.settings.kinds.members:
            for size in self.settings.sizes:
                table = self.space.table(kind.pool, kind.tp, size, recompute=False)
                spent = float(table.compute_s(0, table.layers)) * kind.tp / size
                each[kind.row] = min(each.get(kind.row, np.inf), spent)
        return each

    def _estimate(self, setting: Setting, work: dict[int, float]) -> float:
        """Return about the least time of an iteration, all devices at work all the time and sums after it."""
        rows = {self.settings.kinds.members[k].row for k in setting.members}
        rate = sum(self.space.candidates.rows[row].devices / work[row] for row in rows)
        return self.space.batch / rate + self.settings.sync_s(setting, TYPICAL_PIPELINES)

    def _price_in(self, promises: Promises, promise: Promise) -> bool:
        """Generate columns at the prices of the master at a promise; False if there are no new ones."""
        setting, master, settings = promise.setting, promises.master, promises.settings
        seconds = promise.iteration_s - settings.sync_s(setting, promise.pipelines)
        columns = settings.columns_of(setting)
        mixed = None if columns is None else master.relaxed(columns, seconds, promise.pipelines)
        if mixed is None or mixed.batch_price <= 0:
            return False
        price = (mixed.device_price + master.device_rates) / mixed.batch_price
        # Kinds that the setting does without are priced out.
        rows = {settings.kinds.members[k].row for k in setting.members}
        price = np.where(np.isin(np.arange(len(price)), sorted(rows)), price, 1e9)
        bottleneck = np.geomspace(seconds / self.space.batch, seconds, 2 * BOTTLENECKS)
        prices = np.repeat(price[:, None], len(bottleneck), axis=1)
        lanes = {
            size: Lanes(bottleneck_s=bottleneck, fill_price=size / bottleneck, device_price=prices)
            for size in settings.sizes
        }
        return settings.add(setting.cut, lanes)


def _first_two(entry: tuple[float, int, Setting]) -> tuple[float, int]:
    return entry[:2]
