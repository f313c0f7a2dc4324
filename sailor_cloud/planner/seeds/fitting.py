"""Single pipelines on nodes of all sizes with stages of all degrees, for models that hardly fit.

Other seeds have equal nodes and degrees for each accelerator. Where no such plan holds the model, a pipeline takes the
largest nodes first, and each node as many layers as it can hold, from the last one on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import NamedTuple

import numpy as np

from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.space.apportioning import apportioned
from sailor_cloud.planner.space.draft import Draft, in_space, seats_of
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.layer_cuts import Cutter
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Seat, Space

# The most accelerators whose every order is tried; of more, only two orders by their memory.
_ORDERED = 3


class _Stage(NamedTuple):
    """A stage on `tp` devices of a node, with layers from `first` on."""

    tp: int
    first: int


def fitting(space: Space, target: Target) -> list[Draft]:
    """Return single pipelines with microbatches of one sample, in each zone and over all, as far as they fit."""
    found: dict[tuple[object, ...], Draft] = {}
    for part in () if space.even_layers else apportioned(space):
        assessor = Assessor(part, target)
        for nodes in _rows_of_nodes(part):
            shape = _filled(part, nodes)
            draft = None if shape is None else assessor.draft([shape])
            if draft is not None:
                there = in_space(draft, part, space)
                found.setdefault(there.order(), there)
    return list(found.values())


def _rows_of_nodes(space: Space) -> Iterator[list[tuple[int, int]]]:
    """Yield nodes, as pool and instance, from the last stage of a pipeline on."""
    every = sorted({pool.offer.zone for pool in space.pools})
    memory = {pool.accelerator.name: pool.accelerator.memory_gib for pool in space.pools}
    names = sorted(memory, key=lambda name: (memory[name], name))
    orders = permutations(names) if len(names) <= _ORDERED else (tuple(names), tuple(reversed(names)))
    for order in orders:
        for zones in [*([zone] for zone in every), *([every] if len(every) > 1 else [])]:
            yield [node for name in order for zone in zones for node in _nodes(space, name, zone)]


def _nodes(space: Space, name: str, zone: str) -> Iterator[tuple[int, int]]:
    """Yield the nodes of an accelerator in a zone, the largest first, and of equal ones the cheapest."""
    pools = [n for n, pool in enumerate(space.pools) if (pool.accelerator.name, pool.offer.zone) == (name, zone)]
    left = {space.pools[number].row: space.candidates.rows[space.pools[number].row].devices for number in pools}
    for number in sorted(pools, key=lambda n: (-space.pools[n].devices, space.rates[n].expected, n)):
        pool = space.pools[number]
        count = min(pool.max_nodes, left[pool.row] // pool.devices)
        left[pool.row] -= count * pool.devices
        yield from ((number, instance) for instance in range(count))


def _filled(space: Space, nodes: Sequence[tuple[int, int]]) -> Shape | None:
    """Return a pipeline through the first of some nodes, in reverse; None if they can't hold all layers."""
    slots: list[Slot] = []
    firsts = [space.layers]
    for pool, instance in nodes[: space.scenario.job.constraints.max_nodes]:
        for stage in _on_node(space, pool, firsts[-1], len(slots)):
            slots.append(Slot(pool, instance, stage.tp))
            firsts.append(stage.first)
        if firsts[-1] == 0:
            slots.reverse()
            return Shape(slots=tuple(slots), cut=_cut(space, slots, tuple(reversed(firsts))), microbatch_size=1)
    return None


def _on_node(space: Space, pool: int, end: int, behind: int) -> list[_Stage]:
    """Return the stages of a node that hold most of the layers before `end`; `behind`: the stages after them."""
    best: dict[int, list[_Stage]] = {0: []}
    for used in range(space.pools[pool].devices):
        if used not in best:
            continue
        stages = best[used]
        before = stages[-1].first if stages else end
        for tp in space.tp_degrees[pool]:
            first = _first(space, pool, tp, before, behind + len(stages) + 1)
            if used + tp <= space.pools[pool].devices and first < before:
                longer = [*stages, _Stage(tp, first)]
                best[used + tp] = min(longer, best.get(used + tp, longer), key=lambda row: (row[-1].first, len(row)))
    return min(best.values(), key=lambda row: (row[-1].first if row else end, len(row)))


def _first(space: Space, pool: int, tp: int, end: int, in_flight: int) -> int:
    """Return the first layer of the longest stage before `end` that fits with some samples in flight; `end` if none."""
    most = space.stages(Seat(pool, tp, 0), 1, 1).most[:, :end, end].max(axis=0)
    fitting_from = np.flatnonzero(most >= min(in_flight, space.batch))
    return int(fitting_from[0]) if fitting_from.size else end


def _cut(space: Space, slots: Sequence[Slot], otherwise: tuple[int, ...]) -> tuple[int, ...]:
    """Return a cut that keeps the busiest stage short."""
    found = Cutter(space).cut(seats_of(tuple(slots)), size=1, microbatches=space.batch, replicas=1)
    return otherwise if found is None else found[0]
