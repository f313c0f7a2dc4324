"""The costs of even batches by the product's own closed form: what no real nodes of a job's resources undercut."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.network import Link
from sailor_cloud.planner.even.costs import StageCosts
from sailor_cloud.planner.kinds import Kind, Kinds
from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.simulator import gradient_sync_s
from sailor_cloud.simulator.scenario import Transfers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Longer pipelines than this are not looked at.
MAX_STAGES = 12
# Regions are told apart while there are at most so many pairs of accelerator and region.
_MOST_PAIRS = 6

# How much of a cut's seconds keeps the stage before it and the one behind it busy.
_BUSY = {Transfers.BLOCKING: (1.0, 1.0), Transfers.RECEIVER: (0.5, 1.0), Transfers.OVERLAPPED: (0.0, 0.0)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Stages of one accelerator and tp, all in one area: a region, or None for several. `members` index the kinds."""

    accelerator: str
    tp: int
    area: str | None
    members: tuple[int, ...]


@dataclass(slots=True)
class Tables:
    """Costs by group; links are the best between any of a group's rows, on the rows' largest nodes."""

    space: Space
    kinds: Kinds
    groups: tuple[Group, ...] = field(init=False)
    pools: tuple[tuple[str, str | None], ...] = field(init=False)
    regions: tuple[str, ...] = field(init=False)
    lengths: frozenset[int] | None = None
    _cuts: dict[int, Floats] = field(default_factory=dict)
    _stages: dict[tuple[int, int, int], tuple[Floats, Floats] | None] = field(default_factory=dict)
    _sums: dict[int, Floats] = field(default_factory=dict)
    _least_sums: dict[int, Floats] = field(default_factory=dict)
    _every: list[Link] | None = None

    def __post_init__(self) -> None:
        rows, catalog = self.space.candidates.rows, self.space.scenario.catalog
        self.regions = tuple(catalog.region_of(row.zone) for row in rows)
        used = sorted({(rows[kind.row].accelerator, self.regions[kind.row]) for kind in self.kinds.members})
        apart = len({region for _, region in used}) > 1 and len(used) <= _MOST_PAIRS
        names = sorted({name for name, _ in used})
        self.pools = tuple((name, None) for name in names) + (tuple(used) if apart else ())
        self.groups = tuple(
            Group(accelerator=name, tp=tp, area=area, members=members)
            for name, area in self.pools
            for tp in sorted({kind.tp for kind in self.kinds.members})
            if (members := self._members(name, tp, area))
        )

    @property
    def use(self) -> Ints:
        """Devices of one replica, shape [group, pool]; a pool of a region counts what stands there alone."""
        return np.array(
            [
                [group.tp * (group.accelerator == name and area in (None, group.area)) for name, area in self.pools]
                for group in self.groups
            ],
            dtype=np.int64,
        )

    @property
    def devices(self) -> Ints:
        """Devices of each pool."""
        found = []
        for name, area in self.pools:
            rows = {self.kinds.members[k].row for k in self._members(name, None, area)}
            found.append(sum(self.space.candidates.rows[row].devices for row in rows))
        return np.array(found, dtype=np.int64)

    def costs(self, size: int, replicas: int, held: int) -> StageCosts | None:
        """Return the costs where stages hold the activations of at most `held` microbatches; None if nothing fits."""
        stages = self._stage_tables(size, replicas, held)
        if stages is None:
            return None
        compute, update = stages
        cuts = self._boundaries(size)
        after, before = _BUSY[self.space.scenario.execution.transfers]
        return StageCosts(
            size=size,
            use=self.use,
            compute_s=compute,
            after_s=after * cuts,
            before_s=before * cuts,
            after_way_s=cuts / 2.0,
            before_way_s=cuts / 2.0,
            first_after=np.ones(MAX_STAGES),
            last_before=1.0,
            update_s=update,
        )

    def sync_s(self, replicas: int) -> Floats:
        """Return the least seconds of a stage's gradient sums, shape [group, first, end]."""
        if replicas not in self._sums:
            self._sums[replicas] = np.stack(
                [self._sum_s(group, replicas, self._links(group, replicas)) for group in self.groups]
            )
        return self._sums[replicas]

    def least_sync_s(self, replicas: int) -> Floats:
        """Return the least seconds of a stage's gradient sums where its replicas differ, shape [group, first, end].

        One of them is of the group, the others may be of any.
        """
        if replicas not in self._least_sums:
            sums = [self._sum_s(group, replicas, self._any_neighbour(group, replicas)) for group in self.groups]
            self._least_sums[replicas] = np.stack(sums)
        return self._least_sums[replicas]

    def _members(self, name: str, tp: int | None, area: str | None) -> tuple[int, ...]:
        rows = self.space.candidates.rows
        return tuple(
            k
            for k, kind in enumerate(self.kinds.members)
            if rows[kind.row].accelerator == name and tp in (None, kind.tp) and area in (None, self.regions[kind.row])
        )

    def _stage_tables(self, size: int, replicas: int, held: int) -> tuple[Floats, Floats] | None:
        sharers = replicas if self.space.zero_stage else min(replicas, 2)
        key = (size, sharers, min(held, MAX_STAGES))
        if key not in self._stages:
            self._stages[key] = self._build(*key)
        return self._stages[key]

    def _build(self, size: int, sharers: int, held: int) -> tuple[Floats, Floats] | None:
        layers = self.space.layers
        first, end = np.indices((layers + 1, layers + 1))
        empty, end = end <= first, np.maximum(first, end)
        if self.lengths is not None:
            empty |= ~np.isin(end - first, sorted(self.lengths))
        compute = np.full((MAX_STAGES, len(self.groups), layers + 1, layers + 1), np.inf)
        update = np.zeros((len(self.groups), layers + 1, layers + 1))
        for g, group in enumerate(self.groups):
            kind = self.kinds.members[group.members[0]]
            seat = Seat(kind.pool, kind.tp, 0)
            for index in range(MAX_STAGES):
                flight = min(index + 1, held)
                spent = self.space.stages_s(seat, size, in_flight=flight, replicas=sharers)
                compute[index, g] = np.where(empty, np.inf, spent)
            table = self.space.table(kind.pool, kind.tp, size, recompute=False)
            update[g] = table.update_s(first, end, shards=sharers)
        return (compute, update) if np.isfinite(compute).any() else None

    def _boundaries(self, size: int) -> Floats:
        """Return the least seconds of a cut, shape [group, next group, cut]."""
        if size not in self._cuts:
            rows = [np.stack([self._boundary(src, dst, size) for dst in self.groups]) for src in self.groups]
            self._cuts[size] = np.stack(rows)
        return self._cuts[size]

    def _boundary(self, src: Group, dst: Group, size: int) -> Floats:
        """A group of several regions has a replica outside the region of its neighbour."""
        far = None in (src.area, dst.area) and src.area != dst.area
        known: dict[tuple[object, ...], Floats] = {}
        for a in src.members:
            for b in dst.members:
                one, other = self.kinds.members[a], self.kinds.members[b]
                if far and self._told_apart and self.regions[one.row] == self.regions[other.row]:
                    continue
                key = (one.pool, other.pool, one.row == other.row)
                known[key] = self._cut_s(one, other, size)
        if not known:
            return np.zeros(self.space.layers + 1)
        return np.asarray(np.min(list(known.values()), axis=0))

    @property
    def _told_apart(self) -> bool:
        return any(area is not None for _, area in self.pools)

    def _cut_s(self, src: Kind, dst: Kind, size: int) -> Floats:
        together = src.row == dst.row and src.tp + dst.tp <= self.space.pools[src.pool].devices
        return self.space.boundary(Seat(src.pool, src.tp, 0), Seat(dst.pool, dst.tp, 0 if together else 1), size)

    def _sum_s(self, group: Group, replicas: int, links: list[Link]) -> Floats:
        layers = self.space.layers
        first, end = np.indices((layers + 1, layers + 1))
        end = np.maximum(first, end)
        kind = self.kinds.members[group.members[0]]
        table = self.space.table(kind.pool, kind.tp, 1, recompute=False)
        tied = float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter)
        ends = (first == 0).astype(np.float64) + (end == layers)
        nbytes = np.maximum(table.gradient_bytes(first, end) - tied * ends, 0.0)
        seconds = self._ring_s(nbytes, replicas, links)
        if not tied:
            return seconds
        # The first and the last stage sum a tied weight when they are through with their own layers.
        alone = (first == 0) & (end == layers)
        both = self._ring_s(np.array([tied]), 2 * replicas, self._any_links())[0]
        one = self._ring_s(np.array([tied]), replicas, self._any_links())[0]
        return np.asarray(seconds + np.where(alone, one, np.where(ends > 0, both, 0.0)))

    def _ring_s(self, nbytes: Floats, holders: int, links: list[Link]) -> Floats:
        if holders < 2 or not links:
            return np.zeros(nbytes.shape)
        bucket = self.space.scenario.execution.bucket_bytes
        distinct, where = np.unique(nbytes, return_inverse=True)
        each = [gradient_sync_s(distinct, holders, link, bucket_bytes=bucket) for link in links]
        return np.asarray(np.min(each, axis=0)[where].reshape(nbytes.shape))

    def _links(self, group: Group, replicas: int) -> list[Link]:
        """Return links of which a ring over so many replicas has at least one that is no faster than the fastest."""
        space = self.space
        kinds = [self.kinds.members[k] for k in group.members]
        room = {kind.row: space.candidates.rows[kind.row].devices // group.tp for kind in kinds}
        spread = self._told_apart and group.area is None
        if replicas < 2:
            return []
        inside = [kind for kind in kinds if replicas * group.tp <= space.pools[kind.pool].devices and not spread]
        found = [space.link(kind.pool, kind.pool, same_node=True, pairs=group.tp) for kind in inside]
        for a in kinds:
            for b in kinds:
                if a.row == b.row and (spread or room[a.row] < replicas):
                    continue
                if spread and self.regions[a.row] == self.regions[b.row]:
                    continue
                found.append(space.link(a.pool, b.pool, same_node=False, pairs=group.tp))
        # None for fewer than two replicas, and where there are too few devices for them.
        return list(dict.fromkeys(found))

    def _any_neighbour(self, group: Group, replicas: int) -> list[Link]:
        """Return links of which a ring has at least one that is no faster than the fastest, beside one of a group."""
        space = self.space
        kinds = [self.kinds.members[k] for k in group.members]
        if replicas < 2:
            return []
        # The others may have one device each.
        inside = [kind for kind in kinds if group.tp + replicas - 1 <= space.pools[kind.pool].devices]
        found = [space.link(kind.pool, kind.pool, same_node=True, pairs=group.tp) for kind in inside]
        for a in kinds:
            for b in {kind.pool: kind for kind in self.kinds.members}.values():
                found.append(space.link(a.pool, b.pool, same_node=False, pairs=group.tp))
                found.append(space.link(b.pool, a.pool, same_node=False, pairs=group.tp))
        return list(dict.fromkeys(found))

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
