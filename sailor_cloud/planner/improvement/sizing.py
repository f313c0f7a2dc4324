"""Microbatch sizes with which pipelines of different speeds end together, and equally fast ones add up to any batch."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.space.draft import Draft
from sailor_cloud.planner.space.space import SIZES

# The samples of a microbatch by which pipelines together may exceed the need, so that fewer single microbatches leave
# exactly the batch.
_MORE = 3
# Smaller differences between the ends of pipelines are ignored.
_TIE = 1e-9
# The number of fastest shares of the batch that are judged; and times tried for the first kinds, relative to the least
# one.
_CHOSEN, _LATER = 3, (1.0, 1.02, 1.05, 1.1, 1.2)
# Halvings of the interval that holds the least time.
_HALVINGS = 24
# The samples by which one of two kinds may deviate from what the time allows, so that they add up to the batch.
_NEAR = 512


@dataclass(slots=True)
class _Alike:
    """Equally fast pipelines: each of the first `larger` members takes one sample more than `size`.

    `most`: the largest size that fits, if known.
    """

    members: list[int]
    end_s: Callable[[int], float]
    size: int = 1
    larger: int = 0
    most: float = math.inf
    _known: dict[int, float] = field(default_factory=dict)

    def fitting(self, size: int) -> int:
        """Return the size, or the largest one that fits, which becomes `most`; the smallest size fits.

        Powers of two are tried first, so that searches with other sizes share the cached results.
        """
        if size > self.most:
            return int(self.most)
        low = 1
        while 2 * low <= size and math.isfinite(self.end(2 * low)):
            low *= 2
        high = 2 * low
        if high > size:
            if math.isfinite(self.end(size)):
                return size
            high = size
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if math.isfinite(self.end(middle)) else (low, middle)
        self.most = low
        return low

    def end(self, size: int) -> float:
        """Return when a pipeline with microbatches of a size ends, infinite if they do not fit."""
        if size not in self._known:
            self._known[size] = self.end_s(size)
        return self._known[size]

    @property
    def total_samples(self) -> int:
        """The samples of one microbatch of all members."""
        return self.size * len(self.members) + self.larger

    @property
    def last_s(self) -> float:
        """The end of the last member that could take one sample less; minus infinity if none can."""
        if self.larger:
            return self.end(self.size + 1)
        return self.end(self.size) if self.size > 1 else -math.inf

    @property
    def next_s(self) -> float:
        """The end of the next member if it takes one sample more."""
        return self.end(self.size + 1)

    def move(self, samples: int) -> None:
        """Let one member take a sample more or less."""
        self.size, self.larger = divmod(self.total_samples + samples, len(self.members))


def with_balanced_sizes(
    assessor: Assessor, shapes: Iterable[Shape], microbatches: int, *, below_s: float = math.inf
) -> Draft | None:
    """Return the draft of pipelines on given slots and cuts, with microbatch sizes that make them end together.

    Each has `microbatches` microbatches; the sizes in the shapes are ignored. If the number does not divide the batch,
    a few pipelines take fewer or more. None if no such sizes fit or add up to the batch.
    """
    ordered = sorted(shapes, key=lambda shape: shape.slots)
    alike = _alike(assessor, ordered, microbatches)
    wanted = -(-assessor.space.batch // microbatches)
    if wanted < len(ordered) or not alike or not _initial_sizes(alike, wanted):
        return None
    if assessor.space.batch % microbatches == 0:
        return (
            assessor.draft(_sized(ordered, alike), microbatches=[microbatches] * len(ordered), below_s=below_s)
            if _level(alike, wanted)
            else None
        )
    for more in range(_MORE):
        if not _level(alike, wanted + more):
            return None
        draft = assessor.draft(_sized(ordered, alike), below_s=below_s)
        if draft is not None:
            return draft
    return None


def _alike(assessor: Assessor, shapes: Sequence[Shape], microbatches: int) -> list[_Alike]:
    """Return the pipelines grouped by speed; empty if they exceed a quota."""
    places = assessor.places(tuple(shape.slots for shape in shapes))
    members: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for number, (shape, place) in enumerate(zip(shapes, places, strict=False)):
        members.setdefault((place, shape.cut), []).append(number)

    def ends(place: int, shape: Shape) -> Callable[[int], float]:
        fill_s, busy_s = (each.tolist() for each in assessor.by_size(place, shape.cut, len(shapes)))
        known: dict[int, float] = {
            size: (microbatches - 1) * busy + fill for size, fill, busy in zip(SIZES, fill_s, busy_s, strict=False)
        }
        largest = SIZES[len(known)] if len(known) < len(SIZES) else math.inf

        def end_s(size: int) -> float:
            if size in known:
                return known[size]
            pace = assessor.pace(place, _of_size(shape, size), len(shapes)) if size < largest else None
            return math.inf if pace is None else pace.schedule_s(microbatches)

        return end_s

    return [_Alike(numbers, ends(place, shapes[numbers[0]])) for (place, _), numbers in members.items()]


def _initial_sizes(alike: Sequence[_Alike], wanted: int) -> bool:
    """Divide the samples of a microbatch roughly by the speed of pipelines; False if they do not fit."""
    mean = round(wanted / sum(len(each.members) for each in alike))
    for each in alike:
        if math.isinf(each.end(1)):
            return False
        each.size = max(1, mean)
        largest = each.fitting(each.size)
        while each.size > largest:
            each.size //= 2
    speeds = [each.size / each.end(each.size) for each in alike]
    total_samples = sum(len(each.members) * speed for each, speed in zip(alike, speeds, strict=True))
    for each, speed in zip(alike, speeds, strict=True):
        each.size = each.fitting(max(1, int(wanted * speed / total_samples)))
    most = sum(each.most * len(each.members) for each in alike)
    return most >= wanted


def _level(alike: Sequence[_Alike], wanted: int) -> bool:
    """Balance `wanted` samples of a microbatch so that the last pipeline ends soonest; False if that is impossible.

    Each step takes a sample from the pipeline that ends last, or gives one to the pipeline that would then end first.
    """
    left = wanted - sum(each.total_samples for each in alike)
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
    return [_of_size(shape, size) for shape, size in zip(shapes, sizes, strict=True)]


def _of_size(shape: Shape, size: int) -> Shape:
    return Shape(shape.slots, shape.cut, size)


@dataclass(frozen=True, slots=True)
class _Kind:
    """Equally fast pipelines; by microbatch size from 1 on, the seconds of the first microbatch and of each other.

    `most`: the samples that one of them may take; `counts`: the microbatches in them, by size. `by_size`: each size and
    its seconds.
    """

    members: list[int]
    fill_s: NDArray[np.float64]
    busy_s: NDArray[np.float64]
    sizes: NDArray[np.int64]
    most: int
    by_size: list[tuple[int, float, float]]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, assessor: Assessor, place: int, shape: Shape, members: list[int], pipelines: int) -> _Kind:
        most = (assessor.space.batch - pipelines + len(members)) // len(members)
        fill_s, busy_s = assessor.by_size(place, shape.cut, pipelines)
        fitting = min(bisect_right(SIZES, most), len(fill_s))
        fill_s, busy_s, sizes = fill_s[:fitting], busy_s[:fitting], np.array(SIZES[:fitting])
        by_size = list(zip(SIZES, fill_s.tolist(), busy_s.tolist(), strict=False))
        return cls(members, fill_s, busy_s, sizes, most, by_size, most // sizes)

    def ends(self, samples: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return the earliest time to finish each number of samples."""
        count, rest = np.divmod(samples, self.sizes[:, None])
        seconds = np.where((rest == 0) & (count > 0), self.fill_s[:, None] + self.busy_s[:, None] * (count - 1), np.inf)
        return np.asarray(seconds.min(axis=0))

    def end(self, samples: int) -> tuple[float, int]:
        """Return the earliest time to finish `samples`, and the size for it; 0 if no size divides them."""
        return min(
            (
                (fill_s + busy_s * (samples // size - 1), size)
                for size, fill_s, busy_s in self.by_size
                if size <= samples and samples % size == 0
            ),
            default=(math.inf, 0),
        )

    def least_s(self, samples: int) -> float:
        """Return the earliest time at which a pipeline can finish at least `samples`, or the most that it may take."""
        samples = min(samples, self.most)
        counts = -(-samples // self.sizes)
        seconds = np.where(counts * self.sizes <= self.most, self.fill_s + self.busy_s * (counts - 1), np.inf)
        return float(seconds.min())

    def within(self, seconds: float) -> int:
        """Return the most samples that a pipeline can process in a time; at least one."""
        counts = np.floor((seconds - self.fill_s) / self.busy_s * (1.0 + 1e-12)).astype(np.int64) + 1
        return max(1, int((self.sizes * np.minimum(counts, self.counts)).max()))

    def fastest(self, seconds: float) -> list[int]:
        """Return the sizes; those with which a pipeline processes most samples in a time come first."""
        total_samples = self.sizes * (seconds - self.fill_s + self.busy_s) / self.busy_s
        return [int(size) for size in self.sizes[np.argsort(-total_samples, kind="stable")]]


def _least_s(kinds: Sequence[_Kind], batch: int) -> float:
    """Return the least time in which pipelines process at least the batch, with equal shares within each kind."""
    if len(kinds) == 1:
        return kinds[0].least_s(-(-batch // len(kinds[0].members)))
    low, high = 0.0, max(kind.end(kind.most)[0] for kind in kinds)
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        total_samples = sum(len(kind.members) * kind.within(middle) for kind in kinds)
        low, high = (low, middle) if total_samples >= batch else (middle, high)
    return high


def _sizes_within(kinds: Sequence[_Kind], batch: int, seconds: float) -> Iterator[tuple[int, ...]]:
    """Yield microbatch sizes by kind that are fast in a time and can make up the batch."""
    fastest = [kind.fastest(seconds) for kind in kinds]
    if len(kinds) == 1:
        fastest = [[size for size in fastest[0] if batch % size == 0]]
    for turn in range(_CHOSEN):
        sizes = tuple(each[min(turn, len(each) - 1)] for each in fastest)
        if batch % math.gcd(*sizes) == 0:
            yield sizes


def _shares(kinds: Sequence[_Kind], batch: int, seconds: float) -> Iterator[tuple[int, ...]]:
    """Yield samples by kind that make up the batch, close to what they process in a time."""
    counts = [len(kind.members) for kind in kinds]
    if len(kinds) == 1:
        if batch % counts[0] == 0:
            yield (batch // counts[0],)
        return
    # The two kinds with the fewest pipelines come closest to the batch.
    last = sorted(range(len(kinds)), key=lambda number: (counts[number], number))[:2]
    for later in _LATER if len(kinds) > 2 else (1.0,):
        share = [kind.within(seconds * later) for kind in kinds]
        rest = batch - sum(share[n] * counts[n] for n in range(len(kinds)) if n not in last)
        a, b = last
        # Numbers far from what is processed in that time end later.
        first = np.arange(max(1, share[a] - _NEAR), min(kinds[a].most, rest // counts[a], share[a] + _NEAR) + 1)
        second, left = np.divmod(rest - first * counts[a], counts[b])
        allowed = (left == 0) & (second >= 1) & (second <= kinds[b].most)
        first, second = first[allowed], second[allowed]
        ends = np.maximum(kinds[a].ends(first), kinds[b].ends(second))
        for at in np.argsort(ends, kind="stable")[:_CHOSEN]:
            share[a], share[b] = int(first[at]), int(second[at])
            yield tuple(share)


@dataclass(frozen=True, slots=True)
class Apportioned:
    """Pipelines on given slots and cuts whose microbatch sizes and numbers are chosen by kind.

    All pipelines of a kind take equally many samples, in the fastest microbatches. `least_s`: the least time in which
    they process the batch, without all-reduces; infinite if they do not fit or exceed a quota.
    """

    assessor: Assessor
    shapes: Sequence[Shape]
    kinds: Sequence[_Kind]
    least_s: float

    @classmethod
    def of(cls, assessor: Assessor, shapes: Sequence[Shape]) -> Apportioned:
        """Return the pipelines by kind."""
        places = assessor.places(tuple(shape.slots for shape in shapes))
        members: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for number, (shape, place) in enumerate(zip(shapes, places, strict=False)):
            members.setdefault((place, shape.cut), []).append(number)
        kinds: list[_Kind] = []
        if len(shapes) <= assessor.space.batch:
            for (place, _), numbers in members.items():
                kinds.append(_Kind.of(assessor, place, shapes[numbers[0]], numbers, len(shapes)))
        fit = bool(kinds) and all(kind.fill_s.size for kind in kinds)
        return cls(assessor, shapes, kinds, _least_s(kinds, assessor.space.batch) if fit else math.inf)

    def drafts(self) -> list[Draft]:
        """Return the drafts with the fastest shares of the batch.

        First, each kind gets what it can process in a common time. Then two kinds complete the batch together, as soon
        as possible. If equal shares miss the batch and this takes longer than the common time, some pipelines have one
        microbatch less than others.
        """
        if math.isinf(self.least_s):
            return []
        assessor, kinds, batch = self.assessor, self.kinds, self.assessor.space.batch
        found: dict[tuple[int, ...], float] = {}
        for share in _shares(kinds, batch, self.least_s):
            found[share] = max(kind.end(samples)[0] for kind, samples in zip(kinds, share, strict=True))
        drafts = []
        if min(found.values(), default=math.inf) > self.least_s * _LATER[1]:
            for sizes in _sizes_within(kinds, batch, self.least_s):
                drafts.append(assessor.draft(self._sized(sizes)))
        for share in sorted(found, key=lambda share: (found[share], share))[:_CHOSEN]:
            if math.isinf(found[share]):
                break
            sizes = tuple(kind.end(samples)[1] for kind, samples in zip(kinds, share, strict=True))
            counts = [0] * len(self.shapes)
            for kind, samples, size in zip(kinds, share, sizes, strict=True):
                for member in kind.members:
                    counts[member] = samples // size
            drafts.append(assessor.draft(self._sized(sizes), microbatches=counts))
        return [draft for draft in drafts if draft is not None]

    def _sized(self, sizes: Sequence[int]) -> list[Shape]:
        """Return the shapes with a microbatch size for each kind."""
        sized = list(self.shapes)
        for kind, size in zip(self.kinds, sizes, strict=True):
            for member in kind.members:
                sized[member] = _of_size(self.shapes[member], size)
        return sized
