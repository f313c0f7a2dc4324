"""Groups of equal pipelines: one group per accelerator, each pipeline on one node."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from sailor_cloud.planner.bound.bounds import device_seconds
from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.space.draft import seats_of
from sailor_cloud.planner.space.layer_cuts import Cutter
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space

_Each = TypeVar("_Each")
# A function that takes a number of nodes from pools with numbers of nodes.
_Taking = Callable[[Sequence[tuple[int, int]], int], list[tuple[int, int]]]

# The fastest accelerators that have groups; and, by the number of these, the sorts of pipelines of each that are
# combined with those of others, and shares of their nodes.
_ACCELERATORS = 5
_SORTS = (4, 4, 2, 1, 1)
_SHARES = ((1.0, 0.75, 0.5, 0.25), (1.0, 0.75, 0.5, 0.25), (1.0, 0.5, 0.25), (1.0, 0.5), (1.0, 0.5))
# Most stages of a pipeline.
_MOST_STAGES = 8
# The numbers of nodes of one accelerator that are tried with all nodes of the others; and the changes to a good number.
# Without these changes, a plan for 135 USD in two zones takes 1.80 s per iteration, not 1.71.
_STEPS, _FEW = 24, (-4, -3, -2, -1, 1, 2, 3, 4)


@dataclass(frozen=True, slots=True)
class Sort:
    """Pipelines of equal stages on one node, of tp devices each."""

    stages: int
    tp: int
    cut: tuple[int, ...]


# The sort of pipelines of each accelerator, and the number of its nodes that they use.
Groups = tuple[tuple[str, Sort, int], ...]


@dataclass(frozen=True, slots=True)
class Ground:
    """The nodes for groups: for each accelerator, pools with numbers of nodes."""

    space: Space
    nodes: dict[str, list[tuple[int, int]]]

    @classmethod
    def of(cls, assessor: Assessor) -> Ground:
        """Return the nodes of each row, as in `Assessor.node_sizes`; pools with most nodes come first."""
        space = assessor.space
        found: dict[str, list[tuple[int, int]]] = {}
        for index in assessor.node_sizes().values():
            found.setdefault(space.pools[index].accelerator.name, []).append((index, assessor.most_nodes(index)))
        for nodes in found.values():
            nodes.sort(key=lambda entry: (-entry[1], -space.pools[entry[0]].devices, entry[0]))
        return cls(space, dict(sorted(found.items())))

    def count(self, name: str) -> int:
        """Return how many nodes of an accelerator there are."""
        return sum(count for _, count in self.nodes[name])

    def whole(self, assessor: Assessor) -> list[Groups]:
        """Return the sets of groups on all nodes, of the sorts that are fastest on their share of the batch."""
        work = {name: float(seconds.sum()) for name, seconds in device_seconds(self.space).items()}
        speeds = {
            name: sum(count * self.space.pools[pool].devices for pool, count in nodes) / work[name]
            for name, nodes in self.nodes.items()
        }
        fastest = sorted(speeds, key=lambda name: (-speeds[name], name))[:_ACCELERATORS]
        every = sum(speeds[name] for name in fastest)
        rated = {
            name: self._rated(name, assessor, self.space.batch * speeds[name] / every)
            for name in sorted(fastest)
            if speeds[name] > 0.0
        }
        able = {name: sorts for name, sorts in rated.items() if sorts}
        most = _by_number(_SORTS, len(able)) if able else 0
        chosen = product(*([None, *sorts[:most]] for sorts in able.values()))
        sets = (
            tuple((name, sort, self.count(name)) for name, sort in zip(able, sorts, strict=True) if sort is not None)
            for sorts in chosen
        )
        return [groups for groups in sets if groups]

    def placed(self, groups: Groups) -> list[list[Shape]]:
        """Return the pipelines of groups, with microbatches of one sample: on nodes of the first pools, and of all.

        The more equal the zones are in size, the more network cards share the traffic between them.
        """
        first = self._on(groups, _first_taken)
        spread = self._on(groups, _evenly_taken)
        return [first] if first == spread else [first, spread]

    def _on(self, groups: Groups, taken: _Taking) -> list[Shape]:
        return [
            shape
            for name, sort, count in groups
            for pool, nodes in taken(self.nodes[name], count)
            for node in range(nodes)
            for shape in self._on_node(pool, node, sort)
        ]

    def _on_node(self, pool: int, node: int, sort: Sort) -> list[Shape]:
        slots = (Slot(pool, node, sort.tp),) * sort.stages
        number = self.space.pools[pool].devices // (sort.tp * sort.stages)
        return [Shape(slots=slots, cut=sort.cut, microbatch_size=1)] * number

    def _rated(self, name: str, assessor: Assessor, samples: float) -> list[Sort]:
        """Return an accelerator's sorts of pipelines in the order of their speed on a number of samples."""
        rated = []
        for sort in self._possible(name):
            pipelines = len(self._on(((name, sort, self.count(name)),), _first_taken))
            seconds = self._seconds(name, assessor, sort, samples / pipelines, pipelines)
            if math.isfinite(seconds):
                rated.append((seconds, sort.stages, sort.tp, sort))
        ranked = [sort for *_, sort in sorted(rated, key=lambda entry: entry[:3])]
        # The best of each tensor-parallel degree come first, since it is unknown here which fit others well.
        first = {sort.tp: sort for sort in reversed(ranked)}
        return sorted(ranked, key=lambda sort: first[sort.tp] is not sort)

    def _possible(self, name: str) -> Iterator[Sort]:
        pools = [pool for pool, _ in self.nodes[name]]
        devices = min(self.space.pools[pool].devices for pool in pools)
        degrees = set.intersection(*(set(self.space.tp_degrees[pool]) for pool in pools))
        for tp, stages in product(sorted(degrees), range(1, min(_MOST_STAGES, self.space.layers) + 1)):
            cut = self._cut(pools[0], tp, stages) if devices % (tp * stages) == 0 else None
            if cut is not None:
                yield Sort(stages, tp, cut)

    def _cut(self, pool: int, tp: int, stages: int) -> tuple[int, ...] | None:
        if stages == 1:
            return (0, self.space.layers)
        seats = seats_of((Slot(pool, 0, tp),) * stages)
        found = Cutter(self.space).cut(seats, size=1, microbatches=stages, replicas=2)
        return None if found is None else found[0]

    def _seconds(self, name: str, assessor: Assessor, sort: Sort, samples: float, pipelines: int) -> float:
        """Return roughly the least seconds in which one of equal pipelines processes a number of samples."""
        shapes = self._on_node(self.nodes[name][0][0], 0, sort)
        places = assessor.places(tuple(shape.slots for shape in shapes))
        best, microbatches = math.inf, 1
        while places and microbatches <= max(1.0, samples):
            size = max(1, math.ceil(samples / microbatches))
            shape = Shape(slots=shapes[0].slots, cut=sort.cut, microbatch_size=size)
            pace = assessor.pace(places[0], shape, pipelines)
            best = min(best, math.inf if pace is None else pace.schedule_s(microbatches))
            microbatches *= 2
        return best


