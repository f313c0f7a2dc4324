"""The fastest mix of pipelines over one cut: which kinds its replicas are of, as an integer programme."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.even.costs import StageCosts
from sailor_cloud.planner.programme import integer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Beginnings of pipelines over a cut that are kept, the fastest ones.
_MOST = 4000
_NODES = 200
_EXACT = 1e-6
# Vectors of devices that are looked at as a grid, at most.
_CELLS = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """Pipelines of one microbatch size over one cut: how many of each sequence of kinds.

    seconds: what an iteration takes at least by their costs, gradient sums left out.
    """

    size: int
    cut: tuple[int, ...]
    pipelines: tuple[tuple[int, tuple[int, ...]], ...]
    seconds: float

    @property
    def replicas(self) -> int:
        return sum(count for count, _ in self.pipelines)


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Pipelines over one cut: kinds [pipelines, stages], use [pipelines, pools], seconds of one microbatch's way with
    the update, and of the busiest stage."""

    kinds: Ints
    use: Ints
    way_s: Floats
    busiest_s: Floats


def fastest_mix(
    costs: StageCosts, devices: Ints, cut: tuple[int, ...], replicas: int, shares: tuple[int, int], below_s: float
) -> Mix | None:
    """Return the mix of pipelines over a cut whose slowest one is fastest, of all within the devices; None if none.

    shares: the most microbatches of a pipeline, and how many pipelines have these; the others have one less. Mixes that
    take `below_s` or more by their costs are of no use.
    """
    every = _sequences(costs, cut, shares[0] - (shares[1] < replicas), below_s)
    if every is None:
        return None
    more = every.way_s + (shares[0] - 1) * every.busiest_s
    fewer = every.way_s + (shares[0] - 2) * every.busiest_s if shares[1] < replicas else more
    limits = np.unique(np.concatenate([more, fewer]))
    limits = limits[limits < below_s]
    best, low, high = None, 0, len(limits) - 1
    while low <= high:
        middle = (low + high) // 2
        chosen = _whole(every, devices, replicas, shares[1], (more <= limits[middle], fewer <= limits[middle]))
        if chosen is None:
            low = middle + 1
        else:
            best, high = (chosen, float(limits[middle])), middle - 1
    if best is None:
        return None
    counts, seconds = best
    pipelines = tuple((count, tuple(int(kind) for kind in every.kinds[at])) for at, count in sorted(counts.items()))
    return Mix(size=costs.size, cut=cut, pipelines=pipelines, seconds=seconds)


def _sequences(costs: StageCosts, cut: tuple[int, ...], microbatches: int, below_s: float) -> _Sequences | None:
    """Return the pipelines over a cut that may be fast enough."""
    spans, stages = list(pairwise(cut)), len(cut) - 1
    if stages > costs.max_stages:
        return None
    kinds = np.zeros((1, 0), dtype=np.int64)
    way, busiest, opened, update = (np.zeros(1) for _ in range(4))
    for stage, (first, end) in enumerate(spans):
        compute = costs.compute_s[stages - 1 - stage, :, first, end]
        able = np.flatnonzero(np.isfinite(compute))
        row, kind = np.repeat(np.arange(len(kinds)), len(able)), np.tile(able, len(kinds))
        spent = compute[kind]
        way_s, busy_s, open_s = way[row] + spent, busiest[row], spent
        if stage:
            last = kinds[row, -1]
            scale = costs.first_after[stages - 1] if stage == 1 else 1.0
            behind = costs.last_before if stage + 1 == stages else 1.0
            way_s = (
                way_s + scale * costs.after_way_s[last, kind, first] + behind * costs.before_way_s[last, kind, first]
            )
            busy_s = np.maximum(busy_s, opened[row] + scale * costs.after_s[last, kind, first])
            open_s = spent + behind * costs.before_s[last, kind, first]
        updates = np.maximum(update[row], costs.update_s[kind, first, end])
        total = way_s + updates + (microbatches - 1) * np.maximum(busy_s, open_s)
        kept = np.flatnonzero(total < below_s)
        kept = kept[np.argsort(total[kept], kind="stable")[:_MOST]]
        if not len(kept):
            return None
        kinds = np.hstack([kinds[row[kept]], kind[kept, None]])
        way, busiest, opened, update = way_s[kept], busy_s[kept], open_s[kept], updates[kept]
    return _Sequences(kinds, costs.use[kinds].sum(axis=1), way + update, np.maximum(busiest, opened))


def _whole(
    every: _Sequences, devices: Ints, replicas: int, more: int, able: tuple[NDArray[np.bool_], NDArray[np.bool_]]
) -> dict[int, int] | None:
    """Return how many pipelines of each sequence there may be: `more` of the first able ones, the rest of the second.

    Of sequences that use no less than another only that other one is looked at.
    """
    columns = [_leanest(every, np.flatnonzero(each)) for each in able]
    if not len(columns[1]) or (more and not len(columns[0])):
        return None
    chosen = np.concatenate(columns)
    larger = np.arange(len(chosen)) < len(columns[0])
    rows = np.vstack([every.use[chosen].T, larger, ~larger]).astype(np.float64)
    least = np.concatenate([np.full(len(devices), -np.inf), [more, replicas - more]])
    most = np.concatenate([devices, [more, replicas - more]]).astype(np.float64)
    cost = every.busiest_s[chosen] / every.busiest_s[chosen].max()
    counts = integer(cost, rows, least, most, nodes=_NODES, gap=_EXACT)
    if counts is None:
        return None
    found: dict[int, int] = {}
    for at, count in zip(chosen, counts, strict=True):
        if count:
            found[int(at)] = found.get(int(at), 0) + int(count)
    return found


def _leanest(every: _Sequences, able: Ints) -> Ints:
    """Return the sequences that use fewer devices of some pool than each of the others, the fastest of equals."""
    if not len(able):
        return able
    ordered = able[np.lexsort((every.way_s[able], every.busiest_s[able]))]
    use = every.use[ordered]
    # One number for each vector of devices.
    _, first = np.unique(use @ np.cumprod(np.concatenate([[1], use.max(axis=0)[:-1] + 1])), return_index=True)
    kept = ordered[np.sort(first)]
    return np.asarray(kept[~_covered(every.use[kept])])


def _covered(use: Ints) -> NDArray[np.bool_]:
    """Return which vectors are no less than another one in any pool; use: [vectors, pools], all different."""
    shape = tuple(int(most) + 1 for most in use.max(axis=0))
    if math.prod(shape) > _CELLS:
        return np.asarray(((use[:, None] <= use[None]).all(axis=2) & ~np.eye(len(use), dtype=np.bool_)).any(axis=0))
    within = np.zeros(shape, dtype=np.bool_)
    within[tuple(use.T)] = True
    for axis in range(len(shape)):
        within = np.logical_or.accumulate(within, axis=axis)
    covered = np.zeros(len(use), dtype=np.bool_)
    for step in np.eye(len(shape), dtype=np.int64):
        some = (use >= step).all(axis=1)
        covered[some] |= within[tuple((use[some] - step).T)]
    return covered
