"""Searches large problems: mixes of pipelines by columns and an integer programme.

Gradient sums of neighbouring layers wait for one another where pipelines are cut in different places, so pipelines
share their cut here; they differ in accelerators, tp, zones, microbatch size and count. A setting is a cut and a set of
kinds, whose slowest link all sums are charged at. Within a setting the cheapest mix at a given time is a linear
programme over columns, which the chain programme supplies. The best settings are solved in whole numbers, put on nodes
and judged exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.offer import Market
from sailor_cloud.network import Link
from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.bounds import breaks_limits, goal_bound, work_bound_s
from sailor_cloud.planner.chains import Chain, Lanes, cheapest_chains
from sailor_cloud.planner.columns import Column, column
from sailor_cloud.planner.draft import Draft, significant
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.link_classes import TYPICAL_PIPELINES, link_classes, ring_usd_per_byte
from sailor_cloud.planner.master import Master
from sailor_cloud.planner.packing import pack
from sailor_cloud.planner.space import Space
from sailor_cloud.simulator import gradient_sync_s, startup_s, teardown_s
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Bottlenecks looked at per microbatch size; cuts per number of stages; steps between times of an iteration.
_BOTTLENECKS = 16
_CUTS_PER_STAGES = 5
_TIME_STEP = 2.0
_HALVINGS = 6
_MOST_STEPS = 40
# Times without anything better after which a setting is left.
_STALE = 3
# Settings that are solved in whole numbers, whole mixes looked at in each, and by how much time may grow for them.
_SOLVED = 12
_WHOLE_MIXES = 3
_STRETCH = (1.0, 1.005, 1.01, 1.02, 1.04, 1.08, 1.15, 1.25, 1.4, 1.6, 1.9, 2.3, 2.8, 3.4)
# Money hardly depends on the time in fractions of pipelines, but does in whole ones: all of these are solved.
_SPREAD = tuple(2.0 ** (power / 2) for power in range(-9, 7))
_PRICING_ROUNDS = 2
# A setting is worth solving while its linear programme promises no more than this times the best promise.
_SLACK = 1.1
# How much cheaper a row's devices are made to find pipelines that stand in it.
_DISCOUNT = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Setting:
    """A cut, the kinds that may be used and the slowest link among them; `bytes_each` are the sums of the
    stages, `sync_usd` their egress per iteration if all zones of the kinds are used."""

    cut: tuple[int, ...]
    members: frozenset[int]
    link: Link
    bytes_each: Floats
    sync_usd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Promise:
    """What a setting promises by its linear programme, with how many pipelines and at which iteration time."""

    value: float
    iteration_s: float
    pipelines: int
    setting: _Setting


def mix(space: Space, target: Target, *, keep: int) -> Answer:
    """Return the best drafts found and a bound on any plan's goal."""
    search = _Mixing(space, target)
    drafts = [] if breaks_limits(search.kinds, target) else search.drafts(search.promises())
    best = sorted({draft.order(): draft for draft in drafts}.items())[:keep]
    return Answer(
        drafts=tuple(draft for _, draft in best),
        bound=goal_bound(search.kinds, target),
        columns=sum(len(columns) for columns in search.columns.values()),
        nodes=search.solved,
    )


