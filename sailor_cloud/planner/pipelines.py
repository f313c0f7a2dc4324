"""Times every cut of the layers over a given sequence of seats, for every number of samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.simulator import busy_s, fill_s, in_flight

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


# Cuts that are timed together, of all microbatch sizes and numbers of microbatches.
_TIMED_TOGETHER = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """All cuts of one sequence of seats, as one of `replicas` pipelines; `flows` share the network cards at each cut.

    cuts: shape [cuts, stages + 1], from 0 to the number of layers. seconds, microbatch, core_s: shape [cuts, batch +
    1], the least seconds of an iteration for a number of samples, the microbatch size that reaches them and what all
    devices together compute (infinite, 0 and infinite where nothing fits). update_s, step_core_s, usd_per_sample: shape
    [cuts], of the longest optimizer step, of all devices' steps, and of egress between the stages. Where ranks share
    cores a cut stands there once more for each microbatch size that is slower and computes less.
    """

    seats: tuple[Seat, ...]
    replicas: int
    flows: tuple[int, ...]
    cuts: Ints
    seconds: Floats
    microbatch: Ints
    core_s: Floats
    update_s: Floats
    step_core_s: Floats
    usd_per_sample: Floats


def all_cuts(layers: int, stages: int) -> Ints:
    """Return every way to cut the layers into so many stages, shape [cuts, stages + 1]."""
    inner = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64)
    ends = np.full((len(inner), 1), layers, dtype=np.int64)
    return np.hstack([np.zeros_like(ends), inner, ends])


def pipeline_table(
    space: Space, seats: tuple[Seat, ...], *, replicas: int, flows: tuple[int, ...], crowded: bool = False
) -> PipelineTable:
    """Return the table of one sequence of seats, as one of `replicas` pipelines.

    flows: per cut, how many cuts of the whole plan share its network card. crowded: whether ranks share cores.
    """
    cuts = all_cuts(space.layers, len(seats))
    if space.even_layers:
        cuts = cuts[[space.allows(cut) for cut in cuts.tolist()]]
    sized = _sized(space, seats, cuts, flows, replicas)
    cuts, seconds, microbatch, core = _of_sizes(space, sized, cuts) if crowded else _fastest(space, sized, cuts)
    first, end = cuts[:, :-1], cuts[:, 1:]
    update = np.stack(
        [
            np.asarray(
                space.table(seat.pool, seat.tp, 1, recompute=False).update_s(first[:, s], end[:, s], shards=replicas)
            )
            for s, seat in enumerate(seats)
        ]
    )
    return PipelineTable(
        seats=seats,
        replicas=replicas,
        flows=flows,
        cuts=cuts,
        seconds=seconds,
        microbatch=microbatch,
        core_s=core,
        update_s=update.max(axis=0),
        step_core_s=np.array([seat.tp for seat in seats]) @ update,
        usd_per_sample=sum(
            (space.cut_usd_per_sample(src, dst)[cuts[:, s + 1]] for s, (src, dst) in enumerate(pairwise(seats))),
            start=np.zeros(len(cuts)),
        ),
    )


def sized_seconds(space: Space, part: PipelineTable) -> Iterator[tuple[int, Floats, Floats]]:
    """Yield every microbatch size with `seconds` and `core_s` of the table, but of that size alone."""
    yield from _sized(space, part.seats, part.cuts, part.flows, part.replicas)


def _sized(
    space: Space, seats: tuple[Seat, ...], cuts: Ints, flows: tuple[int, ...], replicas: int
) -> Iterator[tuple[int, Floats, Floats]]:
    runs = _runs(space, seats, cuts, flows, replicas)
    for size, same in groupby(runs, key=lambda run: run.size):
        seconds = np.full((len(cuts), space.batch + 1), np.inf)
        core = np.full_like(seconds, np.inf)
        for run in same:
            seconds[:, run.samples], core[:, run.samples] = run.seconds(), run.core_s()
        yield size, seconds, core


def _fastest(
    space: Space, sized: Iterator[tuple[int, Floats, Floats]], cuts: Ints
) -> tuple[Ints, Floats, Ints, Floats]:
    """Return cuts with seconds, microbatch size and core-seconds of the fastest size for each number of samples."""
    seconds = np.full((len(cuts), space.batch + 1), np.inf)
    core = np.full_like(seconds, np.inf)
    microbatch = np.zeros(seconds.shape, dtype=np.int64)
    for size, taken, computed in sized:
        better = taken < seconds
        np.copyto(seconds, taken, where=better)
        np.copyto(core, computed, where=better)
        np.copyto(microbatch, size, where=better)
    return cuts, seconds, microbatch, core


def _of_sizes(
    space: Space, sized: Iterator[tuple[int, Floats, Floats]], cuts: Ints
) -> tuple[Ints, Floats, Ints, Floats]:
    """Return as `_fastest`, each cut once more for sizes that are slower and compute less, in the order of seconds."""
    every = list(sized)
    if not every:
        return _fastest(space, iter(()), cuts)
    seconds, core = (np.stack([each[which] for each in every]) for which in (1, 2))
    order = np.lexsort((core, seconds), axis=0)
    seconds, core = (np.take_along_axis(values, order, axis=0) for values in (seconds, core))
    microbatch = np.array([size for size, *_ in every])[order]
    before = np.minimum.accumulate(np.concatenate([np.full_like(core[:1], np.inf), core[:-1]]), axis=0)
    less = core < before
    place = np.cumsum(less, axis=0) - 1
    found = []
    for number in range(int(place.max()) + 1):
        here = less & (place == number)
        rows = here.any(axis=(0, 2))
        taken, computed = (np.where(here, values, np.inf).min(axis=0)[rows] for values in (seconds, core))
        found.append((cuts[rows], taken, np.where(here, microbatch, 0).max(axis=0)[rows], computed))
    where, taken, sizes, computed = (np.concatenate(column) for column in zip(*found, strict=True))
    return where, taken, sizes, computed


def stage_recompute(
    space: Space, seats: tuple[Seat, ...], cut: Ints, size: int, count: int, *, replicas: int
) -> tuple[bool, ...]:
    """Return which stages must compute activations again to fit; only where keeping them doesn't fit."""
    chosen = []
    for s, seat in enumerate(seats):
        flight = in_flight(len(seats), s, count)
        table = space.table(seat.pool, seat.tp, size, recompute=False)
        used = table.memory_bytes(cut[s], cut[s + 1], in_flight=flight, replicas=replicas)
        chosen.append(bool(used > table.limit_bytes))
    return tuple(chosen)


