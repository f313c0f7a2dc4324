"""Improves whole plans step by step: moves a border between stages, buys nodes elsewhere, drops or adds pipelines, or
changes microbatch sizes, one or all of them, while that helps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise, product

from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.cells import fewer_or_more
from sailor_cloud.planner.draft import Draft, Rank, nodes_of
from sailor_cloud.planner.levelling import levelled
from sailor_cloud.planner.space import Space
from sailor_cloud.planner.twins import moved, renamed, shapes_of

# Pipelines, and how many microbatches they are levelled to have; None where they keep their microbatch sizes.
Step = tuple[tuple[Shape, ...], int | None]

# Plans judged for one draft at most.
MOST_STEPS = 90
# Stages that may lose a layer: all of so few, else so many that compute longest, and so many with the largest sums.
_FEW = 6
_LOSERS = 2


def refined(assessor: Assessor, draft: Draft, rank: Callable[[Draft], Rank], *, most: int = MOST_STEPS) -> list[Draft]:
    """Return ever better drafts that begin at one, the last of which no single step improves.

    `rank`: less is better. None that breaks any limit is returned. `most` plans are judged.
    """
    found: list[Draft] = []
    looked_at = 0
    seen: set[Step] = set()
    current, reached = draft, rank(draft)
    while True:
        better: Draft | None = None
        for step in steps(assessor.space, current):
            if step in seen or not bought(assessor.space, step[0]):
                continue
            seen.add(step)
            looked_at += 1
            if looked_at > most:
                return found
            candidate = made(assessor, step)
            ranked = None if candidate is None else rank(candidate)
            if ranked is not None and ranked < reached:
                better, reached = candidate, ranked
                break
        if better is None:
            return found
        current = better
        if reached[0] == 1.0:
            found.append(better)


def made(assessor: Assessor, step: Step) -> Draft | None:
    """Return what a step leads to; None where that doesn't fit."""
    shapes, microbatches = step
    return assessor.draft(shapes) if microbatches is None else levelled(assessor, shapes, microbatches)


def steps(space: Space, draft: Draft) -> Iterator[Step]:
    """Yield the plans one step away, at last those whose pipelines are levelled, on other nodes or in other numbers."""
    shapes = shapes_of(draft)
    for others in neighbours(space, shapes):
        yield others, None
    microbatches = max(part.microbatches for part in draft.pipelines)
    # Whatever their microbatch sizes are now.
    plain = tuple(replace(shape, microbatch_size=1) for shape in shapes)
    for number in sorted({microbatches - 1, microbatches + 1, microbatches // 2, 2 * microbatches} - {0, microbatches}):
        yield plain, number
    for others in fewer_or_more(plain):
        yield others, microbatches


def neighbours(space: Space, shapes: tuple[Shape, ...]) -> Iterator[tuple[Shape, ...]]:
    """Yield plans one step away.

    A layer moved between two stages of equal cuts, other nodes, a cell of pipelines less or more, another microbatch
    size for equal pipelines.
    """
    for cut in sorted({shape.cut for shape in shapes}):
        slowest = max((shape for shape in shapes if shape.cut == cut), key=lambda shape: max(_compute_s(space, shape)))
        for recut in filter(space.allows, _recut(cut, _compute_s(space, slowest), _gradient_bytes(space, slowest))):
            yield tuple(replace(shape, cut=recut) if shape.cut == cut else shape for shape in shapes)
    yield from _elsewhere(space, shapes)
    yield from fewer_or_more(shapes)
    groups = sorted({(_tps(shape), shape.cut, shape.microbatch_size) for shape in shapes})
    for group in groups:
        size = group[2]
        for other in sorted({size - 1, size + 1, size // 2, 2 * size, *_whole(space, shapes, size)} - {0, size}):
            yield tuple(
                replace(shape, microbatch_size=other)
                if (_tps(shape), shape.cut, shape.microbatch_size) == group
                else shape
                for shape in shapes
            )


def _whole(space: Space, shapes: tuple[Shape, ...], size: int) -> Iterator[int]:
    """Yield the next smaller and the next larger microbatch size that divides an equal share of the batch."""
    share, rest = divmod(space.batch, len(shapes))
    if rest == 0:
        sizes = [other for other in range(1, share + 1) if share % other == 0]
        yield from sizes[bisect_left(sizes, size) - 1 :][:1] if size > 1 else []
        yield from sizes[bisect_right(sizes, size) :][:1]


def _elsewhere(space: Space, shapes: tuple[Shape, ...]) -> Iterator[tuple[Shape, ...]]:
    """Yield the plan with the nodes of one pool bought as another offer of the same size, or all of a zone in another.

    An offer that costs more is not tried: it does nothing better.
    """
    used = sorted({slot.pool for shape in shapes for slot in shape.slots})
    places = [(pool.row, pool.devices) for pool in space.pools]
    for pool in used:
        for other, place in enumerate(places):
            if place == places[pool] and space.rates[other].expected < space.rates[pool].expected:
                yield renamed(shapes, {pool: other})
    zones = sorted({pool.offer.zone for pool in space.pools})
    for home, zone in product(sorted({space.pools[pool].offer.zone for pool in used}), zones):
        there = None if home == zone else moved(space, shapes, home, zone)
        if there is not None:
            yield there


def bought(space: Space, shapes: tuple[Shape, ...]) -> bool:
    """Return whether no row and no pool has more devices in use than it has."""
    nodes = nodes_of(tuple(shape.slots for shape in shapes))
    devices: Counter[int] = Counter()
    for pool, count in nodes.items():
        devices[space.pools[pool].row] += count * space.pools[pool].devices
    return all(count <= space.pools[pool].max_nodes for pool, count in nodes.items()) and all(
        count <= space.candidates.rows[row].devices for row, count in devices.items()
    )


def _compute_s(space: Space, shape: Shape) -> list[float]:
    """Return the compute seconds of every stage of a pipeline."""
    return [
        float(space.table(slot.pool, slot.tp, shape.microbatch_size, recompute=False).compute_s(first, end))
        for slot, (first, end) in zip(shape.slots, pairwise(shape.cut), strict=True)
    ]


def _gradient_bytes(space: Space, shape: Shape) -> list[float]:
    table = space.table(shape.slots[0].pool, shape.slots[0].tp, 1, recompute=False)
    return [float(table.gradient_bytes(first, end)) for first, end in pairwise(shape.cut)]


def _recut(cut: tuple[int, ...], compute_s: list[float], gradient_bytes: list[float]) -> Iterator[tuple[int, ...]]:
    """Yield the cuts in which a slow or large stage has a layer less and another one more, fast ones first."""
    stages = len(cut) - 1
    by_time = sorted(range(stages), key=lambda stage: (-compute_s[stage], stage))
    by_bytes = sorted(range(stages), key=lambda stage: (-gradient_bytes[stage], stage))
    losers = range(stages) if stages <= _FEW else sorted({*by_time[:_LOSERS], *by_bytes[:_LOSERS]})
    pairs = [(a, b) for a in losers for b in range(stages) if a != b and cut[a + 1] - cut[a] > 1]
    for loser, winner in sorted(pairs, key=lambda pair: (compute_s[pair[1]], pair)):
        step = -1 if loser < winner else 1
        between = range(min(loser, winner) + 1, max(loser, winner) + 1)
        yield tuple(border + step if at in between else border for at, border in enumerate(cut))


def _tps(shape: Shape) -> tuple[tuple[int, int], ...]:
    return tuple((slot.pool, slot.tp) for slot in shape.slots)