def on_shares(groups: Groups) -> Iterator[Groups]:
    """Yield groups on shares of their nodes."""
    shares = _by_number(_SHARES, len(groups))
    for chosen in product(*(sorted({max(1, round(share * most)) for share in shares}) for *_, most in groups)):
        yield tuple((name, sort, count) for (name, sort, _), count in zip(groups, chosen, strict=True))


def step_by_step(groups: Groups) -> Iterator[Groups]:
    """Yield groups on shares of their nodes, and with fewer and fewer nodes of one accelerator alone."""
    yield from on_shares(groups)
    for number, (*_, most) in enumerate(groups):
        for count in sorted({round(most * step / _STEPS) for step in range(1, _STEPS)}):
            yield _having(groups, number, count)


def a_few_more_or_less(groups: Groups) -> Iterator[Groups]:
    """Yield groups with a few more or fewer nodes of one accelerator, even more than there are."""
    for number, (*_, count) in enumerate(groups):
        for more in _FEW:
            yield _having(groups, number, count + more)


def _having(groups: Groups, number: int, count: int) -> Groups:
    name, sort, _ = groups[number]
    return (*groups[:number], (name, sort, count), *groups[number + 1 :])


def _by_number(each: Sequence[_Each], accelerators: int) -> _Each:
    """Return the entry for a number of accelerators."""
    return each[accelerators - 1]


def _first_taken(nodes: Sequence[tuple[int, int]], left: int) -> list[tuple[int, int]]:
    """Return `left` nodes, starting with the first pools."""
    found = []
    for pool, count in nodes:
        found.append((pool, min(count, left)))
        left -= found[-1][1]
    return found


def _evenly_taken(nodes: Sequence[tuple[int, int]], left: int) -> list[tuple[int, int]]:
    """Return `left` nodes from all pools in proportion; the first pools give one more if that is fractional."""
    every = sum(count for _, count in nodes)
    found = []
    for pool, count in nodes:
        found.append((pool, min(count, math.ceil(left * count / every)) if every else 0))
        left, every = left - found[-1][1], every - count
    return found
