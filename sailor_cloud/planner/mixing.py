"""Searches large problems: mixes of pipelines by columns and an integer programme.

Gradient sums of neighbouring layers wait for one another where pipelines are cut in different places, so pipelines
share their cut here; they differ in accelerators, tp, zones, microbatch size and count. A setting is a cut and a set of
kinds, whose slowest link all sums are charged at. Within a setting the cheapest mix at a given time is a linear
programme over columns, which the chain programme supplies. The best settings are solved in whole numbers, put on nodes
and judged exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.answer import Answer
from sailor_cloud.planner.assess import Assessor
from sailor_cloud.planner.blocks import Blocks, Key, Rated
from sailor_cloud.planner.bounds import breaks_limits, goal_bound
from sailor_cloud.planner.chains import Lanes
from sailor_cloud.planner.draft import Draft, in_space, significant
from sailor_cloud.planner.effort import NORMAL, Effort
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.halves import at_once, border, both
from sailor_cloud.planner.link_classes import TYPICAL_PIPELINES
from sailor_cloud.planner.narrowing import narrowed
from sailor_cloud.planner.promises import Promise, Promises
from sailor_cloud.planner.refine import refined
from sailor_cloud.planner.settings import BOTTLENECKS, FreeChain, Setting, Settings
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.tasks import Task, do
from sailor_cloud.planner.twins import elsewhere
from sailor_cloud.planner.whole_mixes import WholeMixes

Floats = NDArray[np.float64]

_PRICING_ROUNDS = 2
# A setting is worth solving while its linear programme promises no more than this times the best promise.
_SLACK = 1.1
# Which share of a search is what can be found out task by task.
_BEGUN = 0.4
# What is rated of each part even when a time limit is over: so many microbatch sizes and numbers of pipelines.
_RATED = 8


def mix(space: Space, target: Target, *, keep: int, effort: Effort = NORMAL, known: float = np.inf) -> Answer:
    """Return the best drafts found and a bound on any plan's goal; `known` is that of a plan that is known already."""
    parts = () if breaks_limits(space, target) else narrowed(space)
    begun = _begun(parts, target, effort, known)
    middle = border([len(part.pools) for part in parts])
    processes = effort.processes if middle else 1
    rest = replace(effort.between(_BEGUN, 1.0), processes=1 if at_once(processes) else effort.processes)
    share = 0.0 if at_once(processes) else middle / max(1, len(parts))
    first, second = both(
        lambda: _Search(space, target, rest.between(0.0, share), known).run(begun[:middle]),
        lambda: _Search(space, target, rest.between(share, 1.0), known).run(begun[middle:]),
        processes=processes,
    )
    drafts = (*first.drafts, *second.drafts)
    best = sorted({draft.order(): draft for draft in drafts}.items())[:keep]
    return Answer(
        drafts=tuple(draft for _, draft in best),
        others=drafts,
        bound=goal_bound(space, target),
        columns=first.columns + second.columns,
        nodes=first.nodes + second.nodes,
    )


def _begun(parts: Sequence[Space], target: Target, effort: Effort, known: float) -> list[Blocks]:
    """Return the search of blocks of every part, all of it rated; the free chains of the parts are known then, too."""
    searches = [Blocks(part, target, effort, known=known) for part in parts]
    settings = [Settings.of(part, cuts=effort.cuts) for part in parts]
    unknown = {number: each for number, each in enumerate(settings) if not each.known_chains()}
    chains: dict[int, list[FreeChain]] = {number: [] for number in unknown}
    # What takes longest goes first.
    tasks: list[Task[Any]] = [
        Task(partial(each.free_chains, size), chains[number].extend)
        for number, each in unknown.items()
        for size in each.sizes
    ]
    share = _BEGUN / (effort.closer + 1)
    for number in range(effort.closer + 1):
        for each in searches:
            keys = each.near() if number else each.rough()
            for at, key in enumerate(keys):
                in_any_case = number == 0 and at < _RATED
                find = partial(each.rate, key) if in_any_case else partial(_rated, each, key, effort)
                tasks.append(Task(find, partial(each.found.__setitem__, key)))
        part = effort.between(share * number, share * (number + 1))
        do(tasks, processes=effort.processes, tell=part.tell)
        tasks = []
    for number, one in unknown.items():
        one.enter(chains[number])
    return searches


