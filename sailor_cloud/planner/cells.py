"""Cells of a plan: pipelines that share nodes with one another and with no others, so that one can come or go alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sailor_cloud.planner.assess import Shape
from sailor_cloud.planner.draft import seats_of
from sailor_cloud.planner.layouts import Slot

Cell = tuple[Shape, ...]


def fewer_or_more(shapes: tuple[Shape, ...]) -> Iterator[tuple[Shape, ...]]:
    """Yield plans with one cell less, and with one more on nodes of its own, for each sort of cells."""
    cells = cells_of(shapes)
    if len(cells) == 1:
        return
    sorts: dict[tuple[object, ...], Cell] = {}
    for cell in cells:
        sorts.setdefault(_sort(cell), cell)
    for cell in sorts.values():
        gone = {shape.slots for shape in cell}
        yield tuple(shape for shape in shapes if shape.slots not in gone)
        yield (*shapes, *_again(cell, shapes))


def cells_of(shapes: tuple[Shape, ...]) -> list[Cell]:
    """Return the cells of a plan, in the order of their first pipelines."""
    cells: list[tuple[set[tuple[int, int]], list[Shape]]] = []
    for shape in shapes:
        nodes, members = {(slot.pool, slot.instance) for slot in shape.slots}, [shape]
        apart = []
        for there, others in cells:
            if there & nodes:
                nodes, members = nodes | there, [*others, *members]
            else:
                apart.append((there, others))
        cells = [*apart, (nodes, members)]
    return sorted((tuple(members) for _, members in cells), key=lambda cell: cell[0].slots)


def _sort(cell: Cell) -> tuple[object, ...]:
    """Return what cells on other nodes of the same pools have in common."""
    seats = iter(seats_of(tuple(slot for shape in cell for slot in shape.slots)))
    return tuple((tuple(next(seats) for _ in shape.slots), shape.cut, shape.microbatch_size) for shape in cell)


def _again(cell: Cell, shapes: tuple[Shape, ...]) -> Cell:
    """Return a cell on nodes that no pipeline uses."""
    opened: dict[int, int] = {}
    for shape in shapes:
        for slot in shape.slots:
            opened[slot.pool] = max(opened.get(slot.pool, 0), slot.instance + 1)
    numbers: dict[tuple[int, int], int] = {}
    for node in sorted({(slot.pool, slot.instance) for shape in cell for slot in shape.slots}):
        numbers[node] = opened[node[0]]
        opened[node[0]] += 1
    return tuple(
        replace(
            shape,
            slots=tuple(Slot(slot.pool, numbers[slot.pool, slot.instance], slot.tp) for slot in shape.slots),
        )
        for shape in cell
    )
