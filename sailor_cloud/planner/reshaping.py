"""Plans on the nodes of a given one, or on fewer, with pipelines of another length, cut or microbatch size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from sailor_cloud.planner.assess import Shape
from sailor_cloud.planner.blocks.cuts import Cutter
from sailor_cloud.planner.blocks.schedule import UncutPipeline
from sailor_cloud.planner.blocks.ways import MAX_STAGES
from sailor_cloud.planner.draft import Draft, seats_of
from sailor_cloud.planner.layouts import Slot
from sailor_cloud.planner.space import Seat
from sailor_cloud.planner.twins import shapes_of

_Slots = tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Reshaper:
    """Makes pipelines anew, whole groups of equal ones at a time, and cuts them where they are fastest."""

    cutter: Cutter

    def others(self, draft: Draft) -> Iterator[tuple[Shape, ...]]:
        """Yield the plans in which one group is cut anew, joined in pairs, divided in two, or has a pipeline less."""
        shapes = shapes_of(draft)
        groups: dict[tuple[object, ...], list[Shape]] = {}
        for shape in shapes:
            seats = tuple((slot.pool, slot.tp) for slot in shape.slots)
            groups.setdefault((seats, shape.cut, shape.microbatch_size), []).append(shape)
        for members in groups.values():
            rest = [shape for shape in shapes if shape not in members]
            for wanted, size in self._instead(members):
                made = self.cut(wanted, size, len(rest) + len(wanted))
                if made is not None and {*rest, *made} != set(shapes):
                    yield (*rest, *made)
            if len(shapes) > 1:
                yield (*rest, *members[:-1])

    def _instead(self, members: list[Shape]) -> Iterator[tuple[list[_Slots], int]]:
        """Yield the slots of the pipelines that may take the place of equal ones, and their microbatch size."""
        size, stages = members[0].microbatch_size, len(members[0].slots)
        each = [shape.slots for shape in members]
        for other in sorted({size, 2 * size, size // 2} - {0}):
            yield each, other
        if len(members) % 2 == 0 and 2 * stages <= MAX_STAGES:
            for other in (size, 2 * size):
                yield [_joined(pair) for pair in zip(each[::2], each[1::2], strict=True)], other
        if stages % 2 == 0:
            for other in sorted({size, max(1, size // 2)}):
                yield [half for slots in each for half in (slots[::2], slots[1::2])], other

    def cut(self, wanted: Sequence[_Slots], size: int, replicas: int) -> list[Shape] | None:
        """Return pipelines of which there are so many in all, each cut to be fastest; None where one has no cut."""
        cuts: dict[tuple[Seat, ...], tuple[int, ...]] = {}
        microbatches = -(-self.cutter.space.batch // size // replicas)
        for seats in map(seats_of, wanted):
            if seats not in cuts:
                pipeline = UncutPipeline(seats=seats, flows=(), size=size, microbatches=microbatches, replicas=replicas)
                found = self.cutter.cut(pipeline)
                if found is None:
                    return None
                cuts[seats] = found[0]
        return [Shape(slots=slots, cut=cuts[seats_of(slots)], microbatch_size=size) for slots in wanted]


def in_order(shapes: Iterable[Shape]) -> tuple[Shape, ...]:
    """Return the pipelines of a plan in the order that tells equal plans."""
    return tuple(sorted(shapes, key=lambda shape: (shape.slots, shape.cut, shape.microbatch_size)))


def _joined(pair: tuple[_Slots, _Slots]) -> _Slots:
    """Return the slots of two equal pipelines, those of equal stages side by side."""
    return tuple(slot for slots in zip(*pair, strict=True) for slot in slots)
