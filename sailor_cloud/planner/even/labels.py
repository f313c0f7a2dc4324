"""Builds pipelines stage by stage from the first layer on, dropping beginnings that can't win."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import Chain, StageCosts
from sailor_cloud.planner.even.grid import Grid
from sailor_cloud.planner.even.suffix import Suffix, least_neighbours

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

# Beginnings that are extended at once, so that memory stays small.
_AT_ONCE = 2000
# Rounds in which beginnings are compared with the best of their group.
_COMPARISONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Beginnings of pipelines, one entry each.

    root: the vector that the whole pipeline uses; left: what is left of it for `following` more stages of `stages` in
    all; kind, end: the last stage so far; parent: the index of the beginning one stage shorter. open_s: how long the
    last stage is busy but for the cut after it; busiest_s, sync_s, update_s: the most of any stage before (of the last
    one, too, for the latter two); way_s: the way of one microbatch so far; held: [labels, limits], what counts against
    other limits.
    """

    root: Ints
    stages: Ints
    following: Ints
    kind: Ints
    end: Ints
    left: Ints
    parent: Ints
    open_s: Floats
    busiest_s: Floats
    way_s: Floats
    sync_s: Floats
    update_s: Floats
    held: Ints

    def __len__(self) -> int:
        return len(self.root)

    def __getitem__(self, chosen: Ints | Bools | slice) -> Labels:
        return Labels(**{part.name: getattr(self, part.name)[chosen] for part in fields(self)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """One number of replicas at one microbatch size.

    microbatches: of the replica that has most. every: whether a pipeline that costs no less than another may be the
    better one in place. cuts_s: [vectors], seconds from which on a pipeline of these devices can't win, not above 0
    where none can.
    """

    costs: StageCosts
    sync_s: Floats
    grid: Grid
    suffix: Suffix
    microbatches: int
    every: bool = False
    _least_before: Floats = field(init=False)
    _least_after: Floats = field(init=False)
    _held: Ints = field(init=False)
    _most_held: Ints = field(init=False)

    def __post_init__(self) -> None:
        before, after = least_neighbours(self.costs)
        object.__setattr__(self, "_least_before", before)
        object.__setattr__(self, "_least_after", after)
        held, most = self.costs.held, self.costs.most_held
        nothing = np.zeros((self.costs.kinds, 0), dtype=np.int64)
        object.__setattr__(self, "_held", nothing if held is None else held)
        object.__setattr__(self, "_most_held", nothing[0] if most is None else most)

    def first_stages(self, roots: Ints, cuts_s: Floats) -> tuple[Labels, Floats]:
        """Return the first stages on the vectors `roots` that can still win, with their bounds in seconds."""
        costs, layers = self.costs, self.costs.layers
        stages = np.arange(1, len(self.suffix.way_s) + 1)
        numbers = np.arange(len(roots))
        root, count, kind, end = (
            part.ravel()
            for part in np.meshgrid(numbers, stages, np.arange(costs.kinds), np.arange(1, layers + 1), indexing="ij")
        )
        vectors = self.grid.vectors()
        left = vectors[roots[root]] - costs.use[kind]
        compute = costs.compute_s[count - 1, kind, 0, end]
        possible = np.isfinite(compute) & (left >= 0).all(axis=1) & ((end == layers) == (count == 1))
        possible &= cuts_s[roots[root]] > 0
        root, count, kind, end, left, compute = (part[possible] for part in (root, count, kind, end, left, compute))
        labels = Labels(
            root=roots[root],
            stages=count,
            following=count - 1,
            kind=kind,
            end=end,
            left=self.grid.numbers(left),
            parent=np.full(len(root), -1),
            open_s=compute,
            busiest_s=np.zeros(len(root)),
            way_s=compute,
            sync_s=self.sync_s[kind, 0, end],
            update_s=costs.update_s[kind, 0, end],
            held=self._held[kind],
        )
        within = np.asarray((labels.held <= self._most_held).all(axis=1))
        return self._kept(labels[within], cuts_s)

    def extended(self, labels: Labels, cuts_s: Floats, *, first: bool) -> tuple[Labels, Floats]:
        """Return all beginnings one stage longer that can still win, none worse than another in every way."""
        found: list[tuple[Labels, Floats]] = []
        for start in range(0, len(labels), _AT_ONCE):
            chosen = np.arange(start, min(start + _AT_ONCE, len(labels)))
            found += [
                self._kept(longer, cuts_s)
                for kind in range(self.costs.kinds)
                if (longer := self._with_stage(labels, chosen, kind, first)) is not None
            ]
        if not found:
            return labels[:0], np.zeros(0)
        joined = Labels(
            **{part.name: np.concatenate([getattr(each, part.name) for each, _ in found]) for part in fields(Labels)}
        )
        bounds = np.concatenate([bound for _, bound in found])
        if self.every:
            return joined, bounds
        best = undominated(joined)
        return joined[best], bounds[best]

    def _with_stage(self, labels: Labels, chosen: Ints, kind: int, first: bool) -> Labels | None:
        """Return the beginnings with one more stage of a kind, of every length that fits."""
        costs, layers = self.costs, self.costs.layers
        before = labels[chosen]
        left = self.grid.vectors()[before.left] - costs.use[kind]
        held = before.held + self._held[kind]
        able = (left >= 0).all(axis=1) & (held <= self._most_held).all(axis=1)
        if not able.any():
            return None
        chosen, before, left = chosen[able], before[able], left[able]
        last = before.following == 1
        scale = costs.first_after[np.minimum(before.following, len(costs.first_after) - 1)] if first else 1.0
        behind = np.where(last, costs.last_before, 1.0)
        at = (before.kind, np.full(len(chosen), kind), before.end)
        busiest = np.maximum(before.busiest_s, before.open_s + scale * costs.after_s[at])
        crossed = scale * costs.after_way_s[at] + behind * costs.before_way_s[at]
        way = before.way_s + crossed
        if costs.handed:
            busiest = np.maximum(busiest, crossed / 2.0)
        opened = behind * costs.before_s[at]
        compute = costs.compute_s[before.following - 1, kind, before.end]
        ends = np.arange(layers + 1)
        fits = np.isfinite(compute) & ((ends == layers) == last[:, None])
        fits &= compute + opened[:, None] <= self.suffix.lanes_s[-1]
        row, end = np.nonzero(fits)
        if not len(row):
            return None
        spent = compute[row, end]
        busiest = busiest[row]
        if costs.handed:
            busiest = np.maximum(busiest, (before.open_s[row] + crossed[row] + spent) / 2.0)
        return Labels(
            root=before.root[row],
            stages=before.stages[row],
            following=before.following[row] - 1,
            kind=np.full(len(row), kind),
            end=end,
            left=self.grid.numbers(left)[row],
            parent=chosen[row],
            open_s=opened[row] + spent,
            busiest_s=busiest,
            way_s=way[row] + spent,
            sync_s=np.maximum(before.sync_s[row], self.sync_s[kind, before.end[row], end]),
            update_s=np.maximum(before.update_s[row], costs.update_s[kind, before.end[row], end]),
            held=before.held[row] + self._held[kind],
        )

    def _kept(self, labels: Labels, cuts_s: Floats) -> tuple[Labels, Floats]:
        """Return the beginnings whose bound is below the cut of their vector, and the bounds."""
        bounds = self.bounds_s(labels)
        kept = bounds < cuts_s[labels.root]
        return labels[kept], bounds[kept]

    def bounds_s(self, labels: Labels) -> Floats:
        """Return the least seconds of an iteration of any pipeline that begins so; exact for complete ones."""
        lanes = self.suffix.lanes_s
        repeats = self.microbatches - 1
        busy = np.maximum(labels.busiest_s, labels.open_s + self._least_after[labels.kind, labels.end])
        rest = self.suffix.way_s[labels.following, labels.end, labels.kind, labels.left]
        floor = np.concatenate([[0.0], lanes[:-1]])
        # In a lane the busiest stage of the rest takes more than the lane below allows, or the lane below counts.
        pace = np.maximum(busy[:, None], floor)
        if self.costs.handed:
            pace = np.maximum(pace, (labels.way_s[:, None] + rest) / labels.stages[:, None])
        paced = repeats * pace + rest if repeats else rest
        paced = np.where(busy[:, None] <= lanes, paced, np.inf)
        sync = np.maximum(labels.sync_s, self.suffix.sync_s[labels.following, labels.end, labels.left])
        return np.asarray(paced.min(axis=1) + labels.way_s + sync + labels.update_s)


def undominated(labels: Labels) -> Ints:
    """Return the indices of beginnings without those that another one with the same future beats in every way.

    Not all of them are found: each is compared with the best of its group by a few measures.
    """
    keys = (labels.root, labels.following, labels.kind, labels.end, labels.left)
    measures = (labels.way_s, labels.busiest_s, labels.open_s, labels.sync_s, labels.update_s, *labels.held.T)
    alive = np.arange(len(labels))
    for turn in range(_COMPARISONS):
        lead = measures[turn % 4][alive]
        order = np.lexsort((measures[0][alive], lead, *(key[alive] for key in keys)))
        alive = alive[order]
        same = np.ones(len(alive), dtype=bool)
        for key in keys:
            same[1:] &= key[alive][1:] == key[alive][:-1]
        if len(alive):
            same[0] = False
        heads = np.maximum.accumulate(np.where(same, 0, np.arange(len(alive))))
        beaten = same.copy()
        for measure in measures:
            beaten &= measure[alive] >= measure[alive][heads]
        alive = alive[~beaten]
    return np.sort(alive)


def chain_of(levels: list[Labels], index: int) -> Chain:
    """Return the pipeline of a complete beginning on the last of the levels."""
    kinds: list[int] = []
    cut: list[int] = []
    for labels in reversed(levels):
        kinds.append(int(labels.kind[index]))
        cut.append(int(labels.end[index]))
        index = int(labels.parent[index])
    return Chain(kinds=tuple(reversed(kinds)), cut=(0, *reversed(cut)))