def _rated(search: Blocks, key: Key, effort: Effort) -> Rated:
    """Rate a key; nothing is rated once a time limit is over."""
    return Rated((), 0) if effort.expired() else search.rate(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """What some parts of a space brought: drafts in the space, how many columns were rated, plans judged or solved."""

    drafts: tuple[Draft, ...]
    columns: int
    nodes: int


@dataclass(slots=True)
class _Search:
    """A search of some parts of a space, one after the other; `known` is the goal's figure of the best plan so far."""

    space: Space
    target: Target
    effort: Effort
    known: float

    def run(self, begun: Sequence[Blocks]) -> _Found:
        drafts: list[Draft] = []
        columns = nodes = 0
        for number, one in enumerate(begun):
            if drafts and self.effort.expired():
                break
            part, share = one.space, self.effort.between(number / len(begun), (number + 1) / len(begun))
            one.effort, one.known = share.between(0.0, 0.3), self.known
            blocks = one.run()
            search = Mixing(part, self.target, share.between(0.3, 1.0))
            known = min([self.known, *(draft.figures[self.target.goal] for draft in blocks)])
            found = blocks
            if not blocks or not self.effort.expired():
                found = search.improved([*blocks, *search.drafts(search.ranked(known), known)])
            if part is not self.space:
                found = [in_space(draft, part, self.space) for draft in found]
                found += elsewhere(Assessor(self.space, self.target), found)
            self.known = min([known, *(draft.figures[self.target.goal] for draft in found)])
            drafts += found
            columns += one.rated + sum(len(known) for known in search.settings.columns.values())
            nodes += one.judged + search.wholes.solved
        return _Found(drafts=tuple(drafts), columns=columns, nodes=nodes)


class Mixing:
    """One search: settings, what they promise, and the drafts that they become."""

    def __init__(self, space: Space, target: Target, effort: Effort) -> None:
        self.space, self.target, self.effort = space, target, effort
        self.settings = Settings.of(space, cuts=effort.cuts)
        self.kinds = self.settings.kinds
        self.promises = Promises(space, target, self.settings)
        self.assessor = Assessor(space, target)
        self.wholes = WholeMixes(space, self.settings, self.promises, self.assessor)

    def ranked(self, known: float = np.inf) -> list[Promise]:
        """Return what settings promise, best first; settings that can't come near the best one are passed over.

        `known` is the value of a plan that is known already.
        """
        found: list[Promise] = []
        best = known
        work = self._work_s()
        settings = enumerate(self.settings.every())
        estimated = [(self._estimate(setting, work), number, setting) for number, setting in settings]
        for number, (least, _, setting) in enumerate(sorted(estimated, key=lambda entry: entry[:2])):
            self.effort.tell(0.6 * number / len(estimated))
            if self.effort.expired() and (found or np.isfinite(known)):
                break
            promise = self.promises.of(setting, least - self.settings.sync_s(setting, TYPICAL_PIPELINES), best * _SLACK)
            if promise is not None:
                found.append(promise)
                best = min(best, promise.value)
        different = {(promise.setting.cut, significant(promise.value)): promise for promise in reversed(found)}
        return sorted(different.values(), key=lambda promise: promise.value)

    def _work_s(self) -> dict[int, float]:
        """Return, per row, the device-seconds of a sample by its fastest kind."""
        each: dict[int, float] = {}
        for kind in self.kinds.members:
            for size in self.settings.sizes:
                table = self.space.table(kind.pool, kind.tp, size, recompute=False)
                spent = float(table.compute_s(0, table.layers)) * kind.tp / size
                each[kind.row] = min(each.get(kind.row, np.inf), spent)
        return each

    def _estimate(self, setting: Setting, work: dict[int, float]) -> float:
        """Return about the least time of an iteration, all devices at work all the time and sums after it."""
        rows = {self.kinds.members[k].row for k in setting.members}
        rate = sum(self.space.candidates.rows[row].devices / work[row] for row in rows)
        return self.space.batch / rate + self.settings.sync_s(setting, TYPICAL_PIPELINES)

    def drafts(self, promises: list[Promise], known: float = np.inf) -> list[Draft]:
        """Return the drafts of the most promising settings, after pricing in columns that fit them better."""
        drafts: list[Draft] = []
        best = known
        for number, promise in enumerate(promises[: self.effort.settings]):
            self.effort.tell(0.6 + 0.3 * number / self.effort.settings)
            if promise.value >= best or (self.effort.expired() and np.isfinite(best)):
                break
            for _ in range(_PRICING_ROUNDS):
                if not self._price_in(promise):
                    break
                promise = self.promises.of(promise.setting, promise.iteration_s * 0.5, promise.value) or promise
            for fitting in (True, False):
                found = self.wholes.near(promise, fitting=fitting, best=best)
                drafts += found
                best = min([best, *(draft.figures[self.target.goal] for draft in found)])
        return drafts

    def improved(self, drafts: list[Draft]) -> list[Draft]:
        """Return the drafts and what the best ones of different cuts become step by step."""
        first: dict[object, Draft] = {}
        for draft in sorted(drafts, key=Draft.order):
            first.setdefault((draft.pipelines[0].cut, len(draft.pipelines)), draft)
        grown = list(drafts)
        tasks = [
            Task(partial(self._refined, draft), grown.extend) for draft in list(first.values())[: self.effort.refined]
        ]
        do(tasks, processes=self.effort.processes, tell=self.effort.between(0.9, 1.0).tell)
        return grown

    def _refined(self, draft: Draft) -> list[Draft]:
        return [] if self.effort.expired() else refined(self.assessor, draft, self.assessor.keeps)

    def _price_in(self, promise: Promise) -> bool:
        """Generate columns at the prices of the master at a promise; False if there are no new ones."""
        setting, master = promise.setting, self.promises.master
        seconds = promise.iteration_s - self.settings.sync_s(setting, promise.pipelines)
        columns = self.settings.columns_of(setting)
        mixed = None if columns is None else master.relaxed(columns, seconds, promise.pipelines)
        if mixed is None or mixed.batch_price <= 0:
            return False
        price = (mixed.device_price + master.device_rates) / mixed.batch_price
        # Kinds that the setting does without are priced out.
        rows = {self.kinds.members[k].row for k in setting.members}
        price = np.where(np.isin(np.arange(len(price)), sorted(rows)), price, 1e9)
        fresh = False
        for size in self.settings.sizes:
            bottleneck = np.geomspace(seconds / self.space.batch, seconds, 2 * BOTTLENECKS)
            prices = np.repeat(price[:, None], len(bottleneck), axis=1)
            lanes = Lanes(bottleneck_s=bottleneck, fill_price=size / bottleneck, device_price=prices)
            fresh |= self.settings.add(setting.cut, size, lanes)
        return fresh
