"""Improves whole plans step by step: moves a border between stages, or changes a microbatch size, while that helps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.draft import Draft

# Plans judged for one draft at most.
MOST_STEPS = 150


def refined(assessor: Assessor, draft: Draft, keeps: Callable[[Draft], bool]) -> list[Draft]:
    """Return ever better drafts that begin at one, the last of which no single step improves; nodes stay what they are.

    `keeps` tells whether a draft keeps the limits.
    """
    found: list[Draft] = []
    looked_at = 0
    seen: set[tuple[Shape, ...]] = set()
    current = draft
    while True:
        better: Draft | None = None
        for shapes in _neighbours(_shapes(current)):
            if shapes in seen:
                continue
            seen.add(shapes)
            looked_at += 1
            if looked_at > MOST_STEPS:
                return found
            candidate = assessor.draft(shapes)
            if candidate is not None and keeps(candidate) and candidate.order() < current.order():
                better = candidate
                break
        if better is None:
            return found
        found.append(better)
        current = better


def _shapes(draft: Draft) -> tuple[Shape, ...]:
    return tuple(
        Shape(slots=part.slots, cut=part.cut, microbatch_size=part.microbatch_size) for part in draft.pipelines
    )


def _neighbours(shapes: tuple[Shape, ...]) -> Iterator[tuple[Shape, ...]]:
    """Yield plans one step away: a layer moved between two stages of equal cuts, another size for equal pipelines."""
    for cut in sorted({shape.cut for shape in shapes}):
        for moved in _moved(cut):
            yield tuple(replace(shape, cut=moved) if shape.cut == cut else shape for shape in shapes)
    groups = sorted({(_tps(shape), shape.cut, shape.microbatch_size) for shape in shapes})
    for group in groups:
        size = group[2]
        for other in sorted({size - 1, size + 1, size // 2, 2 * size} - {0, size}):
            yield tuple(
                replace(shape, microbatch_size=other)
                if (_tps(shape), shape.cut, shape.microbatch_size) == group
                else shape
                for shape in shapes
            )


def _moved(cut: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the cuts in which one stage has a layer less and another one more, near ones first."""
    stages = len(cut) - 1
    pairs = [(a, b) for a in range(stages) for b in range(stages) if a != b and cut[a + 1] - cut[a] > 1]
    for loser, winner in sorted(pairs, key=lambda pair: (abs(pair[0] - pair[1]), pair)):
        step = -1 if loser < winner else 1
        between = range(min(loser, winner) + 1, max(loser, winner) + 1)
        yield tuple(border + step if at in between else border for at, border in enumerate(cut))


def _tps(shape: Shape) -> tuple[tuple[int, int], ...]:
    return tuple((slot.pool, slot.tp) for slot in shape.slots)
