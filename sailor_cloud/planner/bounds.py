"""Lower bounds on what any plan's goal can be, from a relaxation of the same closed form."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.goals import TIE, Figure, Target
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.programme import linear
from sailor_cloud.simulator import startup_s
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def device_seconds(kinds: Kinds, usable: Bools) -> Floats:
    """Return the least device-seconds that one sample of one layer takes in each row, shape [rows, layers].

    The least over tp degrees and microbatch sizes, infinite in rows that aren't usable. A sample gets faster with the
    size, so powers of two up to the first that no longer fits cover all sizes that do.
    """
    layers, rows = kinds.space.layers, len(kinds.space.candidates.rows)
    least = np.full((rows, layers), np.inf)
    single = np.arange(layers)
    for k in np.flatnonzero(usable):
        kind, size = kinds.members[k], 1
        fits = np.ones(layers, dtype=bool)
        while fits.any():
            table = kinds.space.table(kind.pool, kind.tp, size, recompute=False)
            each = np.where(fits, table.compute_s(single, single + 1), np.inf) * kind.tp / size
            least[kind.row] = np.minimum(least[kind.row], each)
            times = kinds.times(size)
            if times is None or size >= kinds.space.batch:
                break
            fits &= np.isfinite(times.compute_s[0, k, single, single + 1])
            size *= 2
    return least


def work_bound_s(kinds: Kinds, usable: Bools) -> float:
    """Return seconds that no iteration undercuts: all devices at work all the time, layers shared out at will."""
    work = device_seconds(kinds, usable)
    rows = [row for row in range(len(work)) if np.isfinite(work[row]).all()]
    if not rows:
        return float("inf")
    layers = kinds.space.layers
    limits = [float(kinds.space.candidates.rows[row].devices) for row in rows]
    # Samples of a layer in a row, then the time.
    count = len(rows) * layers
    busy = np.zeros((len(rows), count + 1))
    for r, row in enumerate(rows):
        busy[r, r * layers : (r + 1) * layers] = work[row]
        busy[r, -1] = -limits[r]
    done = np.hstack([np.tile(np.eye(layers), len(rows)), np.zeros((layers, 1))])
    batch = float(kinds.space.batch)
    cost = np.zeros(count + 1)
    cost[-1] = 1.0
    solved = linear(cost, np.vstack([busy, -done]), np.concatenate([np.zeros(len(rows)), np.full(layers, -batch)]))
    return float("inf") if solved is None else solved.cost


def goal_bound(kinds: Kinds, target: Target, usable: Bools | None = None) -> float:
    """Return a value that no plan's goal undercuts."""
    usable = np.ones(len(kinds), dtype=bool) if usable is None else usable
    space = kinds.space
    if target.goal in (Figure.ITERATION_S, Figure.DURATION_S):
        seconds = work_bound_s(kinds, usable)
        steps = space.scenario.job.training.steps
        if target.goal is Figure.ITERATION_S or steps is None:
            return seconds
        return steps * seconds + min(startup_s(pool.offer.provider) for pool in space.pools)
    per_device = {
        row: min(
            rate.expected / pool.devices for pool, rate in zip(space.pools, space.rates, strict=True) if pool.row == row
        )
        for row in {pool.row for pool in space.pools}
    }
    if target.goal is Figure.USD_PER_HOUR:
        return min(rate.expected for rate in space.rates)
    if target.goal is Figure.NODES:
        return 1.0
    work = device_seconds(kinds, usable)
    priced = np.array([work[row] * usd for row, usd in per_device.items()])
    usd = float(priced.min(axis=0).sum()) * space.batch / SECONDS_PER_HOUR
    steps = space.scenario.job.training.steps
    return usd if target.goal is Figure.USD_PER_ITERATION or steps is None else usd * steps


def breaks_limits(kinds: Kinds, target: Target) -> bool:
    """Return whether some limit is below what its figure can be at least, so that there is no plan."""
    return any(
        goal_bound(kinds, Target(goal=limit.figure, limits=())) > limit.at_most * (1.0 + TIE) for limit in target.limits
    )
