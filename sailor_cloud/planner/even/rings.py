"""Gradient sums of even batches: what a ring takes at least, inside a node or beyond."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.network import Link
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.space import Space
from sailor_cloud.simulator import StageTable, gradient_sync_s

Floats = NDArray[np.float64]

# With more groups than this a search that tells all of them apart by where their rings stand takes minutes.
_MOST_GROUPS = 16
# Sums of so many numbers of holders and bytes are kept, link by link.
_ASKED = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Stages of one accelerator and tp, all in one area: a region, or None for several. `members` index the kinds."""

    accelerator: str
    tp: int
    area: str | None
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rings:
    """Sums of so many replicas; where these `differ`, one is of a known kind, others have a device at least."""

    replicas: int
    differ: bool = False

    def devices(self, tp: int) -> int:
        """Return the devices that a stage's replicas take at least, one of them of `tp`."""
        return tp + (self.replicas - 1) * (1 if self.differ else tp)

    def leaving(self, left: int, tp: int) -> int:
        """Return how many pipelines leave a node that holds all replicas of a stage, and has so many devices `left`.

        tp: of the neighbour of the stage; one pipeline leaves, others may stay as far as there is room.
        """
        stay = max(left, 0) // (1 if self.differ else tp)
        return 1 + max(0, self.replicas - 1 - stay)


