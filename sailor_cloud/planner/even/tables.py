"""The costs of even batches by the product's own closed form: what no real nodes of a job's resources undercut."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import StageCosts
from sailor_cloud.planner.even.rings import Group, Rings, RingSums
from sailor_cloud.planner.kinds import Kind, Kinds
from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.simulator.engines import Transfers

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Longer pipelines than this are not looked at.
MAX_STAGES = 12
# Regions are told apart while there are at most so many pairs of accelerator and region.
_MOST_PAIRS = 6

# Flows over one network card that are told apart; above, powers of two.
_EXACT_FLOWS = 4
# How much of a cut's seconds keeps the stage before it and the one behind it busy.
_BUSY = {Transfers.BLOCKING: (1.0, 1.0), Transfers.RECEIVER: (0.5, 1.0), Transfers.OVERLAPPED: (0.0, 0.0)}


@dataclass(slots=True)
class Tables:
    """Costs by group; links are the best between any of a group's rows, on the rows' largest nodes.

    within: of pipelines that stand inside one zone each, all in the same one; other members of a ring stand anywhere.
    use: devices of one replica, shape [group, pool]; a pool of a region counts what stands there alone. devices: of
    each pool; those of the zone that has most, where pipelines stand inside one.
    """

    space: Space
    kinds: Kinds
    groups: tuple[Group, ...] = field(init=False)
    pools: tuple[tuple[str, str | None], ...] = field(init=False)
    regions: tuple[str, ...] = field(init=False)
    lengths: frozenset[int] | None = None
    within: bool = False
    use: Ints = field(init=False)
    devices: Ints = field(init=False)
    sums: RingSums = field(init=False)
    _cuts: dict[tuple[int, Rings | None], Floats] = field(default_factory=dict)
    _known_cuts: dict[tuple[object, ...], Floats] = field(default_factory=dict)
    _stages: dict[tuple[int, int, int], tuple[Floats, Floats] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        rows, catalog = self.space.candidates.rows, self.space.scenario.catalog
        self.regions = tuple(catalog.region_of(row.zone) for row in rows)
        used = sorted({(rows[kind.row].accelerator, self.regions[kind.row]) for kind in self.kinds.members})
        apart = len({region for _, region in used}) > 1 and len(used) <= _MOST_PAIRS and not self.within
        names = sorted({name for name, _ in used})
        self.pools = tuple((name, None) for name in names) + (tuple(used) if apart else ())
        self.groups = tuple(
            Group(accelerator=name, tp=tp, area=area, members=members)
            for name, area in self.pools
            for tp in sorted({kind.tp for kind in self.kinds.members})
            if (members := self._members(name, tp, area))
        )
        self.use, self.devices = self._use(), self._devices()
        told_apart = any(area is not None for _, area in self.pools)
        self.sums = RingSums(self.space, self.kinds, self.groups, self.regions, told_apart)

    def _use(self) -> Ints:
        return np.array(
            [
                [group.tp * (group.accelerator == name and area in (None, group.area)) for name, area in self.pools]
                for group in self.groups
            ],
            dtype=np.int64,
        )

    def _devices(self) -> Ints:
        found = []
        for name, area in self.pools:
            there: Counter[str] = Counter()
            for number in {self.kinds.members[k].row for k in self._members(name, None, area)}:
                row = self.space.candidates.rows[number]
                there[row.zone] += row.devices
            found.append(max(there.values()) if self.within else there.total())
        return np.array(found, dtype=np.int64)

    def costs(self, size: int, replicas: int, flight: int, rings: Rings | None = None) -> StageCosts | None:
        """Return the costs where stages hold the activations of at most `flight` microbatches; None if nothing fits.

        With `rings` that fit into a node, kinds come twice: stages whose ring leaves its node, then those whose ring
        stays inside one.
        """
        stages = self._stage_tables(size, replicas, flight)
        if stages is None:
            return None
        compute, update = stages
        use, cuts = self.use, self._boundaries(size, None)
        held = most_held = None
        twice = rings is not None and self.sums.twice(rings)
        if rings is not None and twice:
            inside = np.array([self.sums.inside(group, rings) for group in self.groups])
            compute = np.concatenate([compute, np.where(inside[:, None, None], compute, np.inf)], axis=1)
            use, update = np.concatenate([use, use]), np.concatenate([update, update])
            cuts = self._boundaries(size, rings)
            held, most_held = self._held(rings)
        after, before = _BUSY[self.space.scenario.engine.transfers]
        return StageCosts(
            size=size,
            use=use,
            compute_s=compute,
            after_s=after * cuts,
            before_s=before * cuts,
            after_way_s=cuts / 2.0,
            before_way_s=cuts / 2.0,
            first_after=np.ones(MAX_STAGES),
            last_before=1.0,
            update_s=update,
            handed=self.space.scenario.engine.transfers is Transfers.OVERLAPPED,
            twice=twice,
            held=held,
            most_held=most_held,
        )

    def sync_s(self, rings: Rings) -> Floats:
        """Return the least seconds of a stage's gradient sums, shape [kind, first, end]; kinds as in `costs`."""
        return self.sums.seconds(rings)

    def layers_s(self, size: int) -> Floats:
        """Return the least seconds that a microbatch takes in each layer, memory left out; shape [group, layer]."""
        first, rows = np.arange(self.space.layers), []
        for group in self.groups:
            kind = self.kinds.members[group.members[0]]
            rows.append(self.space.table(kind.pool, kind.tp, size, recompute=False).compute_s(first, first + 1))
        return np.array(rows)

    def group(self, kind: int) -> Group:
        """Return the group of a kind."""
        return self.groups[kind % len(self.groups)]

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

    def _boundaries(self, size: int, rings: Rings | None) -> Floats:
        """Return the least seconds of a cut, shape [kind, next kind, cut]."""
        if (size, rings) not in self._cuts:
            sorts = (False,) if rings is None else (False, True)
            every = [(inside, group) for inside in sorts for group in self.groups]
            rows = [
                np.stack([self._boundary(src, dst, size, (rings, here, there)) for there, dst in every])
                for here, src in every
            ]
            self._cuts[size, rings] = np.stack(rows)
        return self._cuts[size, rings]

    def _boundary(self, src: Group, dst: Group, size: int, stands: tuple[Rings | None, bool, bool]) -> Floats:
        """A group of several regions has a replica outside the region of its neighbour.

        stands: the rings, and whether those of the stage before and of that behind stay inside a node.
        """
        room = {self.space.pools[self.kinds.members[k].pool].devices for k in (*src.members, *dst.members)}
        alike = (*self._beside(src, dst, stands, max(room), max(room)), src, dst, size)
        if len(room) > 1 or alike not in self._known_cuts:
            self._known_cuts[alike] = self._least_cut(src, dst, size, stands)
        return self._known_cuts[alike]

    def _least_cut(self, src: Group, dst: Group, size: int, stands: tuple[Rings | None, bool, bool]) -> Floats:
        far = None in (src.area, dst.area) and src.area != dst.area
        known: dict[tuple[object, ...], Floats] = {}
        for a in src.members:
            for b in dst.members:
                one, other = self.kinds.members[a], self.kinds.members[b]
                if far and self.sums.told_apart and self.regions[one.row] == self.regions[other.row]:
                    continue
                if self.within and self._zone(one) != self._zone(other):
                    continue
                key = (one.pool, other.pool, one.row == other.row)
                if key not in known:
                    rooms = self.space.pools[one.pool].devices, self.space.pools[other.pool].devices
                    together, flows = self._beside(src, dst, stands, *rooms)
                    seats = Seat(one.pool, one.tp, 0), Seat(other.pool, other.tp, 0 if together and key[2] else 1)
                    known[key] = self.space.boundary(*seats, size, flows=1 if together and key[2] else flows)
        if not known:
            return np.full(self.space.layers + 1, np.inf if self.within else 0.0)
        return np.asarray(np.min(list(known.values()), axis=0))

    def _zone(self, kind: Kind) -> str:
        return self.space.candidates.rows[kind.row].zone

    def _beside(
        self, src: Group, dst: Group, stands: tuple[Rings | None, bool, bool], before: int, behind: int
    ) -> tuple[bool, int]:
        """Return whether neighbours may stand on one node, and how many flows share its card at least where not.

        before, behind: the devices of a node of either.
        """
        rings, here, there = stands
        if rings is None:
            return src.tp + dst.tp <= before, 1
        taken, follows = rings.devices(src.tp) if here else src.tp, rings.devices(dst.tp) if there else dst.tp
        if here and there:
            return taken + follows <= before, _fewer(rings.replicas)
        leaving = rings.leaving(before - taken, dst.tp) if here else 1
        arriving = rings.leaving(behind - follows, src.tp) if there else 1
        return taken + follows <= before, _fewer(max(leaving, arriving))

    def _held(self, rings: Rings) -> tuple[Ints, Ints]:
        """Return what a stage whose ring stays inside a node takes of its accelerator, and how much there is.

        All replicas are of one accelerator then, whatever the others of a pipeline are of.
        """
        names = sorted({group.accelerator for group in self.groups})
        taken = [
            [rings.devices(group.tp) * (inside and group.accelerator == name) for name in names]
            for inside in (False, True)
            for group in self.groups
        ]
        whole = [int(self.devices[self.pools.index((name, None))]) for name in names]
        return np.array(taken, dtype=np.int64), np.array(whole, dtype=np.int64)


def _fewer(flows: int) -> int:
    """Return about as many flows, never more: many numbers of replicas then have the same cuts."""
    return flows if flows <= _EXACT_FLOWS else 1 << (flows.bit_length() - 1)
