"""Lower bounds on the replay of every cut of the layers over given seats, for every number of samples.

Take stage i of S stages. Let c be the compute seconds of both passes of a microbatch through stage i. Let a_j be those
of stage j and of the cut between it and the stages nearer to i. M is the number of microbatches, A the sum of all
stages and cuts. A schedule that alternates forward and backward passes (1F1B) never ends before M c plus the largest of
three terms: the a_j before stage i; A - c - (S - 1) c / 2; and, if M > S, the a_j before stage i plus 2 a_j - c of
those after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space.space import Seat, Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# The number of cuts that are timed together, at all microbatch sizes and numbers of microbatches. From the second size
# on, each power of two is checked for whether larger sizes can fit.
_TIMED_TOGETHER, _LARGE = 20_000, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """All cuts of one sequence of seats, for one of `replicas` pipelines; `flows` share the network cards at each cut.

    cuts: shape [cuts, stages + 1], from 0 to the number of layers. seconds, early_s, core_s: shape [cuts, batch + 1],
    lower bounds over all microbatch sizes for each number of samples: until the last pass ends, until the last backward
    pass of a stage begins, and the sum over all devices (infinite if nothing fits). update_s, step_core_s,
    usd_per_sample: shape [cuts], of the shortest optimizer step, of all devices' steps, and of egress between stages.
    """

    seats: tuple[Seat, ...]
    replicas: int
    flows: tuple[int, ...]
    cuts: Ints
    seconds: Floats
    early_s: Floats
    core_s: Floats
    update_s: Floats
    step_core_s: Floats
    usd_per_sample: Floats


def all_cuts(layers: int, stages: int) -> Ints:
    """Return every way to cut the layers into `stages` stages, shape [cuts, stages + 1]."""
    inner = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64)
    ends = np.full((len(inner), 1), layers, dtype=np.int64)
    return np.hstack([np.zeros_like(ends), inner, ends])


def pipeline_table(space: Space, seats: tuple[Seat, ...], *, replicas: int, flows: tuple[int, ...]) -> PipelineTable:
    """Return the table of one sequence of seats, for one of `replicas` pipelines.

    flows: per cut, how many cuts of the whole plan share its network card.
    """
    cuts = all_cuts(space.layers, len(seats))
    if space.even_layers:
        cuts = cuts[[space.allows(cut) for cut in cuts.tolist()]]
    shape = (len(cuts), space.batch + 1)
    seconds, early, core = (np.full(shape, np.inf) for _ in range(3))
    for run in _runs(space, seats, cuts, flows, replicas):
        for least, found in ((seconds, run.seconds()), (early, run.early_s()), (core, run.core_s())):
            least[:, run.samples] = np.minimum(least[:, run.samples], found)
    first, end = cuts[:, :-1], cuts[:, 1:]
    update = np.stack(
        [
            np.asarray(space.table(seat.pool, seat.tp, 1).update_s(first[:, s], end[:, s], shards=replicas))
            for s, seat in enumerate(seats)
        ]
    )
    return PipelineTable(
        seats=seats,
        replicas=replicas,
        flows=flows,
        cuts=cuts,
        seconds=seconds,
        early_s=early,
        core_s=core,
        update_s=update.min(axis=0),
        step_core_s=np.array([seat.tp for seat in seats]) @ update,
        usd_per_sample=sum(
            (space.cut_usd_per_sample(src, dst)[cuts[:, s + 1]] for s, (src, dst) in enumerate(pairwise(seats))),
            start=np.zeros(len(cuts)),
        ),
    )


def offsets_s(compute_s: Floats, cuts_s: Floats) -> tuple[Floats, Floats]:
    """Return the seconds besides a stage's own passes, for at most as many microbatches as stages and for more.

    compute_s: shape [..., stages], of one microbatch. cuts_s: shape [..., stages - 1]. The results have the shape of
    compute_s.
    """
    stages = compute_s.shape[-1]
    nothing = np.zeros_like(compute_s[..., :1])
    way = np.cumsum(compute_s + np.concatenate([cuts_s, nothing], axis=-1), axis=-1)
    before = np.concatenate([nothing, way[..., :-1]], axis=-1)
    whole = way[..., -1:]
    after = whole - before - compute_s
    left = np.arange(stages)[::-1]
    few = np.maximum(before, whole - compute_s * (1.0 + (stages - 1) / 2.0))
    return few, np.maximum(few, before + 2.0 * after - left * compute_s)


def least_s(compute_s: Floats, cuts_s: Floats, microbatches: int) -> float:
    """Return a lower bound of the seconds of one pipeline's schedule."""
    few, many = offsets_s(compute_s, cuts_s)
    return float((microbatches * compute_s + (many if microbatches > len(compute_s) else few)).max())


