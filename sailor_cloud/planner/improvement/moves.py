"""The neighbourhood of a plan: all kinds of moves to another plan.

Pipelines that are equal except for their nodes change together, and so do groups of pipelines with one cut. Single
pipelines are added and removed. Recomputation is not a move, since a stage recomputes only if it does not fit
otherwise.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, combinations, groupby, pairwise, permutations, product
from itertools import count as counted
from typing import NamedTuple

import numpy as np

from sailor_cloud.model.offer import Offer
from sailor_cloud.planner.evaluate.assess import Shape, shapes_of
from sailor_cloud.planner.space.draft import Draft, seats_of
from sailor_cloud.planner.space.layer_cuts import MAX_STAGES, Cutter
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.replica_counts import divisors
from sailor_cloud.planner.space.space import Seat, Space

_Node = tuple[int, int]
_Slots = tuple[Slot, ...]
Shapes = tuple[Shape, ...]

# Up to this many stages, all pairs of stages exchange layers. In longer pipelines, this many of the stages that compute
# longest, and of those with the most gradients, give layers; this many that compute shortest take them.
_SHORT, _FEW = 6, 2

# The parts of a group's pairs of pipelines that become wider.
_PARTS = 1 / 3, 1 / 2, 2 / 3


class Neighbour(NamedTuple):
    """Pipelines, and the number of microbatches that sets their microbatch sizes; None keeps their sizes."""

    shapes: Shapes
    microbatches: int | None = None

    def key(self) -> tuple[object, ...]:
        """Return a key that is equal for neighbours that differ only in the numbers of equal nodes."""
        slots = tuple(slot for shape in self.shapes for slot in shape.slots)
        return seats_of(slots), tuple((shape.cut, shape.microbatch_size) for shape in self.shapes), self.microbatches


@dataclass(frozen=True, slots=True)
class _Group:
    """Pipelines of a plan that are equal except for their nodes."""

    members: Shapes
    seats: tuple[Seat, ...]
    cut: tuple[int, ...]
    size: int
    # Samples of each in an iteration.
    samples: tuple[int, ...]

    @property
    def lengths(self) -> list[int]:
        return [end - first for first, end in pairwise(self.cut)]

    def sized(self, size: int, samples: int = 0) -> list[Shape]:
        """Return all members; those with `samples` samples, or all if 0, have another microbatch size."""
        return [
            shape._replace(microbatch_size=size) if samples in (0, own) else shape
            for shape, own in zip(self.members, self.samples, strict=True)
        ]


@dataclass(slots=True)
class Neighbourhood:
    """The moves in one space.

    `transfers`: whether cuts allow for transfers, as in `Cutter`. `targets`: for each row, the pool with the cheapest
    devices, and that with the cheapest nodes of the smallest size.
    """

    space: Space
    transfers: bool = True
    targets: set[int] = field(init=False)
    _cutter: Cutter = field(init=False)
    _cuts: dict[tuple[object, ...], tuple[int, ...] | None] = field(init=False)

    def __post_init__(self) -> None:
        self._cutter = Cutter(self.space, self.transfers)
        pools, rates = self.space.pools, self.space.rates
        self.targets = {
            min((number for number, pool in enumerate(pools) if pool.row == row), key=key)
            for row in sorted({pool.row for pool in pools})
            for key in (
                lambda n: (rates[n].expected / pools[n].devices, -pools[n].devices),
                lambda n: (pools[n].devices, rates[n].expected),
            )
        }
        self._cuts = self.space.remembered.setdefault("cuts of neighbours", {})

    def kinds(self, draft: Draft) -> list[Callable[[], Iterator[Neighbour]]]:
        """Return the kinds of moves; each yields the neighbours of a draft that can be bought."""
        plan = _Plan(self, draft)
        return [
            plan.microbatches,
            plan.layers,
            plan.order,
            plan.merges,
            plan.splits,
            plan.degrees,
            plan.pipelines,
            plan.numbers,
            plan.places,
            plan.node_sizes,
            plan.zones,
            plan.offers,
            plan.accelerators,
            plan.nodes,
            plan.full_nodes,
        ]

    def shape_moves(self, draft: Draft) -> list[Callable[[], Iterator[Neighbour]]]:
        """Return the kinds of moves of microbatch sizes, numbers of stages and pipelines, and tensor parallelism."""
        plan = _Plan(self, draft)
        return [plan.microbatches, plan.pipelines, plan.merges, plan.splits, plan.degrees]

    def exchanged(self, draft: Draft) -> Iterator[Neighbour]:
        """Yield a draft with two runs of stages on equal devices exchanged in all pipelines of one cut."""
        return _Plan(self, draft).exchanged()

    def bought_from(self, draft: Draft, pools: Iterable[int]) -> Iterator[Neighbour]:
        """Yield a draft in which equal pipelines have their nodes of one offer from one of some pools."""
        return _Plan(self, draft).bought_from(pools)

    def every(self, draft: Draft) -> Iterator[Neighbour]:
        """Yield all neighbours of a draft."""
        for kind in self.kinds(draft):
            yield from kind()

    def cut(self, slots: _Slots, size: int, replicas: int) -> tuple[int, ...] | None:
        """Return the cut of a pipeline with the least busiest run of stages."""
        seats = seats_of(slots)
        held = min(len(seats), -(-self.space.batch // size // replicas))
        key = (seats, size, held, min(replicas, 2), self.transfers)
        if key not in self._cuts:
            found = self._cutter.cut(seats, size=size, microbatches=held, replicas=replicas)
            self._cuts[key] = None if found is None else found[0]
        return self._cuts[key]

    def cheapest_of_each_size(self) -> list[int]:
        """Return the cheapest pool of each accelerator, zone and number of devices."""
        found: dict[tuple[object, ...], int] = {}
        rates = self.space.rates
        for number, pool in enumerate(self.space.pools):
            key = pool.accelerator.name, pool.offer.zone, pool.devices
            if rates[number].expected < rates[found.setdefault(key, number)].expected:
                found[key] = number
        return list(found.values())

    def small_pipelines(self, pool: int, replicas: int) -> Iterator[tuple[_Slots, tuple[int, ...]]]:
        """Yield pipelines on the fewest devices of a node that fit, of one stage and of several, with their cuts."""
        devices = self.space.pools[pool].devices
        degrees = [tp for tp in self.space.tp_degrees[pool] if devices % tp == 0]
        alone = [(tp, 1) for tp in degrees]
        several = [(1, stages) for stages in range(2, devices + 1) if devices % stages == 0 and 1 in degrees]
        for kinds in (alone, several):
            for tp, stages in kinds:
                slots = (Slot(pool, 0, tp),) * stages
                cut = self.cut(slots, 1, replicas)
                if cut is not None:
                    yield slots, cut
                    break

    def bought(self, shapes: Shapes) -> bool:
        """Return whether no node uses more devices than it has, and all nodes can be bought."""
        self.space.known.deadline.check()
        pools, rows = self.space.pools, self.space.candidates.rows
        nodes: dict[int, int] = defaultdict(int)
        for (pool, _), load in _loads(shapes).items():
            if load > pools[pool].devices:
                return False
            nodes[pool] += 1
        devices: dict[int, int] = defaultdict(int)
        for pool, count in nodes.items():
            if count > pools[pool].max_nodes:
                return False
            devices[pools[pool].row] += count * pools[pool].devices
        return all(count <= rows[row].devices for row, count in devices.items())


@dataclass(slots=True)
class _Plan:
    """The neighbours of one plan, kind by kind."""

    around: Neighbourhood
    draft: Draft
    shapes: Shapes = field(init=False)
    count: int = field(init=False)
    space: Space = field(init=False)
    groups: list[_Group] = field(init=False)
    # Pools for moved stages: those in use, and `targets`.
    _open: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.space = self.around.space
        self.shapes = shapes_of(self.draft)
        self.count = max(part.microbatches for part in self.draft.pipelines)
        found: dict[tuple[tuple[Seat, ...], tuple[int, ...], int], list[Shape]] = {}
        samples: dict[tuple[object, ...], list[int]] = {}
        for shape, part in zip(self.shapes, self.draft.pipelines, strict=True):
            key = seats_of(shape.slots), shape.cut, shape.microbatch_size
            found.setdefault(key, []).append(shape)
            samples.setdefault(key, []).append(part.microbatches * part.microbatch_size)
        self.groups = [_Group(tuple(members), *key, tuple(samples[key])) for key, members in found.items()]
        self._open = sorted({slot.pool for shape in self.shapes for slot in shape.slots} | self.around.targets)

    def microbatches(self) -> Iterator[Neighbour]:
        """Yield other microbatch sizes of one group, of two, and of all for other numbers of microbatches.

        If the members of a group have different shares of the batch, those with the same share also get a size alone.
        """
        if self.space.even_batches:
            yield from self._sized(self.shapes)
            return
        for group in self.groups:
            shares = sorted(set(group.samples))
            for samples in (0, *(shares if len(shares) > 1 else ())):
                sizes = {group.size - 1, group.size + 1, group.size // 2, 2 * group.size}
                sizes.update(self._whole(group, samples or group.samples[0]))
                for size in sorted(sizes - {0, group.size}):
                    yield Neighbour(self._with(group, group.sized(size, samples)))
        counts = {self.count - 1, self.count + 1, self.count // 2, 2 * self.count, 3 * self.count // 2}
        for count in sorted({self.count, *counts} - {0}):
            yield Neighbour(self.shapes, count)
        yield from self._traded()
        # Stages of another size may hold other layers, without which the new size alone is worse.
        for group in self.groups:
            for size in sorted({group.size // 2, 2 * group.size} - {0}):
                cut = self._balanced(group.members[0].slots, size)
                if cut is not None and cut != group.cut:
                    sized = [each._replace(microbatch_size=size, cut=cut) for each in group.members]
                    yield Neighbour(self._with(group, sized))

    def _traded(self) -> Iterator[Neighbour]:
        """Yield plans in which some pipelines take a sample of each microbatch from as many as keep the batch.

        Takers are one pipeline or all that are alike. Givers are alike, too, and the last ones of these.
        """
        groups = {shape: number for number, group in enumerate(self.groups) for shape in group.members}
        alike: dict[tuple[int, int], list[int]] = defaultdict(list)
        for p, (shape, part) in enumerate(zip(self.shapes, self.draft.pipelines, strict=True)):
            alike[groups[shape], part.microbatches].append(p)
        for (taking, takers), (giving, givers) in permutations(alike.items(), 2):
            for some in dict.fromkeys((len(takers), 1)):
                needed, rest = divmod(some * taking[1], giving[1])
                size = self.groups[giving[0]].size
                if rest == 0 and 0 < needed <= len(givers) and size > 1:
                    more = dict.fromkeys(takers[:some], 1) | dict.fromkeys(givers[-needed:], -1)
                    yield Neighbour(
                        tuple(
                            shape._replace(microbatch_size=shape.microbatch_size + more.get(p, 0))
                            for p, shape in enumerate(self.shapes)
                        )
                    )

    def _whole(self, group: _Group, samples: int) -> Iterator[int]:
        """Yield the next smaller and larger sizes that divide `samples`, or an equal share of the batch."""
        equal, rest = divmod(self.space.batch, len(self.shapes))
        for share in {samples, *([equal] if rest == 0 else [])}:
            sizes = divisors(share)
            yield from sizes[bisect_left(sizes, group.size) - 1 :][:1] if group.size > 1 else []
            yield from sizes[bisect_right(sizes, group.size) :][:1]

    def layers(self) -> Iterator[Neighbour]:
        """Yield cuts in which one stage gives a layer to another, and balanced ones."""
        for units in self._units():
            slowest = max(units, key=lambda group: max(self._compute_s(group)))
            for cut in self._recut(slowest):
                if self.space.allows(cut):
                    yield self._cut_as(units, cut)
            for group in units:
                cut_anew = self._balanced(group.members[0].slots, group.size)
                if cut_anew is not None and cut_anew != group.cut:
                    yield self._cut_as(units, cut_anew)

    def order(self) -> Iterator[Neighbour]:
        """Yield pipelines with stages in another order: reversed, rotated, two swapped or one moved.

        Layers move with their stages, stay if the devices are of the same kinds, or are balanced. One of several equal
        pipelines is also reordered alone, so that its transfers share links with fewer others.
        """
        pools = self.space.pools
        alone = [
            [replace(group, members=group.members[-1:], samples=group.samples[-1:])]
            for group in self.groups
            if len(group.members) > 1
        ]
        for units in (*self._units(), *alone):
            first = units[0]
            stages = len(first.seats)
            plain = list(range(stages))
            turned = [[*plain[a:], *plain[:a]] for a in range(1, stages)]
            orders = {tuple(first.seats[s] for s in order): tuple(order) for order in (plain[::-1], *turned)}
            for a in range(stages):
                for b in range(stages):
                    plain = list(range(stages))
                    if a < b:
                        swapped = [b if s == a else a if s == b else s for s in plain]
                        orders.setdefault(tuple(first.seats[s] for s in swapped), tuple(swapped))
                    plain.insert(b, plain.pop(a))
                    orders.setdefault(tuple(first.seats[s] for s in plain), tuple(plain))
            orders.pop(first.seats, None)
            kinds = [(pools[seat.pool].accelerator.name, seat.tp) for seat in first.seats]
            for order in orders.values():
                alike = [kinds[s] for s in order] == kinds
                yield from self._changed(
                    units,
                    lambda slots, order=order: tuple(slots[s] for s in order),  # type: ignore[misc]
                    first.lengths if alike else [first.lengths[s] for s in order],
                )

    def exchanged(self) -> Iterator[Neighbour]:
        """Yield pipelines in which two runs of neighbouring stages on equal devices change places."""
        for units in self._units():
            first = units[0]
            kinds = [(self.space.pools[seat.pool].accelerator.name, seat.tp) for seat in first.seats]
            runs = [list(run) for _, run in groupby(range(len(kinds)), key=kinds.__getitem__)]
            for a, b in combinations(range(len(runs)), 2):
                order = [s for n in _exchanged(len(runs), a, b) for s in runs[n]]
                yield from self._changed(units, lambda slots, order=order: tuple(slots[s] for s in order), None)  # type: ignore[misc]

    def merges(self) -> Iterator[Neighbour]:
        """Yield pipelines with one stage less; a neighbour takes its layers, with the devices of both or its own.

        A stage that is not next to it, on the same node, may take its devices, too; the layers are balanced then.
        """
        for units in self._units():
            lengths, seats = units[0].lengths, units[0].seats
            for s in range(len(lengths) - 1):
                merged = [*lengths[:s], lengths[s] + lengths[s + 1], *lengths[s + 2 :]]
                for kept in (s, s + 1):
                    yield from self._changed(
                        units,
                        lambda slots, s=s, kept=kept: (*slots[:s], slots[kept], *slots[s + 2 :]),  # type: ignore[misc]
                        merged,
                    )
                yield from self._changed(units, lambda slots, s=s: self._joined(slots, s, s + 1), merged)  # type: ignore[misc]
            for kept, gone in permutations(range(len(lengths)), 2):
                apart = abs(kept - gone) > 1
                if apart and (seats[kept].pool, seats[kept].node) == (seats[gone].pool, seats[gone].node):
                    yield from self._changed(
                        units,
                        lambda slots, kept=kept, gone=gone: self._joined(slots, kept, gone),  # type: ignore[misc]
                        None,
                    )

    def _joined(self, slots: _Slots, kept: int, gone: int) -> _Slots | None:
        """Return slots with the devices of one stage given to another on the same node; None if that can't be."""
        taker, giver = slots[kept], slots[gone]
        whole = taker._replace(tp=taker.tp + giver.tp)
        if taker[:2] != giver[:2] or whole.tp not in self.space.tp_degrees[taker.pool]:
            return None
        return tuple(whole if s == kept else slot for s, slot in enumerate(slots) if s != gone)

    def splits(self) -> Iterator[Neighbour]:
        """Yield pipelines with one stage more: two halves of a stage's devices, or other devices."""
        for group in self.groups:
            lengths = group.lengths
            if len(lengths) == MAX_STAGES:
                continue
            for s, length in enumerate(lengths):
                if length == 1 and len(lengths) >= self.space.layers:
                    continue
                half = self._halves(group, s, group.seats[s], group.seats[s])
                yield from self._changed([group], lambda slots, s=s: _halved(slots, s), half)  # type: ignore[misc]
                for pool, tp in self._targets(group.seats[s]):
                    placed = self._placed(group, pool, tp)
                    if placed is None:
                        continue
                    for at in (s, s + 1):
                        pair = (placed[0], group.seats[s])
                        yield from self._put(
                            group,
                            [
                                (*shape.slots[:at], slot, *shape.slots[at:])
                                for shape, slot in zip(group.members, placed, strict=True)
                            ],
                            self._halves(group, s, *(pair if at == s else pair[::-1])),
                        )

    def _halves(self, group: _Group, s: int, first: Slot | Seat, second: Slot | Seat) -> list[int] | None:
        """Return the lengths of stages with one split over two places, so that the busier one computes least."""
        begin, end = group.cut[s : s + 2]
        if end - begin == 1:
            return None
        borders = np.arange(begin + 1, end)
        before, after = (self.space.table(place.pool, place.tp, group.size) for place in (first, second))
        busier_s = np.maximum(before.compute_s(begin, borders), after.compute_s(borders, end))
        border = int(borders[busier_s.argmin()])
        return [*group.lengths[:s], border - begin, end - border, *group.lengths[s + 1 :]]

    def degrees(self) -> Iterator[Neighbour]:
        """Yield stages, and whole pipelines, with half or twice the tensor parallelism."""
        for units in self._units():
            for s in (*range(len(units[0].seats)), None):
                for factor in (0.5, 2.0):
                    yield from self._changed(
                        units,
                        lambda slots, s=s, factor=factor: self._scaled(slots, s, factor),  # type: ignore[misc]
                        units[0].lengths,
                    )

    def _scaled(self, slots: _Slots, s: int | None, factor: float) -> _Slots | None:
        found = tuple(
            slot._replace(tp=int(slot.tp * factor)) if s in (None, number) else slot
            for number, slot in enumerate(slots)
        )
        return found if all(slot.tp in self.space.tp_degrees[slot.pool] for slot in found) else None

    def pipelines(self) -> Iterator[Neighbour]:
        """Yield groups in which two pipelines become one, longer or with more tensor parallelism, or one is split."""
        for group in self.groups:
            each = [shape.slots for shape in group.members]
            made: list[tuple[list[_Slots], float]] = []
            if len(each) % 2 == 0:
                pairs = list(zip(each[::2], each[1::2], strict=True))
                if 2 * len(group.seats) <= min(MAX_STAGES, self.space.layers):
                    made.append(([tuple(s for both in zip(*pair, strict=True) for s in both) for pair in pairs], 2.0))
                    made.append(([(*a, *b) for a, b in pairs], 2.0))
                wider = [self._wider(*pair) for pair in pairs]
                made.append(([slots for slots in wider if slots is not None], 2.0))
                if len(made[-1][0]) < len(pairs):
                    made.pop()
            if len(group.seats) % 2 == 0:
                made.append(([half for slots in each for half in (slots[::2], slots[1::2])], 0.5))
            narrow = [self._scaled(slots, None, 0.5) for slots in each]
            made.append(([slots for slots in narrow if slots is not None for _ in range(2)], 0.5))
            for slots, factor in made:
                if not slots:
                    continue
                for size in sorted({group.size, max(1, int(group.size * factor))}):
                    yield from self._put(group, slots, None, size=size)
            yield from self._partly_wider(group)

    def _partly_wider(self, group: _Group) -> Iterator[Neighbour]:
        """Yield a group in which a part of all pairs of pipelines become one with more tensor parallelism.

        One such pair rarely helps: its samples are not enough for the others to change their microbatches.
        """
        pairs = list(zip(group.members[::2], group.members[1::2], strict=False))
        for part in _PARTS if len(pairs) > 1 else ():
            instead = list(group.members[2 * len(pairs) :])
            for number, (a, b) in enumerate(pairs):
                slots = self._wider(a.slots, b.slots) if int((number + 1) * part) > int(number * part) else None
                instead += [a, b] if slots is None else [a._replace(slots=slots)]
            if len(instead) < len(group.members):
                yield from self._sized(self._with(group, instead))

    def _wider(self, a: _Slots, b: _Slots) -> _Slots | None:
        if [slot[:2] for slot in a] != [slot[:2] for slot in b]:
            return None
        found = tuple(x._replace(tp=x.tp + y.tp) for x, y in zip(a, b, strict=True))
        return found if all(slot.tp in self.space.tp_degrees[slot.pool] for slot in found) else None

    def numbers(self) -> Iterator[Neighbour]:
        """Yield plans with one pipeline more or less, or one cell of pipelines that share nodes."""
        for group in self.groups:
            if len(self.shapes) > 1:
                yield from self._sized(tuple(each for each in self.shapes if each is not group.members[-1]))
            added = self._one_more(group.members[0])
            if added is not None:
                yield from self._sized((*self.shapes, added))
        for shapes in fewer_or_more(self.shapes):
            yield from self._sized(shapes)

    def places(self) -> Iterator[Neighbour]:
        """Yield groups with one stage on other devices: of another node, offer or zone, or more or fewer of them."""
        for group in self.groups:
            for s, seat in enumerate(group.seats):
                for pool, tp in self._targets(seat):
                    placed = self._placed(group, pool, tp, without=s)
                    if placed is None:
                        continue
                    made = [
                        (*shape.slots[:s], slot, *shape.slots[s + 1 :])
                        for shape, slot in zip(group.members, placed, strict=True)
                    ]
                    if made != [shape.slots for shape in group.members]:
                        yield from self._put(group, made, group.lengths)
        yield from self._shifted()

    def _shifted(self) -> Iterator[Neighbour]:
        """Yield plans in which one pipeline has its stages of a node on another one of its accelerator with room."""
        pools, kinds, load = self.space.pools, self._nodes(), _loads(self.shapes)
        for (node, *_), others in product(kinds, kinds):
            last = next(shape for shape in reversed(self.shapes) if any(slot[:2] == node for slot in shape.slots))
            devices = sum(slot.tp for slot in last.slots if slot[:2] == node)
            alike = pools[node[0]].accelerator.name == pools[others[0][0]].accelerator.name
            for other in others if alike else ():
                if other != node and load[other] + devices <= pools[other[0]].devices:
                    (there,) = _renamed([last], {node: other})
                    yield Neighbour(tuple(there if shape is last else shape for shape in self.shapes))
                    break

    def zones(self) -> Iterator[Neighbour]:
        """Yield plans with all nodes of a zone in another one."""
        pools = self.space.pools
        homes = {pools[slot.pool].offer.zone for shape in self.shapes for slot in shape.slots}
        for home, zone in product(sorted(homes), sorted({pool.offer.zone for pool in pools})):
            there = None if home == zone else moved(self.space, self.shapes, home, zone)
            if there is not None and self.around.bought(there):
                yield Neighbour(there)

    def offers(self) -> Iterator[Neighbour]:
        """Yield plans with all nodes of a pool, or those of it in a group, replaced by another offer."""
        pools = self.space.pools
        for pool, other in product(self._used, range(len(pools))):
            if other == pool:
                continue
            if pools[other].accelerator.name == pools[pool].accelerator.name:
                yield from self._sized(self._repacked(self.shapes, pool, other))
            for group in self.groups:
                if len(self.groups) > 1 and any(seat.pool == pool for seat in group.seats):
                    yield from self._sized(self._with(group, self._repacked(group.members, pool, other)))

    def accelerators(self) -> Iterator[Neighbour]:
        """Yield plans with all nodes of a pool replaced by nodes with another accelerator."""
        pools = self.space.pools
        for pool, other in product(self._used, range(len(pools))):
            if pools[other].accelerator.name != pools[pool].accelerator.name and self._fits(pool, other):
                yield from self._recut_all(self._repacked(self.shapes, pool, other))

    def _fits(self, pool: int, other: int) -> bool:
        """Return whether all pipelines have a cut with the stages of one pool on another one."""

        def there(slots: _Slots) -> _Slots:
            return tuple(slot._replace(pool=other) if slot.pool == pool else slot for slot in slots)

        return all(self._balanced(there(group.members[0].slots), group.size) is not None for group in self.groups)

    def nodes(self) -> Iterator[Neighbour]:
        """Yield plans with one node, or all nodes that hold the same, replaced by another offer; or two by one."""
        pools = self.space.pools
        for nodes, other in product(self._nodes(), range(len(pools))):
            if other != nodes[0][0] and pools[other].accelerator.name == pools[nodes[0][0]].accelerator.name:
                for most in sorted({1, len(nodes)}):
                    yield from self._sized(self._rebought(nodes[:most], other))
        yield from self._joined_nodes()

    @property
    def _used(self) -> list[int]:
        return sorted({slot.pool for shape in self.shapes for slot in shape.slots})

    def _joined_nodes(self) -> Iterator[Neighbour]:
        """Yield plans in which one node of the same accelerator, zone and market holds the stages of several.

        These are two nodes, as many as fit of those that hold the same, or the first or last ones that fill it.
        """
        pools, kinds, load = self.space.pools, self._nodes(), _loads(self.shapes)
        alike: dict[tuple[object, ...], list[_Node]] = defaultdict(list)
        for node in dict.fromkeys(slot[:2] for shape in self.shapes for slot in shape.slots):
            alike[_merge_key(pools[node[0]].offer)].append(node)
        pairs = [[a[0], b[0]] for a, b in combinations(kinds, 2)] + [each[:2] for each in kinds if each[1:]]
        several = [
            each for each in (*kinds, *(run for all_ in alike.values() for run in (all_, all_[::-1]))) if each[2:]
        ]
        for nodes in (*pairs, *several):
            keys = {_merge_key(pools[pool].offer) for pool, _ in nodes}
            for other, pool in enumerate(pools):
                if keys == {_merge_key(pool.offer)}:
                    loads = accumulate(load[node] for node in nodes)
                    fit = sum(total <= pool.devices for total in loads)
                    if fit >= min(3, len(nodes)):
                        yield from self._sized(self._rebought(nodes[:fit], other, together=True))

    def full_nodes(self) -> Iterator[Neighbour]:
        """Yield plans with a smaller node and what fits on it, or with one more node that is full of pipelines."""
        pools, load = self.space.pools, _loads(self.shapes)
        for node, *_ in self._nodes():
            for other, pool in enumerate(pools):
                if pool.devices < load[node] and _merge_key(pool.offer) == _merge_key(pools[node[0]].offer):
                    yield from self._sized(self._shrunk(node, other))
        zones = {pools[number].offer.zone for number in self._used}
        every = self.around.cheapest_of_each_size()
        for number in sorted(every, key=lambda number: (pools[number].offer.zone not in zones, number)):
            fresh = next(_unused(self.shapes, number))
            for slots, cut in self.around.small_pipelines(number, len(self.shapes)):
                there = tuple(slot._replace(instance=fresh) for slot in slots)
                many = pools[number].devices // sum(slot.tp for slot in slots)
                shapes = (*self.shapes, *[Shape(slots=there, cut=cut, microbatch_size=1)] * many)
                if self.around.bought(shapes):
                    yield Neighbour(shapes, self.count)

    def _shrunk(self, node: _Node, other: int) -> Shapes:
        """Return the plan with a node replaced by a smaller one, without the pipelines that then lack devices."""
        room, kept = self.space.pools[other].devices, list[Shape]()
        for shape in self.shapes:
            devices = sum(slot.tp for slot in shape.slots if slot[:2] == node)
            if devices <= room:
                kept.append(shape)
                room -= devices
        return _renamed(kept, {node: (other, next(_unused(kept, other)))})

    def node_sizes(self) -> Iterator[Neighbour]:
        """Yield plans with nodes of another size in all zones at once, for the most crowded network card."""
        pools = self.space.pools
        for devices in sorted({pool.devices for pool in pools}):
            shapes = self.shapes
            for pool in self._used:
                alike = (
                    other
                    for other in range(len(pools))
                    if pools[other].devices == devices
                    and _merge_key(pools[other].offer) == _merge_key(pools[pool].offer)
                )
                cheapest = min(alike, key=lambda other: self.space.rates[other].expected, default=pool)
                shapes = self._repacked(shapes, pool, cheapest) if cheapest != pool else shapes
            if shapes != self.shapes:
                # Empty if a stage needs more devices than such a node has.
                yield from self._sized(shapes)

    def bought_from(self, others: Iterable[int]) -> Iterator[Neighbour]:
        """Yield plans in which a group has its nodes of one offer from one of some pools, with new microbatch sizes."""
        for group in self.groups:
            for pool, other in product(sorted({seat.pool for seat in group.seats}), others):
                shapes = self._with(group, bought := self._repacked(group.members, pool, other))
                if bought and self.around.bought(shapes):
                    yield Neighbour(shapes, self.count)

    def _nodes(self) -> list[list[_Node]]:
        """Return the nodes of the plan, grouped by the stages of the groups that they hold."""
        held: dict[_Node, list[tuple[int, int]]] = defaultdict(list)
        for number, group in enumerate(self.groups):
            for shape in group.members:
                for stage, slot in enumerate(shape.slots):
                    held[slot[:2]].append((number, stage))
        alike: dict[tuple[object, ...], list[_Node]] = defaultdict(list)
        for node, stages in sorted(held.items()):
            alike[node[0], tuple(sorted(stages))].append(node)
        return list(alike.values())

    def _rebought(self, nodes: Sequence[_Node], other: int, *, together: bool = False) -> Shapes:
        """Return the plan with some nodes replaced by another offer, each by one node or all by a single one."""
        fresh = _unused(self.shapes, other)
        names = dict.fromkeys(nodes, (other, next(fresh))) if together else {n: (other, next(fresh)) for n in nodes}
        return _renamed(self.shapes, names)

    def _repacked(self, shapes: Shapes, pool: int, other: int) -> Shapes:
        """Return pipelines with stages moved from nodes of one pool to those of another, filled one by one.

        What a node holds stays together if it fits on another one, or else each pipeline's stages on that node.
        """
        devices = self.space.pools[other].devices
        on_node: Counter[_Node] = Counter()
        of_pipeline: Counter[tuple[_Node, int]] = Counter()
        for number, shape in enumerate(shapes):
            for slot in shape.slots:
                if slot.pool == pool:
                    on_node[slot[:2]] += slot.tp
                    of_pipeline[slot[:2], number] += slot.tp
        if on_node.total() > devices * self.space.pools[other].max_nodes:
            return ()

        def together(number: int, stage: int, node: _Node) -> tuple[int, ...]:
            if on_node[node] <= devices:
                return node
            return (*node, number) if of_pipeline[node, number] <= devices else (*node, number, stage)

        moved_slots = {
            (number, stage): (together(number, stage, slot[:2]), slot.tp)
            for number, shape in enumerate(shapes)
            for stage, slot in enumerate(shape.slots)
            if slot.pool == pool
        }
        loads: Counter[tuple[int, ...]] = Counter()
        for item, tp in moved_slots.values():
            loads[item] += tp
        if any(load > devices for load in loads.values()):
            return ()
        fresh = _unused((*self.shapes, *shapes), other)
        nodes: dict[tuple[int, ...], int] = {}
        room: dict[int, int] = {}
        for item in sorted(loads):
            node = next((number for number, left in room.items() if left >= loads[item]), None)
            if node is None:
                node = next(fresh)
                room[node] = devices
            room[node] -= loads[item]
            nodes[item] = node
        return tuple(
            shape._replace(
                slots=tuple(
                    Slot(other, nodes[moved_slots[number, stage][0]], slot.tp) if slot.pool == pool else slot
                    for stage, slot in enumerate(shape.slots)
                )
            )
            for number, shape in enumerate(shapes)
        )

    def _recut_all(self, shapes: Shapes) -> Iterator[Neighbour]:
        found = []
        for shape in shapes:
            cut = self._balanced(shape.slots, shape.microbatch_size)
            if cut is None:
                return
            found.append(shape._replace(cut=cut))
        yield from self._sized(tuple(found))

    def _sized(self, shapes: Shapes) -> Iterator[Neighbour]:
        """Yield pipelines with their microbatch sizes, and with new ones."""
        if not shapes or not self.around.bought(shapes):
            return
        if self.space.even_batches:
            sizes = [size for size in divisors(self.space.batch) if size * len(shapes) <= self.space.batch]
            for size in reversed(sizes):
                yield Neighbour(tuple(shape._replace(microbatch_size=size) for shape in shapes))
            return
        for count in (None, self.count):
            yield Neighbour(shapes, count)

    def _units(self) -> list[list[_Group]]:
        """Return the groups one by one, and those with a common cut together."""
        by_cut: dict[tuple[int, ...], list[_Group]] = defaultdict(list)
        for group in self.groups:
            by_cut[group.cut].append(group)
        return [*(groups for groups in by_cut.values() if len(groups) > 1), *([group] for group in self.groups)]

    def _with(self, group: _Group, instead: Sequence[Shape]) -> Shapes:
        """Return the plan with a group replaced by other pipelines."""
        gone = set(map(id, group.members))
        return (*(shape for shape in self.shapes if id(shape) not in gone), *instead)

    def _cut_as(self, units: Sequence[_Group], cut: tuple[int, ...]) -> Neighbour:
        changed = {id(shape) for group in units for shape in group.members}
        return Neighbour(tuple(each._replace(cut=cut) if id(each) in changed else each for each in self.shapes))

    def _changed(
        self, units: Sequence[_Group], change: Callable[[_Slots], _Slots | None], lengths: Sequence[int] | None
    ) -> Iterator[Neighbour]:
        """Yield the plan with the slots of some groups changed, with the given lengths of stages and balanced ones."""
        changed = {id(shape) for group in units for shape in group.members}
        made: list[Shape] = []
        for shape in self.shapes:
            slots = change(shape.slots) if id(shape) in changed else shape.slots
            if slots is None:
                return
            made.append(shape._replace(slots=slots))
        if not self.around.bought(tuple(made)):
            return
        cuts = [_borders(lengths)] if lengths is not None else []
        first = next(shape for shape, before in zip(made, self.shapes, strict=True) if id(before) in changed)
        balanced = self._balanced(first.slots, first.microbatch_size)
        if balanced is not None and balanced not in cuts:
            cuts.append(balanced)
        for cut in filter(self.space.allows, cuts):
            yield Neighbour(
                tuple(
                    shape._replace(cut=cut) if id(before) in changed else shape
                    for shape, before in zip(made, self.shapes, strict=True)
                )
            )

    def _put(
        self, group: _Group, slots: Sequence[_Slots], lengths: Sequence[int] | None, *, size: int | None = None
    ) -> Iterator[Neighbour]:
        """Yield the plan with a group replaced by pipelines on given slots."""
        size = group.size if size is None else size
        replicas = len(self.shapes) - len(group.members) + len(slots)
        cuts = [_borders(lengths)] if lengths is not None else []
        balanced = self.around.cut(slots[0], size, replicas)
        if balanced is not None and balanced not in cuts:
            cuts.append(balanced)
        for cut in filter(self.space.allows, cuts):
            shapes = self._with(group, [Shape(slots=each, cut=cut, microbatch_size=size) for each in slots])
            if len(slots) == len(group.members):
                if self.around.bought(shapes):
                    yield Neighbour(shapes)
            else:
                yield from self._sized(shapes)

    def _balanced(self, slots: _Slots, size: int) -> tuple[int, ...] | None:
        return self.around.cut(slots, size, len(self.shapes))

    def _targets(self, seat: Seat) -> list[tuple[int, int]]:
        """Return pools and tensor-parallel degrees for a moved stage."""
        return [(pool, tp) for pool in self._open for tp in self.space.tp_degrees[pool]]

    def _placed(self, group: _Group, pool: int, tp: int, *, without: int | None = None) -> list[Slot] | None:
        """Return a slot for each pipeline of a group: on its own node, one of the group, any other, or a new one.

        `without`: the stage that frees its devices first.
        """
        load = _loads(self.shapes)
        if without is not None:
            for shape in group.members:
                load[shape.slots[without][:2]] -= shape.slots[without].tp
        devices = self.space.pools[pool].devices
        most = self.space.pools[pool].max_nodes
        theirs = [slot[:2] for shape in group.members for slot in shape.slots]
        used = sorted(node for node in load if node[0] == pool)
        numbers = {number for _, number in used}
        found = []
        for shape in group.members:
            own = [slot[:2] for number, slot in enumerate(shape.slots) if number != without]
            fresh = [(pool, number) for number in range(most) if number not in numbers][:1]
            node = next(
                (node for node in (*own, *theirs, *used, *fresh) if node[0] == pool and load[node] + tp <= devices),
                None,
            )
            if node is None:
                return None
            load[node] += tp
            numbers.add(node[1])
            found.append(Slot(*node, tp))
        return found

    def _one_more(self, shape: Shape) -> Shape | None:
        """Return a copy of a pipeline on free devices and on new nodes."""
        load = _loads(self.shapes)
        slots: list[Slot] = []
        for pool, _, tp in shape.slots:
            devices = self.space.pools[pool].devices
            nodes = ((pool, number) for number in range(self.space.pools[pool].max_nodes))
            node = next((node for node in nodes if load[node] + tp <= devices), None)
            if node is None:
                return None
            load[node] += tp
            slots.append(Slot(*node, tp))
        return shape._replace(slots=tuple(slots))

    def _compute_s(self, group: _Group) -> list[float]:
        """Return the compute seconds of every stage of a group's pipelines."""
        return [
            float(self.space.table(seat.pool, seat.tp, group.size).compute_s(first, end))
            for seat, (first, end) in zip(group.seats, pairwise(group.cut), strict=True)
        ]

    def _recut(self, group: _Group) -> Iterator[tuple[int, ...]]:
        """Yield the cuts in which a slow or large stage gives a layer, then those in which a fast stage takes one."""
        seconds, cut, stages = self._compute_s(group), group.cut, len(group.seats)
        table = self.space.table(group.seats[0].pool, group.seats[0].tp, 1)
        nbytes = [float(table.gradient_bytes(first, end)) for first, end in pairwise(cut)]
        by_time = sorted(range(stages), key=lambda stage: (-seconds[stage], stage))
        by_bytes = sorted(range(stages), key=lambda stage: (-nbytes[stage], stage))
        giving = range(stages) if stages <= _SHORT else sorted({*by_time[:_FEW], *by_bytes[:_FEW]})
        to_fast = sorted(((a, b) for a in giving for b in range(stages)), key=lambda pair: (seconds[pair[1]], pair))
        from_slow = [(a, b) for b in by_time[: -_FEW - 1 : -1] for a in by_time]
        for gives, takes in dict.fromkeys([*to_fast, *from_slow]):
            if gives == takes or cut[gives + 1] - cut[gives] == 1:
                continue
            step = -1 if gives < takes else 1
            between = range(min(gives, takes) + 1, max(gives, takes) + 1)
            yield tuple(border + step if at in between else border for at, border in enumerate(cut))


