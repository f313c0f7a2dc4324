"""Plans of a group of equal pipelines for each accelerator, each on one node, with microbatches as large as it is fast.

The fewer microbatches a pipeline has, the longer its last backward pass, beside which gradient sums run for nothing. So
these plans are judged by about what the replay finds; the closed form, in which sums wait, thinks little of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeVar

from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.blocks.cuts import Cutter
from sailor_cloud.planner.blocks.schedule import UncutPipeline
from sailor_cloud.planner.bounds import device_seconds
from sailor_cloud.planner.draft import Draft, Rank, seats_of, significant
from sailor_cloud.planner.goals import Figure
from sailor_cloud.planner.kinds import MAX_STAGES
from sailor_cloud.planner.layouts import Slot
from sailor_cloud.planner.levelling import levelled
from sailor_cloud.planner.overlap import Overlap
from sailor_cloud.planner.space import Space

_What = TypeVar("_What")

# By how many accelerators there are, at last for more: sorts of pipelines of each that are tried with those of others,
# and the shares of their nodes that are tried.
_SORTS = (3, 3, 2, 1)
_SHARES = ((1.0, 0.75, 0.5, 0.25), (1.0, 0.75, 0.5, 0.25), (1.0, 0.5, 0.25), (1.0, 0.5))
# Sets of groups whose nodes are tried in smaller numbers; how many numbers of one accelerator's, all of the others'.
_FIRST, _STEPS = 4, 24
# How often other numbers of nodes near those of the best groups are tried, of how many sets of sorts, and how much more
# and less.
_CLIMBS, _CLIMBING, _NEARLY = 2, 3, (-4, -3, -2, -1, 1, 2, 3, 4)
# Microbatches of each pipeline are doubled until so many drafts one after another are worse than the best.
_WORSE = 2
# Drafts returned of those that keep limits, and of those that nearly do, and how many of one set of sorts.
_KEPT, _ALIKE = 8, 2


@dataclass(frozen=True, slots=True)
class _Sort:
    """Pipelines of `stages` stages of tp devices each, `abreast` of them on a node of every pool."""

    stages: int
    tp: int
    abreast: int
    cut: tuple[int, ...]


# The sort of each accelerator's pipelines, and on how many of its nodes they stand.
_Groups = tuple[tuple[str, _Sort, int], ...]
# A draft with about its figures under the replay.
_Found = tuple[Draft, _Groups]


@dataclass(slots=True)
class Groups:
    """The search of one space; `assessor` and `overlap` judge its plans."""

    space: Space
    assessor: Assessor
    overlap: Overlap
    judged: int = 0
    _nodes: dict[str, list[tuple[int, int]]] = field(init=False)

    def __post_init__(self) -> None:
        self._nodes = _nodes(self.space)

    def best(self, known: float = math.inf) -> list[Draft]:
        """Return the best drafts, with about their figures under the replay; they need not keep limits.

        `known`: the goal's figure of a plan that keeps them. Where time is the goal and all nodes together take longer,
        fewer are not tried.
        """
        found = self._on_all_nodes()
        goal = self.assessor.target.goal
        if goal not in (Figure.ITERATION_S, Figure.DURATION_S) or any(_value(goal, each) < known for each, _ in found):
            found += self._on(found, _fewer)
            for _ in range(_CLIMBS):
                best = [entry for entry in self._best_of_sorts(found) if _value(goal, entry[0]) < known]
                found += self._on(best[:_CLIMBING], _nearly, worse=1)
        kept = {entry[0].order(): entry[0] for key in (self._rank, self._near) for entry in _first(found, key)}
        return list(kept.values())

    def trades(self) -> list[Draft]:
        """Return drafts from the fastest to the cheapest, with about their figures under the replay."""
        found = self._on_all_nodes()
        return [draft for draft, _ in _different(found + self._on(found, _step_by_step))]

    def _on_all_nodes(self) -> list[_Found]:
        """Return the drafts on all nodes, soonest first."""
        sorts = {name: self._sorts(name) for name in self._nodes}
        found: list[_Found] = []
        for chosen in product(*([None, *each] for each in sorts.values())):
            groups = tuple(
                (name, sort, self._count(name)) for name, sort in zip(sorts, chosen, strict=True) if sort is not None
            )
            found += [(draft, groups) for draft in self._drafts(groups)]
        return sorted(found, key=lambda entry: (_value(Figure.ITERATION_S, entry[0]), entry[0].order()))

    def _on(
        self, found: Sequence[_Found], others: Callable[[_Groups], Iterator[_Groups]], *, worse: int = _WORSE
    ) -> list[_Found]:
        """Return the drafts on other numbers of nodes than the first sets of groups of those found."""
        first: dict[_Groups, Draft] = {}
        for draft, groups in found:
            first.setdefault(groups, draft)
        more: list[_Found] = []
        for groups, draft in list(first.items())[:_FIRST]:
            microbatches = max(part.microbatches for part in draft.pipelines)
            for each in others(groups):
                if all(1 <= count <= self._count(name) for name, _, count in each):
                    more += [(made, each) for made in self._drafts(each, microbatches, worse)]
        return more

    def _best_of_sorts(self, found: Iterable[_Found]) -> list[_Found]:
        """Return the best draft of each set of sorts, best first; it may break limits a little."""
        best: dict[tuple[object, ...], _Found] = {}
        for entry in sorted(found, key=self._near):
            best.setdefault(_sorts(entry), entry)
        return list(best.values())

    def _rank(self, entry: _Found) -> Rank:
        return self.overlap.rank(entry[0])

    def _near(self, entry: _Found) -> tuple[object, ...]:
        excess, (value, *rest) = self._rank(entry)
        return significant(value * excess), *rest

    def _count(self, name: str) -> int:
        return sum(count for _, count in self._nodes[name])

    def _sorts(self, name: str) -> list[_Sort]:
        """Return the sorts of pipelines that get an accelerator's nodes through their share of the batch soonest."""
        work = {each: float(seconds.sum()) for each, seconds in device_seconds(self.space).items()}
        speeds = {
            each: sum(count * self.space.pools[pool].devices for pool, count in nodes) / work[each]
            for each, nodes in self._nodes.items()
        }
        if not speeds[name]:
            return []
        share = self.space.batch * speeds[name] / sum(speeds.values())
        rated = []
        for sort in self._possible(name):
            seconds = self._seconds(name, sort, share / sort.abreast / self._count(name))
            if math.isfinite(seconds):
                rated.append((seconds, sort.stages, sort.tp, sort))
        return [sort for *_, sort in sorted(rated, key=lambda entry: entry[:3])[: _by_number(_SORTS, len(speeds))]]

    def _possible(self, name: str) -> Iterator[_Sort]:
        pools = [pool for pool, _ in self._nodes[name]]
        devices = min(self.space.pools[pool].devices for pool in pools)
        degrees = set.intersection(*(set(self.space.tp_degrees[pool]) for pool in pools))
        for tp, stages in product(sorted(degrees), range(1, MAX_STAGES + 1)):
            if devices % (tp * stages) == 0 and stages <= self.space.layers:
                cut = self._cut(pools[0], tp, stages)
                if cut is not None:
                    yield _Sort(stages, tp, devices // (tp * stages), cut)

    def _cut(self, pool: int, tp: int, stages: int) -> tuple[int, ...] | None:
        if stages == 1:
            return (0, self.space.layers)
        seats = seats_of((Slot(pool, 0, tp),) * stages)
        pipeline = UncutPipeline(seats=seats, flows=(), size=1, microbatches=stages, replicas=2)
        found = Cutter(self.space).cut(pipeline)
        return None if found is None else found[0]

    def _seconds(self, name: str, sort: _Sort, samples: float) -> float:
        """Return about the least seconds in which a pipeline carries so many samples, in any number of microbatches."""
        pool = self._nodes[name][0][0]
        shapes = list(_placed(self.space, [(pool, 1)], sort))[: sort.abreast]
        places = self.assessor.places(tuple(shape.slots for shape in shapes))
        best, microbatches = math.inf, 1
        while places and microbatches <= max(1.0, samples):
            size = max(1, math.ceil(samples / microbatches))
            shape = Shape(slots=shapes[0].slots, cut=sort.cut, microbatch_size=size)
            pace = self.assessor.pace(places[0], shape, 2)
            best = min(best, math.inf if pace is None else pace.schedule_s(microbatches))
            microbatches *= 2
        return best

    def _drafts(self, groups: _Groups, microbatches: int = 1, most_worse: int = _WORSE) -> Iterator[Draft]:
        """Yield the drafts of groups with ever more microbatches, until so many of them are worse than the best."""
        if not groups:
            return
        shapes = [
            shape
            for name, sort, count in groups
            for shape in _placed(self.space, _some(self._nodes[name], count), sort)
        ]
        best, worse = None, 0
        while worse < most_worse and microbatches * len(shapes) <= self.space.batch:
            draft = levelled(self.assessor, shapes, microbatches)
            self.judged += 1
            if draft is not None:
                draft = self.overlap.expected(draft)
                rank = self.overlap.rank(draft)
                worse = worse + 1 if best is not None and rank > best else 0
                best = rank if best is None else min(best, rank)
                yield draft
            microbatches *= 2


def _by_number(each: Sequence[_What], accelerators: int) -> _What:
    """Return what counts for so many accelerators."""
    return each[min(accelerators, len(each)) - 1]


def _fewer(groups: _Groups) -> Iterator[_Groups]:
    """Yield the groups on shares of their nodes."""
    shares = _by_number(_SHARES, len(groups))
    for chosen in product(*(sorted({max(1, round(share * most)) for share in shares}) for *_, most in groups)):
        fewer = tuple((name, sort, count) for (name, sort, _), count in zip(groups, chosen, strict=True))
        if fewer != groups:
            yield fewer


def _step_by_step(groups: _Groups) -> Iterator[_Groups]:
    """Yield the groups on shares of their nodes, and with ever fewer nodes of one accelerator alone."""
    yield from _fewer(groups)
    for number, (*_, most) in enumerate(groups):
        for count in sorted({round(most * step / _STEPS) for step in range(1, _STEPS)} - {0, most}):
            yield _having(groups, number, count)


def _nearly(groups: _Groups) -> Iterator[_Groups]:
    """Yield the groups with a few nodes more or less of one accelerator."""
    for number, (*_, count) in enumerate(groups):
        for more in _NEARLY:
            yield _having(groups, number, count + more)


def _having(groups: _Groups, number: int, count: int) -> _Groups:
    name, sort, _ = groups[number]
    return (*groups[:number], (name, sort, count), *groups[number + 1 :])


def _value(figure: Figure, draft: Draft) -> float:
    assert draft.expected is not None, "it was estimated"
    return draft.expected[figure]


def _sorts(entry: _Found) -> tuple[object, ...]:
    """Return what the groups of a draft are, whatever their numbers of nodes."""
    return tuple((name, sort) for name, sort, _ in entry[1])


def _first(found: Iterable[_Found], key: Callable[[_Found], tuple[object, ...]]) -> list[_Found]:
    """Return the first ones by a key, a few of each set of sorts."""
    taken: Counter[tuple[object, ...]] = Counter()
    first = []
    for entry in sorted(_different(found), key=key):
        taken[_sorts(entry)] += 1
        if taken[_sorts(entry)] <= _ALIKE:
            first.append(entry)
    return first[:_KEPT]


def _different(found: Iterable[_Found]) -> list[_Found]:
    return list({entry[0].order(): entry for entry in found}.values())


def _nodes(space: Space) -> dict[str, list[tuple[int, int]]]:
    """Return the nodes of each accelerator, those of the largest pool of each row, as pools and numbers of nodes."""
    largest: dict[int, int] = {}
    for index, pool in enumerate(space.pools):
        kept = largest.setdefault(pool.row, index)
        each = (-space.pools[kept].devices, space.rates[kept].expected)
        if (-pool.devices, space.rates[index].expected) < each:
            largest[pool.row] = index
    found: dict[str, list[tuple[int, int]]] = {}
    for row, index in largest.items():
        pool = space.pools[index]
        count = min(pool.max_nodes, space.candidates.rows[row].devices // pool.devices)
        if count:
            found.setdefault(pool.accelerator.name, []).append((index, count))
    for nodes in found.values():
        nodes.sort(key=lambda entry: (-entry[1], space.pools[entry[0]].offer.zone, entry[0]))
    return dict(sorted(found.items()))


def _some(nodes: Sequence[tuple[int, int]], left: int) -> list[tuple[int, int]]:
    """Return so many nodes, from the first pools on."""
    found = []
    for pool, count in nodes:
        found.append((pool, min(count, left)))
        left -= found[-1][1]
    return [entry for entry in found if entry[1]]


def _placed(space: Space, nodes: Sequence[tuple[int, int]], sort: _Sort) -> Iterator[Shape]:
    """Yield the pipelines of a sort on all of some nodes."""
    for pool, count in nodes:
        for node in range(count):
            for _ in range(space.pools[pool].devices // (sort.tp * sort.stages)):
                slots = (Slot(pool, node, sort.tp),) * sort.stages
                yield Shape(slots=slots, cut=sort.cut, microbatch_size=1)