@dataclass(frozen=True, slots=True)
class _Run:
    """All cuts at one microbatch size, for numbers of microbatches with the same memory decisions.

    compute_s, few_s, many_s: shape [cuts, stages], of one microbatch, and the offsets for few and for many. fits,
    passes_core_s: shape [cuts], the latter of one microbatch, all devices.
    """

    size: int
    first: int
    last: int
    compute_s: Floats
    few_s: Floats
    many_s: Floats
    fits: NDArray[np.bool_]
    passes_core_s: Floats

    @property
    def samples(self) -> slice:
        return slice(self.first * self.size, self.last * self.size + 1, self.size)

    def seconds(self) -> Floats:
        """Return a lower bound for every number of microbatches, shape [cuts, numbers]."""
        numbers, stages = np.arange(self.first, self.last + 1), self.compute_s.shape[1]
        found = np.zeros((len(self.compute_s), len(numbers)))
        for stage in range(stages):
            few, many = (offsets[:, stage, None] for offsets in (self.few_s, self.many_s))
            each = numbers * self.compute_s[:, stage, None] + np.where(numbers > stages, many, few)
            np.maximum(found, each, out=found)
        found[~self.fits] = np.inf
        return found

    def early_s(self) -> Floats:
        """Return the least seconds before the last microbatch's backward pass in any stage, shaped like `seconds`."""
        found: Floats = np.arange(self.first - 1, self.last) * self.compute_s.min(axis=1)[:, None]
        found[~self.fits] = np.inf
        return found

    def core_s(self) -> Floats:
        """Return the core-seconds of every number of microbatches, shape [cuts, numbers]."""
        return self.passes_core_s[:, None] * np.arange(self.first, self.last + 1)


def _runs(space: Space, seats: tuple[Seat, ...], cuts: Ints, flows: tuple[int, ...], replicas: int) -> Iterator[_Run]:
    """Yield the runs of all microbatch sizes, up to the first at which no cut fits even one microbatch."""
    stages = len(seats)
    waiting: list[tuple[int, int, int, tuple[Floats, ...]]] = []
    for size in range(1, space.batch + 1):
        most = space.batch // size
        for first, last, tables in _groups(space, seats, size, min(stages, most), replicas):
            waiting.append((size, first, most if last == stages else last, tables))
        # Most microbatch sizes of a large batch fit nowhere.
        over = size >= _LARGE and size.bit_count() == 1
        if len(waiting) * len(cuts) >= _TIMED_TOGETHER or size == space.batch or over:
            timed = _timed(space, seats, cuts, flows, waiting)
            yield from (run for run in timed if run.fits.any())
            if not all(run.fits.any() for run in timed if run.first == 1):
                return
            waiting = []


def _timed(
    space: Space,
    seats: tuple[Seat, ...],
    cuts: Ints,
    flows: tuple[int, ...],
    wanted: list[tuple[int, int, int, tuple[Floats, ...]]],
) -> list[_Run]:
    """Return runs with their times, all at once; wanted: size, first and last number of microbatches, stages' times."""
    stages = len(seats)
    compute = np.empty((len(wanted), len(cuts), stages))
    boundary = np.zeros((len(wanted), len(cuts), stages - 1))
    for s in range(stages):
        place = cuts[:, s] * (space.layers + 1) + cuts[:, s + 1]
        compute[:, :, s] = np.stack([tables[s].ravel() for *_, tables in wanted])[:, place]
    for s, ((src, dst), shared) in enumerate(zip(pairwise(seats), flows, strict=True)):
        each = np.stack([space.boundary(src, dst, size, flows=shared) for size, *_ in wanted])
        boundary[:, :, s] = each[:, cuts[:, s + 1]]
    fits = np.asarray(np.isfinite(compute).all(axis=2))
    compute[~fits] = 0.0
    few, many = offsets_s(compute, boundary)
    passes = np.where(fits, compute @ np.array([float(seat.tp) for seat in seats]), np.inf)
    return [
        _Run(size, first, last, compute[at], few[at], many[at], fits[at], passes[at])
        for at, (size, first, last, _) in enumerate(wanted)
    ]


def _groups(
    space: Space, seats: tuple[Seat, ...], size: int, most: int, replicas: int
) -> list[tuple[int, int, tuple[Floats, ...]]]:
    """Return ranges of the number of microbatches with equal stage times, and these times.

    Times differ only if memory forces recomputation: a stage holds up to one microbatch per stage at once.
    """

    def tables_of(count: int) -> tuple[Floats, ...]:
        return tuple(
            space.stages_s(seat, size, in_flight=min(len(seats) - s, count), replicas=replicas)
            for s, seat in enumerate(seats)
        )

    last = tables_of(most)
    found = [(1, 1, tables_of(1))]
    for count in range(2, most + 1):
        # Memory never falls as microbatches are added, so what is equal at both ends is equal in between.
        if all(here is there for here, there in zip(found[-1][2], last, strict=True)):
            found[-1] = (found[-1][0], most, last)
            break
        tables = tables_of(count)
        if all(here is there for here, there in zip(tables, found[-1][2], strict=True)):
            found[-1] = (found[-1][0], count, tables)
        else:
            found.append((count, count, tables))
    return found