@dataclass(slots=True)
class RingSums:
    """The least seconds of sums by group; links are the best between any of a group's rows."""

    space: Space
    kinds: Kinds
    groups: tuple[Group, ...]
    regions: tuple[str, ...]
    told_apart: bool
    _sums: dict[Rings, Floats] = field(default_factory=dict)
    _every: list[Link] | None = None
    _each: dict[tuple[int, bytes], dict[Link, Floats]] = field(default_factory=dict)

    def seconds(self, rings: Rings) -> Floats:
        """Return the least seconds of a stage's gradient sums, shape [kind, first, end]; kinds as in `costs`.

        Where replicas differ, one of them is of the group, the others may be of any.
        """
        if rings not in self._sums:
            links = [self._across(group, rings) for group in self.groups]
            if self.twice(rings):
                links += [self._within(group, rings) for group in self.groups]
            elif rings.replicas > 1:
                # A ring may stand inside a node or not: the faster links count.
                links = [
                    [*found, *self._within(group, rings)] if self.inside(group, rings) else found
                    for group, found in zip(self.groups, links, strict=True)
                ]
            sums = [self._sum_s(group, rings, found) for group, found in zip(cycle(self.groups), links)]
            self._sums[rings] = np.stack(sums)
        return self._sums[rings]

    def twice(self, rings: Rings) -> bool:
        """Return whether rings inside a node are told from others: where there may be any, and few groups."""
        few = len(self.groups) <= _MOST_GROUPS
        return few and rings.replicas > 1 and any(self.inside(group, rings) for group in self.groups)

    def inside(self, group: Group, rings: Rings) -> bool:
        """Return whether a node may hold all replicas of a stage, one of them of the group."""
        spread = self.told_apart and group.area is None and not rings.differ
        rooms = [self.space.pools[self.kinds.members[k].pool].devices for k in group.members]
        return not spread and max(rooms) >= rings.devices(group.tp)

    def _within(self, group: Group, rings: Rings) -> list[Link]:
        """Return the links inside nodes that may hold a whole ring."""
        kinds = [self.kinds.members[k] for k in group.members]
        able = [kind for kind in kinds if self.space.pools[kind.pool].devices >= rings.devices(group.tp)]
        counts = self._pairs(group, rings)
        found = [
            self.space.link(kind.pool, kind.pool, same_node=True, pairs=count) for kind in able for count in counts
        ]
        return list(dict.fromkeys(found))

    def _across(self, group: Group, rings: Rings) -> list[Link]:
        """Return links of which a ring that leaves its node has at least one that is no faster than the fastest."""
        space, replicas = self.space, rings.replicas
        kinds = [self.kinds.members[k] for k in group.members]
        if replicas < 2:
            return []
        if rings.differ:
            others = {kind.pool: kind for kind in self.kinds.members}.values()
            both = [(a.pool, b.pool) for a in kinds for b in others]
            pairs = [each for a, b in both for each in ((a, b), (b, a))]
        else:
            room = {kind.row: space.candidates.rows[kind.row].devices // group.tp for kind in kinds}
            spread = self.told_apart and group.area is None
            pairs = [
                (a.pool, b.pool)
                for a in kinds
                for b in kinds
                if not (a.row == b.row and (spread or room[a.row] < replicas))
                and not (spread and self.regions[a.row] == self.regions[b.row])
            ]
        # None for fewer than two replicas, and where there are too few devices for them.
        counts = self._pairs(group, rings)
        return list(dict.fromkeys(space.link(a, b, same_node=False, pairs=each) for a, b in pairs for each in counts))

    def _any_links(self) -> list[Link]:
        """Return the links between any two stages, each once."""
        if self._every is None:
            members = self.kinds.members
            found = [
                self.space.link(a.pool, b.pool, same_node=False, pairs=pairs)
                for a in members
                for b in members
                for pairs in {a.tp, b.tp}
            ]
            found += [
                self.space.link(kind.pool, kind.pool, same_node=True, pairs=kind.tp)
                for kind in members
                if 2 * kind.tp <= self.space.pools[kind.pool].devices
            ]
            self._every = list(dict.fromkeys(found))
        return self._every

    def _sum_s(self, group: Group, rings: Rings, links: list[Link]) -> Floats:
        layers = self.space.layers
        first, end = np.indices((layers + 1, layers + 1))
        end = np.maximum(first, end)
        tables = [self._table(each) for each in (self.groups if rings.differ else (group,))]
        tied = min(float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter) for table in tables)
        ends = (first == 0).astype(np.float64) + (end == layers)
        # Any of a ring's members may say how much it is.
        nbytes = np.maximum(np.min([table.gradient_bytes(first, end) for table in tables], axis=0) - tied * ends, 0.0)
        replicas = rings.replicas
        seconds = self._ring_s(nbytes, replicas, links)
        if not tied:
            return seconds
        # The first and the last stage sum a tied weight when they are through with their own layers.
        alone = (first == 0) & (end == layers)
        both = self._ring_s(np.array([tied]), 2 * replicas, self._any_links())[0]
        one = self._ring_s(np.array([tied]), replicas, self._any_links())[0]
        return np.asarray(seconds + np.where(alone, one, np.where(ends > 0, both, 0.0)))

    def _table(self, group: Group) -> StageTable:
        kind = self.kinds.members[group.members[0]]
        return self.space.table(kind.pool, kind.tp, 1, recompute=False)

    def _pairs(self, group: Group, rings: Rings) -> list[int]:
        """Return how many pairs of devices may send at once in a ring of the group: those of the smallest member."""
        return sorted({each.tp for each in self.groups if each.tp <= group.tp}) if rings.differ else [group.tp]

    def _ring_s(self, nbytes: Floats, holders: int, links: list[Link]) -> Floats:
        if holders < 2 or not links:
            return np.zeros(nbytes.shape)
        engine = self.space.scenario.engine
        distinct, where = np.unique(nbytes, return_inverse=True)
        # Groups have many links in common.
        asked = (holders, distinct.tobytes())
        if asked not in self._each:
            while len(self._each) >= _ASKED:
                del self._each[next(iter(self._each))]
            self._each[asked] = {}
        known = self._each[asked]
        for link in links:
            if link not in known:
                known[link] = gradient_sync_s(distinct, holders, link, engine=engine)
        each = [known[link] for link in links]
        return np.asarray(np.min(each, axis=0)[where].reshape(nbytes.shape))
