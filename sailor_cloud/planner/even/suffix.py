"""The least that the rest of a pipeline takes, by dynamic programming from the last stage to the first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import StageCosts
from sailor_cloud.planner.even.grid import Grid

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Suffix:
    """Lower bounds on what follows a stage.

    way_s: [stages that follow, cut, kind before the cut, vector, lane], the way of one microbatch through exactly so
    many more stages that use exactly the devices of the vector (or no more than those, where `at_most`), none busier
    than the lane allows. sync_s: [stages that follow, cut, vector], the longest sum of these stages with no more
    devices. Index 0 of the stages stands for nothing that follows.
    """

    lanes_s: Floats
    way_s: Floats
    sync_s: Floats


def least_neighbours(costs: StageCosts) -> tuple[Floats, Floats]:
    """Return the least that the cuts before and after a stage keep it busy, over all neighbours: [kind, cut] each."""
    before = costs.before_s.min(axis=0)
    before[:, 0] = 0.0
    after = costs.after_s.min(axis=1)
    after[:, -1] = 0.0
    return before, after


def suffix(
    costs: StageCosts, sync_s: Floats, grid: Grid, lanes_s: Floats, stages: int, *, at_most: bool, most_s: Floats
) -> Suffix:
    """Return the bounds on up to `stages` - 1 stages that follow a first one.

    lanes_s ascend. most_s: [lane], ways that are longer are left out; they are of no use.
    """
    return _Program(costs, sync_s, grid, lanes_s, stages, at_most).run(most_s)


class _Program:
    def __init__(
        self, costs: StageCosts, sync_s: Floats, grid: Grid, lanes_s: Floats, stages: int, at_most: bool
    ) -> None:
        self.costs, self.sync_s, self.grid, self.lanes, self.at_most = costs, sync_s, grid, lanes_s, at_most
        self.before, self.after = least_neighbours(costs)
        count, shape = costs.layers + 1, grid.shape
        self.way = np.full((stages, count, costs.kinds, *shape, len(lanes_s)), np.inf)
        self.sync = np.full((stages, count, *shape), np.inf)
        # Behind the last layer nothing follows; devices may be left over only where that is no matter.
        self.over: tuple[slice | int, ...] = tuple(
            slice(None) if at_most and counted else 0 for counted in costs.counted
        )
        self.way[0, -1, :][(slice(None), *self.over)] = 0.0
        self.sync[0, -1] = 0.0

    def run(self, most_s: Floats) -> Suffix:
        for following in range(1, len(self.way)):
            begun = self._stages(following)
            begun[begun > most_s] = np.inf
            if not np.isfinite(begun).any():
                break
            self._hand_on(following, begun)
        flat = self.grid.count
        return Suffix(
            lanes_s=self.lanes,
            way_s=self.way.reshape(*self.way.shape[:3], flat, len(self.lanes)),
            sync_s=self.sync.reshape(*self.sync.shape[:2], flat),
        )

    def _stages(self, following: int) -> Floats:
        """Return the least way from a cut on by the kind of the stage behind it: [kind, cut, *vector, lane]."""
        costs, layers, grid = self.costs, self.costs.layers, self.grid
        factor = costs.last_before if following == 1 else 1.0
        compute = costs.compute_s[following - 1]
        busy = compute + factor * self.before[:, :, None] + self.after[:, None, :]
        # [first, end, kind, lane]
        fits = np.moveaxis(busy, 0, 2)[..., None] <= self.lanes
        spent = np.where(fits, np.moveaxis(compute, 0, 2)[..., None], np.inf)
        sums = np.where(fits[..., -1], np.moveaxis(self.sync_s, 0, 2), np.inf)
        able = fits[..., -1].any(axis=2)
        pad = (slice(None), slice(None), *((None,) * len(grid.most)))
        inner = np.full((layers + 1, costs.kinds, *grid.shape, len(self.lanes)), np.inf)
        longest = np.full((layers + 1, costs.kinds, *grid.shape), np.inf)
        for first in range(1, layers):
            ends = np.array([layers]) if following == 1 else np.arange(first + 1, layers)
            ends = ends[able[first, ends]]
            if len(ends):
                # Nearly always all ends up to some layer.
                there = slice(int(ends[0]), int(ends[-1]) + 1)
                np.min(self.way[following - 1, there] + spent[first, there][pad], axis=0, out=inner[first])
                behind = np.maximum(self.sync[following - 1, there, None], sums[first, there][pad])
                np.min(behind, axis=0, out=longest[first])
        begun = np.full((costs.kinds, layers + 1, *grid.shape, len(self.lanes)), np.inf)
        for k in range(costs.kinds):
            use = grid.shifted(costs.use[k], 1)
            if use is not None:
                source, target = use
                begun[k][target] = inner[:, k][source]
                np.minimum(self.sync[following][target], longest[:, k][source], out=self.sync[following][target])
        return begun

    def _hand_on(self, following: int, begun: Floats) -> None:
        """Add the cut before the first of the following stages, for each kind that may stand before it."""
        costs, target = self.costs, self.way[following]
        factor = costs.last_before if following == 1 else 1.0
        pad = (slice(None), slice(None), *((None,) * (len(self.grid.most) + 1)))
        for k in range(costs.kinds):
            if np.isfinite(begun[k]).any():
                cut = costs.after_way_s[:, k] + factor * costs.before_way_s[:, k]
                np.minimum(target, begun[k][:, None] + cut.T[pad], out=target)
