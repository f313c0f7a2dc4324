"""Times every cut of the layers over a given sequence of seats, for every number of samples."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.simulator import busy_s, fill_s, in_flight

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineTable:
    """All cuts of one sequence of seats.

    cuts: shape [cuts, stages + 1], from 0 to the number of layers. seconds, microbatch: shape [cuts, batch + 1], the
    least seconds of an iteration for a number of samples and the microbatch size that reaches them (infinite and 0
    where nothing fits). update_s, usd_per_sample: shape [cuts]; the latter is egress between the stages.
    """

    seats: tuple[Seat, ...]
    cuts: Ints
    seconds: Floats
    microbatch: Ints
    update_s: Floats
    usd_per_sample: Floats


def all_cuts(layers: int, stages: int) -> Ints:
    """Return every way to cut the layers into so many stages, shape [cuts, stages + 1]."""
    inner = np.array(list(combinations(range(1, layers), stages - 1)), dtype=np.int64)
    ends = np.full((len(inner), 1), layers, dtype=np.int64)
    return np.hstack([np.zeros_like(ends), inner, ends])


def pipeline_table(space: Space, seats: tuple[Seat, ...], *, replicas: int, flows: tuple[int, ...]) -> PipelineTable:
    """Return the table of one sequence of seats, as one of `replicas` pipelines.

    flows: per cut, how many cuts of the whole plan share its network card.
    """
    cuts = all_cuts(space.layers, len(seats))
    seconds = np.full((len(cuts), space.batch + 1), np.inf)
    microbatch = np.zeros((len(cuts), space.batch + 1), dtype=np.int64)
    for size in range(1, space.batch + 1):
        boundary = _boundary_s(space, seats, cuts, size, flows)
        if not _add_microbatch_size(space, seats, cuts, size, boundary, replicas, seconds, microbatch):
            break
    first, end = cuts[:, :-1], cuts[:, 1:]
    update = np.stack(
        [
            np.asarray(
                space.table(seat.pool, seat.tp, 1, recompute=False).update_s(first[:, s], end[:, s], shards=replicas)
            )
            for s, seat in enumerate(seats)
        ]
    ).max(axis=0)
    return PipelineTable(
        seats=seats,
        cuts=cuts,
        seconds=seconds,
        microbatch=microbatch,
        update_s=update,
        usd_per_sample=sum(
            (space.cut_usd_per_sample(src, dst)[cuts[:, s + 1]] for s, (src, dst) in enumerate(pairwise(seats))),
            start=np.zeros(len(cuts)),
        ),
    )


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


def _boundary_s(space: Space, seats: tuple[Seat, ...], cuts: Ints, size: int, flows: tuple[int, ...]) -> Floats:
    """Return the seconds of one microbatch's tensors over every cut, shape [cuts, stages - 1]."""
    if len(seats) == 1:
        return np.zeros((len(cuts), 0))
    return np.stack(
        [
            space.boundary(src, dst, size, flows=shared)[cuts[:, s + 1]]
            for s, ((src, dst), shared) in enumerate(zip(pairwise(seats), flows, strict=True))
        ],
        axis=1,
    )


def _add_microbatch_size(
    space: Space,
    seats: tuple[Seat, ...],
    cuts: Ints,
    size: int,
    boundary: Floats,
    replicas: int,
    seconds: Floats,
    microbatch: Ints,
) -> bool:
    """Enter one microbatch size into the table; False if no cut fits in memory even with one microbatch."""
    stages = len(seats)
    most = space.batch // size
    fitted = False
    for first, last, tables in _groups(space, seats, size, min(stages, most), replicas):
        compute = np.stack([table[cuts[:, s], cuts[:, s + 1]] for s, table in enumerate(tables)], axis=1)
        fits = np.isfinite(compute).all(axis=1)
        if not fits.any():
            break
        fitted = True
        rows = np.flatnonzero(fits)
        bottleneck = busy_s(compute[rows], boundary[rows], execution=space.scenario.execution).max(axis=1)
        fill = fill_s(compute[rows], boundary[rows])
        counts = np.arange(first, (most if last == stages else last) + 1)
        at = np.ix_(rows, counts * size)
        taken = (counts - 1) * bottleneck[:, None] + fill[:, None]
        better = taken < seconds[at]
        seconds[at] = np.where(better, taken, seconds[at])
        microbatch[at] = np.where(better, size, microbatch[at])
    return fitted


def _groups(
    space: Space, seats: tuple[Seat, ...], size: int, most: int, replicas: int
) -> list[tuple[int, int, tuple[Floats, ...]]]:
    """Return from which to which number of microbatches the stages' times are the same, and those of each stage.

    They differ only where memory decides on recomputation: stages hold more microbatches at once, up to one per stage.
    """
    found: list[tuple[int, int, tuple[Floats, ...]]] = []
    for count in range(1, most + 1):
        tables = tuple(
            space.stages_s(seat, size, in_flight=in_flight(len(seats), s, count), replicas=replicas)
            for s, seat in enumerate(seats)
        )
        if found and all(here is there for here, there in zip(tables, found[-1][2], strict=True)):
            found[-1] = (found[-1][0], count, tables)
        else:
            found.append((count, count, tables))
    return found