def _loads(shapes: Iterable[Shape]) -> dict[_Node, int]:
    """Return the number of devices in use on each node."""
    loads: dict[_Node, int] = defaultdict(int)
    for shape in shapes:
        for pool, instance, tp in shape.slots:
            loads[pool, instance] += tp
    return loads


def moved(space: Space, shapes: Shapes, home: str, zone: str) -> Shapes | None:
    """Return pipelines with all nodes of a zone bought in another zone.

    None if that zone lacks one of the nodes, or if nodes of the same offers are in use already. Also None if two
    resources of the job allow the same offer and both are used, since their nodes would get the same numbers.
    """
    alike = {_sale(space, number): number for number in range(len(space.pools))}
    used = {slot.pool for shape in shapes for slot in shape.slots}
    names = {
        number: alike.get((zone, *_sale(space, number)[1:]), number)
        for number in used
        if space.pools[number].offer.zone == home
    }
    there = set(names.values())
    if used & there or len(there) < len(names):
        return None
    return tuple(
        shape._replace(slots=tuple(slot._replace(pool=names.get(slot.pool, slot.pool)) for slot in shape.slots))
        for shape in shapes
    )


def _sale(space: Space, number: int) -> tuple[object, ...]:
    offer = space.pools[number].offer
    return (offer.zone, offer.instance_type, offer.accelerator, offer.market, offer.terms)


