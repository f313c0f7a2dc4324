"""Stages by kind, a row of the job's limits and a tp degree, with times that no real node of the row beats.

A large search does not tell nodes apart: links are those of the row's largest instance type, and neighbouring stages of
one row stand on one node if it could hold both. So a chain's time here is a lower bound, exact on large nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.space.space import Seat, Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# A microbatch size must make a sample of some kind faster by this share.
_WORTH = 0.02

# Longer pipelines than this are not looked at in large problems.
MAX_STAGES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Stages of `tp` devices in a row; `pool` is the row's largest instance type, whose links count."""

    row: int
    tp: int
    pool: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """Times of one microbatch size.

    compute_s: [stages to the end - 1, kind, first, end], infinite where it doesn't fit in memory; recomputation only
    where nothing else fits. boundary_s: [kind, next kind, cut]. before_s, after_s: [kind, cut], the least over all
    neighbours, 0 at the ends of the model. update_s: [kind, first, end].
    """

    microbatch_size: int
    compute_s: Floats
    boundary_s: Floats
    before_s: Floats
    after_s: Floats
    update_s: Floats


@dataclass(slots=True)
class Kinds:
    """The kinds of a space and what is known about them."""

    space: Space
    members: tuple[Kind, ...]
    _times: dict[int, StageTimes | None] = field(default_factory=dict)
    _sizes: list[int] | None = None

    @classmethod
    def of(cls, space: Space) -> Kinds:
        members = []
        for row in sorted({pool.row for pool in space.pools}):
            in_row = [index for index, pool in enumerate(space.pools) if pool.row == row]
            largest = max(in_row, key=lambda index: (space.pools[index].devices, -space.rates[index].expected))
            members += [Kind(row=row, tp=tp, pool=largest) for tp in space.tp_degrees[largest]]
        return cls(space, tuple(members))

    def __len__(self) -> int:
        return len(self.members)

    @property
    def max_stages(self) -> int:
        return min(MAX_STAGES, self.space.layers)

    def times(self, microbatch_size: int) -> StageTimes | None:
        """Return the times of a microbatch size, or None where not even one layer of any kind fits in memory."""
        if microbatch_size not in self._times:
            self._times[microbatch_size] = self._build(microbatch_size)
        return self._times[microbatch_size]

    def sizes(self) -> list[int]:
        """Return the microbatch sizes worth looking at: powers of two until a sample gets no faster or none fits."""
        if self._sizes is not None:
            return self._sizes
        found: list[int] = []
        fastest = np.full(len(self.members), np.inf)
        for size in (2**power for power in range(self.space.batch.bit_length())):
            if size > self.space.batch:
                break
            tables = [self.space.table(kind.pool, kind.tp, size, recompute=False) for kind in self.members]
            each = np.array([float(table.compute_s(0, table.layers)) / size for table in tables])
            if (found and (each > fastest * (1.0 - _WORTH)).all()) or not self._any_fits(size):
                break
            found.append(size)
            fastest = np.minimum(fastest, each)
        self._sizes = found
        return found

    def _any_fits(self, size: int) -> bool:
        """Return whether at least one layer of some kind fits in memory."""
        seats = (Seat(kind.pool, kind.tp, 0) for kind in self.members)
        return any(np.isfinite(self.space.stages_s(seat, size, in_flight=1, replicas=2)).any() for seat in seats)

    @property
    def spans(self) -> tuple[Ints, Ints]:
        """First and end layer of every stage as index arrays, shape [layers + 1, layers + 1]."""
        first, end = np.indices((self.space.layers + 1, self.space.layers + 1))
        return first, np.maximum(first, end)

    def _build(self, size: int) -> StageTimes | None:
        space, layers, count = self.space, self.space.layers, len(self.members)
        whole = self._known(size)
        if whole is not None:
            return whole
        first, end = self.spans
        empty = end <= first
        shape = (self.max_stages, count, layers + 1, layers + 1)
        compute = np.full(shape, np.inf)
        update = np.zeros(shape[1:])
        for k, kind in enumerate(self.members):
            seat = Seat(kind.pool, kind.tp, 0)
            table = space.table(kind.pool, kind.tp, size, recompute=False)
            for held in range(1, self.max_stages + 1):
                compute[held - 1, k] = space.stages_s(seat, size, in_flight=held, replicas=2)
            update[k] = np.where(empty, np.inf, table.update_s(first, end))
        if not np.isfinite(compute).any():
            return None
        boundary = np.stack([np.stack([self._boundary(a, b, size) for b in self.members]) for a in self.members])
        found = _stage_times(size, compute, boundary, update)
        self._kept(size).append((self.names, found))
        return found

    @property
    def names(self) -> tuple[tuple[int, int], ...]:
        """The kinds as all spaces over the same offers know them: pool and tp."""
        return tuple((self.space.numbers[kind.pool], kind.tp) for kind in self.members)

    def _kept(self, size: int) -> list[tuple[tuple[tuple[int, int], ...], StageTimes]]:
        """Return the times that are known of the kinds of this and of other spaces."""
        kept: list[tuple[tuple[tuple[int, int], ...], StageTimes]] = self.space.known.searches.setdefault(
            f"kinds {self.space.zero_stage} {size}", []
        )
        return kept

    def _known(self, size: int) -> StageTimes | None:
        """Return the times from those of a space that has all of these kinds, or None where there is none."""
        for names, times in self._kept(size):
            if set(self.names) <= set(names):
                chosen = np.array([names.index(name) for name in self.names])
                boundary = times.boundary_s[np.ix_(chosen, chosen)]
                return _stage_times(size, times.compute_s[:, chosen], boundary, times.update_s[chosen])
        return None

    def _boundary(self, src: Kind, dst: Kind, size: int) -> Floats:
        together = src.row == dst.row and src.tp + dst.tp <= self.space.pools[src.pool].devices
        return self.space.boundary(Seat(src.pool, src.tp, 0), Seat(dst.pool, dst.tp, 0 if together else 1), size)


def _stage_times(size: int, compute: Floats, boundary: Floats, update: Floats) -> StageTimes:
    before, after = boundary.min(axis=0), boundary.min(axis=1)
    for ends in (before, after):
        ends[:, 0] = ends[:, -1] = 0.0
    return StageTimes(
        microbatch_size=size,
        compute_s=compute,
        boundary_s=boundary,
        before_s=before,
        after_s=after,
        update_s=update,
    )
