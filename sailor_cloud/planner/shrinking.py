"""Plans that do with one node less than a given one, or with a smaller node in its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sailor_cloud.planner.assess import Shape
from sailor_cloud.planner.blocks.cuts import Cutter
from sailor_cloud.planner.blocks.schedule import UncutPipeline
from sailor_cloud.planner.draft import Draft, DraftPipeline, nodes_of, seats_of
from sailor_cloud.planner.layouts import Slot
from sailor_cloud.planner.space import Space

_Node = tuple[int, int]


@dataclass
class Shrinker:
    """Makes plans smaller; what times of stages it needs is looked up once."""

    space: Space
    cutter: Cutter = field(init=False)

    def __post_init__(self) -> None:
        self.cutter = Cutter(self.space)

    def smaller(self, draft: Draft) -> Iterator[tuple[Shape, ...]]:
        """Yield the plan without one node, and with smaller ones of the same row instead; once for equal nodes.

        Stages that have no place any more hand their layers to the others of their pipeline, which is cut anew;
        pipelines without a stage are gone.
        """
        seen = set()
        for node in sorted({(slot.pool, slot.instance) for part in draft.pipelines for slot in part.slots}):
            role = tuple(sorted(_role(part, node) for part in draft.pipelines if _role(part, node)[0]))
            if (node[0], role) in seen:
                continue
            seen.add((node[0], role))
            for other in (None, *self._instead(draft, node[0])):
                shapes = self._without(draft, node, other)
                if shapes is not None:
                    yield shapes

    def _instead(self, draft: Draft, pool: int) -> list[int]:
        """Return the cheapest pools of each smaller node size in the row of a pool, those with a node left."""
        counts = nodes_of(tuple(part.slots for part in draft.pipelines))
        best: dict[int, int] = {}
        for index, other in enumerate(self.space.pools):
            smaller = other.row == self.space.pools[pool].row and other.devices < self.space.pools[pool].devices
            if smaller and counts[index] < other.max_nodes:
                known = best.get(other.devices)
                if known is None or self.space.rates[index].expected < self.space.rates[known].expected:
                    best[other.devices] = index
        return [best[devices] for devices in sorted(best, reverse=True)]

    def _without(self, draft: Draft, node: _Node, other: int | None) -> tuple[Shape, ...] | None:
        """Return the plan with a node of another pool instead of one, or nothing; None where nothing is left."""
        room = 0 if other is None else self.space.pools[other].devices
        used = {slot.instance for part in draft.pipelines for slot in part.slots if slot.pool == other}
        instance = max(used, default=-1) + 1
        shapes = []
        for part in draft.pipelines:
            slots: list[Slot] = []
            for slot in part.slots:
                if (slot.pool, slot.instance) != node:
                    slots.append(slot)
                elif other is not None and slot.tp <= room:
                    room -= slot.tp
                    slots.append(Slot(other, instance, slot.tp))
            cut = part.cut if len(slots) == len(part.slots) else self._cut(part, slots, len(draft.pipelines))
            if slots and cut is None:
                return None
            if slots and cut is not None:
                shapes.append(Shape(slots=tuple(slots), cut=cut, microbatch_size=part.microbatch_size))
        return tuple(shapes) or None

    def _cut(self, part: DraftPipeline, slots: list[Slot], replicas: int) -> tuple[int, ...] | None:
        if not slots:
            return None
        pipeline = UncutPipeline(
            seats=seats_of(tuple(slots)),
            flows=(),
            size=part.microbatch_size,
            microbatches=part.microbatches,
            replicas=replicas,
        )
        found = self.cutter.cut(pipeline)
        return None if found is None else found[0]


def _role(part: DraftPipeline, node: _Node) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    """Return the stages of a pipeline that stand on a node, and what tells it from other pipelines."""
    stages = tuple(s for s, slot in enumerate(part.slots) if (slot.pool, slot.instance) == node)
    return stages, part.cut, tuple(slot.tp for slot in part.slots), part.microbatch_size