def _unused(shapes: Iterable[Shape], pool: int) -> Iterator[int]:
    """Yield the numbers of nodes of a pool that no pipeline uses."""
    taken = {slot.instance for shape in shapes for slot in shape.slots if slot.pool == pool}
    return (number for number in counted() if number not in taken)


def _renamed(shapes: Iterable[Shape], names: Mapping[_Node, _Node]) -> Shapes:
    """Return pipelines with other nodes in place of some; `names` maps the former to the new ones."""
    return tuple(
        shape._replace(slots=tuple([Slot(*names.get(slot[:2], slot[:2]), slot.tp) for slot in shape.slots]))
        if any(slot[:2] in names for slot in shape.slots)
        else shape
        for shape in shapes
    )


def _merge_key(offer: Offer) -> tuple[object, ...]:
    """Return the common properties of nodes that may become one."""
    return offer.accelerator, offer.zone, offer.market, offer.terms


def _exchanged(count: int, a: int, b: int) -> list[int]:
    """Return the numbers below `count`, two of which change places."""
    return [b if n == a else a if n == b else n for n in range(count)]


def _halved(slots: _Slots, s: int) -> _Slots | None:
    """Return slots with one stage replaced by two, on half of its devices each."""
    half = slots[s]._replace(tp=slots[s].tp // 2)
    return (*slots[:s], half, half, *slots[s + 1 :]) if slots[s].tp % 2 == 0 else None


def _borders(lengths: Sequence[int]) -> tuple[int, ...]:
    """Return the cut into stages of given lengths."""
    cut = [0]
    for length in lengths:
        cut.append(cut[-1] + length)
    return tuple(cut)


Cell = tuple[Shape, ...]


def fewer_or_more(shapes: Shapes) -> Iterator[Shapes]:
    """Yield plans with one cell less, and with one more on new nodes, for each kind of cells.

    A cell is a set of pipelines that share nodes with one another only, so it can be added or removed alone.
    """
    cells = cells_of(shapes)
    if len(cells) == 1:
        return
    kinds: dict[tuple[object, ...], Cell] = {}
    for cell in cells:
        kinds.setdefault(_kind(cell), cell)
    for cell in kinds.values():
        gone = {shape.slots for shape in cell}
        yield tuple(shape for shape in shapes if shape.slots not in gone)
        yield (*shapes, *_copy_on_new_nodes(cell, shapes))


def cells_of(shapes: Shapes) -> list[Cell]:
    """Return the cells of a plan, in the order of their first pipelines."""
    cells: list[tuple[set[_Node], list[Shape]]] = []
    for shape in shapes:
        nodes, members = {slot[:2] for slot in shape.slots}, [shape]
        apart = []
        for there, others in cells:
            if there & nodes:
                nodes, members = nodes | there, [*others, *members]
            else:
                apart.append((there, others))
        cells = [*apart, (nodes, members)]
    return sorted((tuple(members) for _, members in cells), key=lambda cell: cell[0].slots)


def _kind(cell: Cell) -> tuple[object, ...]:
    """Return the common properties of cells on other nodes of the same pools."""
    seats = iter(seats_of(tuple(slot for shape in cell for slot in shape.slots)))
    return tuple((tuple(next(seats) for _ in shape.slots), shape.cut, shape.microbatch_size) for shape in cell)


def _copy_on_new_nodes(cell: Cell, shapes: Shapes) -> Cell:
    """Return a cell on nodes that no pipeline uses."""
    opened: dict[int, int] = {}
    for shape in shapes:
        for slot in shape.slots:
            opened[slot.pool] = max(opened.get(slot.pool, 0), slot.instance + 1)
    numbers: dict[_Node, int] = {}
    for node in sorted({slot[:2] for shape in cell for slot in shape.slots}):
        numbers[node] = opened[node[0]]
        opened[node[0]] += 1
    return tuple(
        shape._replace(slots=tuple(Slot(slot.pool, numbers[slot[:2]], slot.tp) for slot in shape.slots))
        for shape in cell
    )
