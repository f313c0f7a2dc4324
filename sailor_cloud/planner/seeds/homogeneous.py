"""Homogeneous plans: equal pipelines on nodes of one offer, found in a fraction of a second.

They are the first result of a search, the price of insisting on an accelerator, zone or market, and the start of
searches in smaller spaces.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.improvement.sizing import with_balanced_sizes
from sailor_cloud.planner.seeds.group_search import draw_on_all_accelerators
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.restrictions import simple_zero_stages
from sailor_cloud.planner.space.space import Seat, Space
from sailor_cloud.simulator import in_flight

Floats = NDArray[np.float64]

# Limits: stages of a pipeline; numbers of nodes, as multiples of the fewest that hold one; layouts judged for each
# number of nodes; and how much slower than the best one their passes alone may be.
_STAGES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_MULTIPLES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_JUDGED, _SLACK = 3, 1.3
# Represents all nodes of several zones; the turn before which all accelerators are judged together, and that turn if
# the job has limits, since such plans break them most; and the turns that give a first impression of a job.
_ALL, _TOGETHER, _LIMITED, _FIRST = 1 << 30, 1, 2, 2


@dataclass(frozen=True, slots=True)
class _Sort:
    """Equal stages of `tp` devices: `pipelines` pipelines on `nodes` nodes, with equally many stages on each node."""

    stages: int
    tp: int
    pipelines: int
    nodes: int


@dataclass(frozen=True, slots=True)
class _Paced:
    """A sort at one microbatch size: its cut, the busiest stage's seconds and those of all stages."""

    sort: _Sort
    size: int
    cut: tuple[int, ...]
    busiest_s: float
    all_s: float

    def passes_s(self, replicas: int, batch: int) -> float:
        """Return the seconds of all passes of an iteration, without transfers and all-reduces."""
        rounds = -(-batch // (replicas * self.size))
        return (rounds - 1) * self.busiest_s + self.all_s


@dataclass(slots=True)
class Homogeneous:
    """Draws homogeneous plans of a space at one ZeRO stage."""

    space: Space
    target: Target
    assessor: Assessor = field(init=False)
    _paced: dict[tuple[str, int, int, int], list[_Paced]] = field(default_factory=dict)
    _turns: list[list[tuple[list[int], int]]] = field(init=False)
    # The plans of the turns so far.
    _drawn: list[list[Draft]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.assessor = Assessor(self.space, self.target)
        self._turns = self._planned_turns()

    def draw(self, *, first: bool) -> list[Draft]:
        """Return the best plan on each number of nodes of each offer, and on those of several zones together.

        With `first`, only the plans on the fewest and on most nodes. A search may end at any moment: for each offer,
        the fewest nodes come first, then most nodes, then all zones. All accelerators together come before or after
        most nodes.
        """
        wanted = self._turns[:_FIRST] if first else self._turns
        together = _LIMITED if self.target.limits else _TOGETHER
        for number in range(len(self._drawn), len(wanted)):
            if number == together and self._limited:
                draw_on_all_accelerators(self.space, self.target)
            drafts: list[Draft] = []
            for pools, nodes in wanted[number]:
                drafts += self._over_zones(pools) if nodes == _ALL else self._on_nodes(pools, nodes)
            self._drawn.append(drafts)
        return [draft for drafts in self._drawn[: len(wanted)] for draft in drafts]

    @property
    def _limited(self) -> bool:
        """Whether a time limit may end the search at any moment; its incumbents are then recorded."""
        known = self.space.known
        return known.record is not None and known.deadline.at_s < math.inf

    def _planned_turns(self) -> list[list[tuple[list[int], int]]]:
        """Return for each turn the pools of each kind of node, and the number of nodes that are tried."""
        kinds, turns = self._kinds(), []
        for pools in kinds:
            most = max(self.space.pools[index].max_nodes for index in pools)
            fewest, *others = sorted({*(number for number in _MULTIPLES if number <= most), most} - {0}) or [0]
            turns.append((fewest, *reversed(others[-1:]), _ALL, *reversed(others[:-1])))
        return [
            [(pools, nodes) for pools, nodes in zip(kinds, turn, strict=True) if nodes] for turn in zip_longest(*turns)
        ]

    def _on_nodes(self, pools: Sequence[int], nodes: int) -> Iterator[Draft]:
        best = self._best(self._promising(pools[0], nodes), [(pools[0], nodes)])
        if best is None:
            return
        paced, draft = best
        if nodes <= self.space.pools[pools[0]].max_nodes:
            yield draft
        for pool in pools[1:]:
            moved = self._best([paced], [(pool, nodes)]) if nodes <= self.space.pools[pool].max_nodes else None
            if moved is not None:
                yield moved[1]

    def _kinds(self) -> list[list[int]]:
        """Return the pools by instance type, each cheapest first, without more expensive types with as many devices."""
        cheapest: dict[tuple[object, ...], int] = {}
        for index, pool in enumerate(self.space.pools):
            key = (pool.row, pool.offer.market, pool.devices)
            if self.space.rates[index].expected < self.space.rates[cheapest.setdefault(key, index)].expected:
                cheapest[key] = index
        kinds: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for index in sorted(cheapest.values(), key=lambda index: (self.space.rates[index].expected, index)):
            pool = self.space.pools[index]
            kinds[pool.offer.provider, pool.offer.instance_type, pool.accelerator.name].append(index)
        return [kinds[key] for key in sorted(kinds)]

    def _promising(self, pool: int, nodes: int) -> list[_Paced]:
        devices = self.space.pools[pool].devices
        rated: dict[_Sort, tuple[float, _Paced]] = {}
        for sort in _sorts(devices, self.space.tp_degrees[pool], nodes, self.space.layers):
            replicas = nodes // sort.nodes * sort.pipelines
            for paced in self._sizes(pool, sort, replicas):
                if replicas * paced.size > self.space.batch:
                    break
                value = paced.passes_s(replicas, self.space.batch)
                if sort not in rated or value < rated[sort][0]:
                    rated[sort] = value, replace(paced, sort=sort)
        ordered = sorted(rated.values(), key=lambda entry: (entry[0], entry[1].sort.stages, entry[1].sort.tp))
        best = [paced for value, paced in ordered if value <= _SLACK * ordered[0][0]][:_JUDGED]
        return [replace(paced, sort=sort) for paced in best for sort in _placed(paced.sort, devices, nodes)]

    def _sizes(self, pool: int, sort: _Sort, replicas: int) -> list[_Paced]:
        """Return a sort at each power of two of samples that fits, computed once for all offers of an accelerator."""
        # The memory of a sharded optimizer depends on the number of replicas; without ZeRO, two replicas represent any
        # number.
        sharers = replicas if self.space.zero_stage else min(replicas, 2)
        key = (self.space.pools[pool].accelerator.name, sort.stages, sort.tp, sharers)
        if key not in self._paced:
            found: list[_Paced] = []
            size = 1
            while size <= self.space.batch:
                paced = self._pace(pool, sort, size, sharers)
                if paced is None or (found and paced.busiest_s / size > 1.02 * found[-1].busiest_s / found[-1].size):
                    break
                found.append(paced)
                size *= 2
            self._paced[key] = found
        return self._paced[key]

    def _pace(self, pool: int, sort: _Sort, size: int, replicas: int) -> _Paced | None:
        seat = Seat(pool, sort.tp, 0)
        stages = [
            self.space.stages_s(seat, size, in_flight=int(in_flight(sort.stages, s, sort.stages)), replicas=replicas)
            for s in range(sort.stages)
        ]
        cut = _balanced(stages)
        if cut is None:
            return None
        seconds = [float(each[first, end]) for each, first, end in zip(stages, cut[:-1], cut[1:], strict=True)]
        return _Paced(sort, size, cut, max(seconds), sum(seconds))

    def _best(self, drawn: Sequence[_Paced], places: Sequence[tuple[int, int]]) -> tuple[_Paced, Draft] | None:
        """Return the fastest of some pipelines on nodes of some pools, and its plan."""
        best, least_s = None, math.inf
        for paced in drawn:
            draft = self._draft(paced, self._on(paced, places), least_s)
            if draft is not None and draft.figures[Figure.ITERATION_S] < least_s:
                best, least_s = (paced, draft), draft.figures[Figure.ITERATION_S]
        return None if best is None else (best[0], replace(best[1], zero_stage=self.space.zero_stage))

    def _draft(self, paced: _Paced, shapes: list[Shape], least_s: float) -> Draft | None:
        """Return the draft of pipelines; if microbatches of this size can't make up the batch, with other sizes."""
        if self.space.batch % paced.size and not self.space.even_batches:
            count = -(-self.space.batch // (len(shapes) * paced.size))
            draft = with_balanced_sizes(self.assessor, shapes, count, below_s=least_s)
            if draft is not None:
                return draft
            shapes = [shape._replace(microbatch_size=1) for shape in shapes]
        return self.assessor.draft(shapes, below_s=least_s)

    def _on(self, paced: _Paced, places: Sequence[tuple[int, int]]) -> list[Shape]:
        """Return the pipelines of a sort on nodes of some pools."""
        sort, shapes = paced.sort, []
        for pool, nodes in places:
            each = sort.stages // sort.nodes
            slots = [
                tuple(Slot(pool, first + s // each, sort.tp) for s in range(sort.stages))
                for first in range(0, nodes - sort.nodes + 1, sort.nodes)
                for _ in range(sort.pipelines)
            ]
            shapes += [Shape(slots=those, cut=paced.cut, microbatch_size=paced.size) for those in slots]
        return shapes

    def _over_zones(self, pools: Sequence[int]) -> Iterator[Draft]:
        """Yield plans on all nodes of one market in two zones and in all, the cheapest zones first."""
        markets: dict[str, list[int]] = defaultdict(list)
        for pool in pools:
            markets[self.space.pools[pool].offer.market].append(pool)
        for those in markets.values():
            for count in sorted({2, len(those)} - {1}):
                places = [
                    (pool, self.space.pools[pool].max_nodes)
                    for pool in those[:count]
                    if self.space.pools[pool].max_nodes
                ]
                if len(places) < 2:
                    continue
                nodes = sum(number for _, number in places)
                whole = [paced for paced in self._promising(those[0], nodes) if paced.sort.nodes == 1]
                best = self._best(whole, places)
                if best is not None:
                    yield best[1]


def homogeneous(space: Space, target: Target, *, first: bool = False) -> list[Draft]:
    """Return homogeneous plans of a space, regardless of the limits on money and time.

    With `first`, only a few of each type of node in each zone and market.
    """
    stages = simple_zero_stages(space)
    return [draft for stage in stages for draft in homogeneous_at(space.at(stage), target, first=first)]


def homogeneous_at(space: Space, target: Target, *, first: bool = False) -> list[Draft]:
    """Return homogeneous plans at the ZeRO stage of a space; they are kept for its next search, whatever its limits."""
    known: dict[Figure, Homogeneous] = space.remembered.setdefault("homogeneous", {})
    if target.goal not in known:
        known[target.goal] = Homogeneous(space, target)
    return known[target.goal].draw(first=first)


def _sorts(devices: int, degrees: Sequence[int], nodes: int, layers: int) -> Iterator[_Sort]:
    for tp in degrees:
        if tp & (tp - 1):
            continue
        for stages in _STAGES:
            if stages > layers:
                break
            taken = tp * stages
            if devices % taken == 0:
                yield _Sort(stages, tp, devices // taken, 1)
            elif taken % devices == 0 and devices % tp == 0 and nodes % (taken // devices) == 0:
                yield _Sort(stages, tp, 1, taken // devices)


def _placed(sort: _Sort, devices: int, nodes: int) -> Iterator[_Sort]:
    """Yield a sort, and one with equally many pipelines and one stage per node, whose all-reduces stay inside nodes."""
    yield sort
    if sort.nodes == 1 < sort.stages and nodes % sort.stages == 0:
        yield _Sort(sort.stages, sort.tp, devices // sort.tp, sort.stages)


def _balanced(stages: Sequence[Floats]) -> tuple[int, ...] | None:
    """Return the cut with the least busiest stage; None if no cut fits. `stages`: seconds of [first, end)."""
    layers = len(stages[0]) - 1
    best, before = stages[0][0], []
    for seconds in stages[1:]:
        busiest = np.maximum(best[:, None], seconds)
        before.append(busiest.argmin(axis=0))
        best = busiest.min(axis=0)
    if not np.isfinite(best[layers]):
        return None
    cut = [layers]
    for choices in reversed(before):
        cut.append(int(choices[cut[-1]]))
    return (0, *reversed(cut))