class _Mixing:
    def __init__(self, space: Space, target: Target) -> None:
        self.space, self.target = space, target
        self.kinds = Kinds.of(space)
        self.assessor = Assessor(space, target)
        self.columns: dict[tuple[int, ...], dict[Chain, Column]] = {}
        self.solved = 0
        self.sizes = self.kinds.sizes()
        self.soonest = target.goal in (Figure.ITERATION_S, Figure.DURATION_S)
        self.master = Master.of(space, counts_nodes=target.goal is Figure.NODES)
        providers = {pool.offer.provider for pool in space.pools}
        self.fixed_s = min(startup_s(provider) + teardown_s(provider) for provider in providers)
        self._bounds: dict[frozenset[int], float] = {}
        self._syncs: dict[tuple[tuple[int, ...], Link, int], float] = {}

    def promises(self) -> list[_Promise]:
        """Return what settings promise, best first; settings that can't beat the best one are passed over."""
        found: list[_Promise] = []
        best = np.inf
        classes = [
            (link, members, work_bound_s(self.kinds, _mask(len(self.kinds), members)))
            for link, members in link_classes(self.kinds)
        ]
        settings = [
            (
                work,
                _Setting(
                    cut=cut,
                    members=members,
                    link=link,
                    bytes_each=table,
                    sync_usd=float(table.sum()) * ring_usd_per_byte(self.kinds, members),
                ),
            )
            for cut, table in ((cut, self._bytes(cut)) for cut in self._cuts())
            for link, members, work in classes
        ]
        settings.sort(key=lambda entry: entry[0] + self._sync_s(entry[1], TYPICAL_PIPELINES))
        for work, setting in settings:
            if self._least(setting, work) >= best * _SLACK:
                continue
            promise = self._promise(setting, work, best * _SLACK)
            if promise is not None:
                found.append(promise)
                best = min(best, promise.value)
        different = {(promise.setting.cut, significant(promise.value)): promise for promise in reversed(found)}
        return sorted(different.values(), key=lambda promise: promise.value)

    def _least(self, setting: _Setting, work_s: float) -> float:
        """Return what no mix of a setting undercuts."""
        if self.soonest:
            return self._figure(work_s + self._sync_s(setting, 2), 0.0)
        if setting.members not in self._bounds:
            mask = _mask(len(self.kinds), setting.members)
            self._bounds[setting.members] = goal_bound(self.kinds, self.target, mask)
        return self._bounds[setting.members]

    def drafts(self, promises: list[_Promise]) -> list[Draft]:
        """Return the drafts of the most promising settings, after pricing in columns that fit them better."""
        drafts: list[Draft] = []
        best = np.inf
        for promise in promises[:_SOLVED]:
            if promise.value >= best:
                break
            for _ in range(_PRICING_ROUNDS):
                if not self._price_in(promise):
                    break
                promise = self._promise(promise.setting, promise.iteration_s * 0.5, promise.value) or promise
            solved = 0
            for stretch in _STRETCH if self.soonest else _SPREAD:
                found = self._whole(promise, promise.iteration_s * stretch)
                if found:
                    drafts += found
                    best = min(best, *(draft.figures[self.target.goal] for draft in found))
                    solved += 1
                    if self.soonest and solved == _WHOLE_MIXES:
                        break
        return drafts

    def _cuts(self) -> list[tuple[int, ...]]:
        """Return the cuts that free chains prefer, the most frequent of each number of stages."""
        seen: Counter[tuple[int, ...]] = Counter()
        allowed = np.ones((len(self.kinds), self.space.layers + 1, self.space.layers + 1), dtype=bool)
        for size in self.sizes:
            for chain in self._chains(allowed, size, *self._first_lanes(allowed, size)):
                seen[chain.cut] += 1
        stages: dict[int, list[tuple[int, ...]]] = {}
        for cut, _ in sorted(seen.items(), key=lambda entry: (-entry[1], entry[0])):
            stages.setdefault(len(cut) - 1, []).append(cut)
        return [cut for count in sorted(stages) for cut in stages[count][:_CUTS_PER_STAGES]]

    def _bytes(self, cut: tuple[int, ...]) -> Floats:
        first = self.kinds.members[0]
        table = self.space.table(first.pool, first.tp, 1, recompute=False)
        return np.asarray(table.gradient_bytes(np.array(cut[:-1]), np.array(cut[1:])), dtype=np.float64)

    def _sync_s(self, setting: _Setting, pipelines: int) -> float:
        key = (setting.cut, setting.link, pipelines)
        if key not in self._syncs:
            bucket = self.space.scenario.execution.bucket_bytes
            each = gradient_sync_s(setting.bytes_each, pipelines, setting.link, bucket_bytes=bucket)
            self._syncs[key] = float(np.max(each))
        return self._syncs[key]

    def _figures(self, iteration_s: float, usd_per_hour: float, sync_usd: float = 0.0) -> dict[Figure, Floats]:
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

    def _figure(self, iteration_s: float, usd_per_hour: float) -> float:
        return float(self._figures(iteration_s, usd_per_hour)[self.target.goal])

    def _promise(self, setting: _Setting, least_s: float, best: float) -> _Promise | None:
        """Return the best point of a setting over times of an iteration, or None if none is better than `best`."""
        columns = self._columns(setting)
        if not columns:
            return None
        found: _Promise | None = None
        low, seconds, stale = 0.0, least_s + self._sync_s(setting, 2), 0
        # From one time to the next until the worth stops growing, then halving around the first or the best.
        for _ in range(_MOST_STEPS):
            if self.soonest and self._figure(seconds, 0.0) >= best:
                seconds = self._seconds_of(best) * (1 - 1e-6)
                if seconds <= low:
                    return found
            promise = self._at(setting, columns, seconds)
            if promise is not None and promise.value < min(best, np.inf if found is None else found.value):
                found, stale = promise, 0
                if self.soonest:
                    break
            elif promise is not None and found is not None:
                stale += 1
            elif self.soonest and self._figure(seconds, 0.0) >= best * (1 - 2e-6):
                return None
            if stale == _STALE or self._hopeless(seconds):
                break
            low, seconds = seconds, seconds * _TIME_STEP
        if found is None or not self.soonest:
            return found
        high = found.iteration_s
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            promise = self._at(setting, columns, middle)
            if promise is None:
                low = middle
            else:
                high, found = middle, promise
        return found

    def _seconds_of(self, value: float) -> float:
        """Return the iteration time at which the goal, a time, has a value."""
        if self.target.goal is Figure.ITERATION_S:
            return value
        return (value - self.fixed_s) / (self.space.scenario.job.training.steps or 1)

    def _hopeless(self, seconds: float) -> bool:
        """Return whether even the cheapest node alone breaks a limit when iterations take so long."""
        cheapest = min(rate.expected for rate in self.space.rates)
        return not self._keeps(seconds, cheapest, 0.0)

    def _at(self, setting: _Setting, columns: list[Column], seconds: float) -> _Promise | None:
        """Return what a setting promises at an iteration time, or None if it can't keep the limits there.

        The number of pipelines follows from the mix; a smaller one is tried where their sums would take too long.
        """
        free = self.master.relaxed(columns, seconds - self._sync_s(setting, 2), len(columns) * self.space.batch)
        if free is None or not self._keeps(seconds, free.usd_per_hour, setting.sync_usd):
            return None
        wanted = max(1, math.ceil(free.pipelines - 1e-6))
        for pipelines in sorted({max(1, math.ceil(wanted * share)) for share in (1.25, 1.0, 0.75, 0.5)}, reverse=True):
            mixed = self.master.relaxed(columns, seconds - self._sync_s(setting, pipelines), pipelines)
            if mixed is not None:
                value = float(self.target.value(self._figures(seconds, mixed.usd_per_hour, setting.sync_usd)))
                found = _Promise(value=value, iteration_s=seconds, pipelines=pipelines, setting=setting)
                return found if np.isfinite(value) else None
        return None

    def _keeps(self, seconds: float, usd_per_hour: float, sync_usd: float) -> bool:
        return bool(self.target.feasible(self._figures(seconds, usd_per_hour, sync_usd)).all())

    def _columns(self, setting: _Setting) -> list[Column]:
        """Return a cut's columns that use the setting's kinds only."""
        if setting.cut not in self.columns:
            self.columns[setting.cut] = {}
            allowed = self._allowed(setting.cut, frozenset(range(len(self.kinds))))
            for size in self.sizes:
                self._add(setting.cut, self._chains(allowed, size, *self._first_lanes(allowed, size)))
        return [found for found in self.columns[setting.cut].values() if setting.members.issuperset(found.chain.kinds)]

    def _allowed(self, cut: tuple[int, ...], members: frozenset[int]) -> Bools:
        allowed = np.zeros((len(self.kinds), self.space.layers + 1, self.space.layers + 1), dtype=bool)
        for first, end in pairwise(cut):
            allowed[sorted(members), first, end] = True
        return allowed

    def _first_lanes(self, allowed: Bools, size: int) -> tuple[Floats, Floats, Floats]:
        """Return lanes without prices from a master: devices equal, and each row's at a discount."""
        times = self.kinds.times(size)
        assert times is not None
        busy = np.where(allowed, times.compute_s[0], np.inf)
        finite = busy[np.isfinite(busy)]
        rows = len(self.space.candidates.rows)
        if not finite.size:
            return np.zeros(0), np.zeros(0), np.zeros((rows, 0))
        bottleneck = np.geomspace(finite.min() * 1.5, finite.max() * 2.0, _BOTTLENECKS)
        prices = [np.ones(rows)] + [np.where(np.arange(rows) == row, _DISCOUNT, 1.0) for row in range(rows)]
        lanes = [(t, 0.3 / t, price) for t, price in product(bottleneck, prices)]
        return (
            np.array([lane[0] for lane in lanes]),
            np.array([lane[1] for lane in lanes]),
            np.array([lane[2] for lane in lanes]).T,
        )

    def _chains(self, allowed: Bools, size: int, bottleneck: Floats, fill: Floats, price: Floats) -> list[Chain]:
        times = self.kinds.times(size)
        assert times is not None
        if not len(bottleneck):
            return []
        lanes = Lanes(bottleneck_s=bottleneck, fill_price=fill, device_price=price)
        return [chain for chain in cheapest_chains(self.kinds, times, allowed, lanes).chains if chain is not None]

    def _add(self, cut: tuple[int, ...], chains: list[Chain]) -> bool:
        columns = self.columns[cut]
        before = len(columns)
        for chain in chains:
            if chain not in columns:
                columns[chain] = column(self.kinds, chain)
        return len(columns) > before

    def _price_in(self, promise: _Promise) -> bool:
        """Generate columns at the prices of the master at a promise; False if there are no new ones."""
        setting = promise.setting
        seconds = promise.iteration_s - self._sync_s(setting, promise.pipelines)
        mixed = self.master.relaxed(self._columns(setting), seconds, promise.pipelines)
        if mixed is None or mixed.batch_price <= 0:
            return False
        price = (mixed.device_price + self.master.device_rates) / mixed.batch_price
        allowed = self._allowed(setting.cut, setting.members)
        fresh = False
        for size in self.sizes:
            bottleneck = np.geomspace(seconds / self.space.batch, seconds, 2 * _BOTTLENECKS)
            prices = np.repeat(price[:, None], len(bottleneck), axis=1)
            fresh |= self._add(setting.cut, self._chains(allowed, size, bottleneck, size / bottleneck, prices))
        return fresh

    def _whole(self, promise: _Promise, seconds: float) -> list[Draft]:
        """Return drafts of the cheapest whole mix at a time, one per choice of markets that keeps the limits."""
        setting = promise.setting
        schedule = seconds - self._sync_s(setting, promise.pipelines)
        chosen = self.master.whole(self._columns(setting), schedule, promise.pipelines)
        self.solved += 1
        if chosen is None:
            return []
        drafts = []
        for markets in self._markets():
            slots = pack(self.kinds, [part.chain for part in chosen], markets)
            if slots is None:
                continue
            shapes = [
                Shape(slots=places, cut=part.chain.cut, microbatch_size=part.chain.microbatch_size)
                for places, part in zip(slots, chosen, strict=True)
            ]
            draft = self.assessor.draft(shapes)
            if draft is not None and self._keeps_limits(draft):
                drafts.append(draft)
        return drafts

    def _keeps_limits(self, draft: Draft) -> bool:
        most = self.space.scenario.job.constraints.max_nodes
        if most is not None and draft.figures[Figure.NODES] > most:
            return False
        figures: dict[Figure, Any] = {figure: np.array(value) for figure, value in draft.figures.items()}
        return bool(self.target.feasible(figures).all())

    def _markets(self) -> Iterator[dict[int, Market]]:
        """Yield where each row buys: one market per accelerator, every combination."""
        rows = self.space.candidates.rows
        there: dict[str, set[Market]] = {}
        for pool in self.space.pools:
            there.setdefault(rows[pool.row].accelerator, set()).add(pool.offer.market)
        names = sorted(there)
        for choice in product(*(sorted(there[name]) for name in names)):
            market = dict(zip(names, choice, strict=True))
            yield {number: market[row.accelerator] for number, row in enumerate(rows) if row.accelerator in market}


def _mask(count: int, members: frozenset[int]) -> Bools:
    mask = np.zeros(count, dtype=bool)
    mask[sorted(members)] = True
    return mask