@dataclass(frozen=True, slots=True)
class _Run:
    """All cuts at one microbatch size, for numbers of microbatches among which memory makes no difference.

    bottleneck_s, fill_s: shape [cuts]; infinite where a cut doesn't fit. passes_core_s: of one microbatch, all devices.
    """

    size: int
    first: int
    last: int
    bottleneck_s: Floats
    fill_s: Floats
    passes_core_s: Floats

    @property
    def samples(self) -> slice:
        return slice(self.first * self.size, self.last * self.size + 1, self.size)

    def seconds(self) -> Floats:
        """Return the seconds of every number of microbatches, shape [cuts, numbers]."""
        more = np.arange(self.first - 1, self.last)
        fits = np.isfinite(self.fill_s)[:, None]
        return np.where(fits, more * np.where(fits, self.bottleneck_s[:, None], 0.0) + self.fill_s[:, None], np.inf)

    def core_s(self) -> Floats:
        """Return the core-seconds of every number of microbatches, shape [cuts, numbers]."""
        return self.passes_core_s[:, None] * np.arange(self.first, self.last + 1)


def _runs(space: Space, seats: tuple[Seat, ...], cuts: Ints, flows: tuple[int, ...], replicas: int) -> Iterator[_Run]:
    """Yield the runs of all microbatch sizes, up to the first of which no cut fits even with one microbatch."""
    stages = len(seats)
    waiting: list[tuple[int, int, int, tuple[Floats, ...]]] = []
    for size in range(1, space.batch + 1):
        most = space.batch // size
        for first, last, tables in _groups(space, seats, size, min(stages, most), replicas):
            waiting.append((size, first, most if last == stages else last, tables))
        if len(waiting) * len(cuts) >= _TIMED_TOGETHER or size == space.batch:
            timed = _timed(space, seats, cuts, flows, waiting)
            yield from (run for run in timed if np.isfinite(run.fill_s).any())
            if not all(np.isfinite(run.fill_s).any() for run in timed if run.first == 1):
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
    fits = np.isfinite(compute).all(axis=2)
    compute[~fits] = 0.0
    bottleneck = busy_s(compute, boundary, engine=space.scenario.engine).max(axis=2)
    fill = np.where(fits, fill_s(compute, boundary), np.inf)
    passes = np.where(fits, compute @ np.array([float(seat.tp) for seat in seats]), np.inf)
    return [
        _Run(size, first, last, bottleneck[number], fill[number], passes[number])
        for number, (size, first, last, _) in enumerate(wanted)
    ]


def _groups(
    space: Space, seats: tuple[Seat, ...], size: int, most: int, replicas: int
) -> list[tuple[int, int, tuple[Floats, ...]]]:
    """Return from which to which number of microbatches the stages' times are the same, and those of each stage.

    They differ only where memory decides on recomputation: stages hold more microbatches at once, up to one per stage.
    """

    def tables_of(count: int) -> tuple[Floats, ...]:
        return tuple(
            space.stages_s(seat, size, in_flight=min(len(seats) - s, count), replicas=replicas)
            for s, seat in enumerate(seats)
        )

    last = tables_of(most)
    found = [(1, 1, tables_of(1))]
    for count in range(2, most + 1):
        # More microbatches never take less memory, so what is the same at both ends is the same in between.
        if all(here is there for here, there in zip(found[-1][2], last, strict=True)):
            found[-1] = (found[-1][0], most, last)
            break
        tables = tables_of(count)
        if all(here is there for here, there in zip(tables, found[-1][2], strict=True)):
            found[-1] = (found[-1][0], count, tables)
        else:
            found.append((count, count, tables))
    return found
