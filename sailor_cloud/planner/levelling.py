"""Microbatch sizes that let pipelines of different speed end together, and pipelines of one speed make up any batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.draft import Draft

# By how many samples of a microbatch more pipelines may carry together than they need, so that single microbatches less
# leave the batch exactly.
_MORE = 3
# Ends of pipelines that differ by less are the same.
_TIE = 1e-9


@dataclass(slots=True)
class _Alike:
    """Pipelines that are equally fast: the first `larger` of the members take a sample more than `size`.

    `most`: the largest size that fits, where that is known.
    """

    members: list[int]
    end_s: Callable[[int], float]
    size: int = 1
    larger: int = 0
    most: float = math.inf
    _known: dict[int, float] = field(default_factory=dict)

    def fitting(self, size: int) -> int:
        """Return the size, or the largest one that fits, which is then known as the `most`; the current one fits."""
        low, high = min(self.size, size), size + 1
        if math.isfinite(self.end(size)):
            return size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if math.isfinite(self.end(middle)) else (low, middle)
        self.most = low
        return low

    def end(self, size: int) -> float:
        """Return when a pipeline with microbatches of a size ends, infinite where they don't fit."""
        if size not in self._known:
            self._known[size] = self.end_s(size)
        return self._known[size]

    @property
    def carried(self) -> int:
        """The samples of one microbatch of all members."""
        return self.size * len(self.members) + self.larger

    @property
    def last_s(self) -> float:
        """When the last one ends that could take a sample less; never where none can."""
        if self.larger:
            return self.end(self.size + 1)
        return self.end(self.size) if self.size > 1 else -math.inf

    @property
    def next_s(self) -> float:
        """When the next one would end that takes a sample more."""
        return self.end(self.size + 1)

    def move(self, samples: int) -> None:
        """Let one member take a sample more or less."""
        self.size, self.larger = divmod(self.carried + samples, len(self.members))


def levelled(assessor: Assessor, shapes: Iterable[Shape], microbatches: int) -> Draft | None:
    """Return the draft of pipelines on given slots and cuts with the microbatch sizes that let them end together.

    That is with so many microbatches each, whatever sizes the shapes have; where these don't divide the batch, a few
    pipelines take less or more. None where no such sizes fit or make up the batch.
    """
    ordered = sorted(shapes, key=lambda shape: shape.slots)
    alike = _alike(assessor, ordered, microbatches)
    wanted = -(-assessor.space.batch // microbatches)
    if wanted < len(ordered) or not alike or not _begun(alike, wanted):
        return None
    if assessor.space.batch % microbatches == 0:
        return assessor.draft(_sized(ordered, alike), microbatches=microbatches) if _level(alike, wanted) else None
    for more in range(_MORE):
        if not _level(alike, wanted + more):
            return None
        draft = assessor.draft(_sized(ordered, alike))
        if draft is not None:
            return draft
    return None


def _alike(assessor: Assessor, shapes: Sequence[Shape], microbatches: int) -> list[_Alike]:
    """Return the pipelines by what makes their speed; none where they break a quota."""
    places = assessor.places(tuple(shape.slots for shape in shapes))
    members: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, (shape, place) in enumerate(zip(shapes, places, strict=False)):
        members.setdefault((place, shape.cut), []).append(number)

    def ends(place: int, shape: Shape) -> Callable[[int], float]:
        def end_s(size: int) -> float:
            pace = assessor.pace(place, replace(shape, microbatch_size=size), len(shapes))
            return math.inf if pace is None else pace.schedule_s(microbatches)

        return end_s

    return [_Alike(numbers, ends(place, shapes[numbers[0]])) for (place, _), numbers in members.items()]


def _begun(alike: Sequence[_Alike], wanted: int) -> bool:
    """Share the samples of a microbatch out by about how fast pipelines are; False where they don't fit."""
    mean = round(wanted / sum(len(each.members) for each in alike))
    for each in alike:
        each.size = max(1, mean)
        while each.size > 1 and math.isinf(each.end(each.size)):
            each.size //= 2
        if math.isinf(each.end(each.size)):
            return False
    speeds = [each.size / each.end(each.size) for each in alike]
    carried = sum(len(each.members) * speed for each, speed in zip(alike, speeds, strict=True))
    for each, speed in zip(alike, speeds, strict=True):
        each.size = each.fitting(max(1, int(wanted * speed / carried)))
    most = sum(each.most * len(each.members) for each in alike)
    return most >= wanted


def _level(alike: Sequence[_Alike], wanted: int) -> bool:
    """Let pipelines carry so many samples of a microbatch together, and the last one end soonest; False if they can't.

    Each step takes a sample from the pipeline that ends last, or gives one to that which then ends first.
    """
    left = wanted - sum(each.carried for each in alike)
    while left:
        if left > 0:
            each = min(alike, key=lambda one: one.next_s)
            if math.isinf(each.next_s):
                return False
        else:
            each = max(alike, key=lambda one: one.last_s)
            if math.isinf(each.last_s):
                return False
        step = 1 if left > 0 else -1
        each.move(step)
        left -= step
    for _ in range(wanted):
        last, first = max(alike, key=lambda one: one.last_s), min(alike, key=lambda one: one.next_s)
        if last is first or first.next_s >= last.last_s * (1.0 - _TIE):
            break
        last.move(-1)
        first.move(1)
    return True


def _sized(shapes: Sequence[Shape], alike: Sequence[_Alike]) -> list[Shape]:
    sizes = [0] * len(shapes)
    for each in alike:
        for number, member in enumerate(each.members):
            sizes[member] = each.size + (number < each.larger)
    return [replace(shape, microbatch_size=size) for shape, size in zip(shapes, sizes, strict=True)]
