"""Lower bounds on what any plan's goal can be, from a relaxation of the same closed form.

All devices of an accelerator count together, wherever they stand, at the lowest price that one of them has. They are at
work all the time, layers are shared out at will, and gradient sums, pipeline fill and tensors in between take no time.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.goals import TIE, Figure, Target
from sailor_cloud.planner.programme import linear
from sailor_cloud.planner.space import Space
from sailor_cloud.simulator import startup_s, teardown_s
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]


def device_seconds(space: Space) -> dict[str, Floats]:
    """Return the least device-seconds that one sample of each layer takes on each accelerator, shape [layers].

    The least over tp degrees and microbatch sizes, infinite where a layer doesn't fit. A sample gets faster with the
    size, so powers of two up to the first that no longer fits cover all sizes that do.
    """
    degrees: dict[str, dict[int, int]] = {}
    for index, pool in enumerate(space.pools):
        for tp in space.tp_degrees[index]:
            degrees.setdefault(pool.accelerator.name, {}).setdefault(tp, index)
    known: dict[tuple[object, ...], Floats] = space.known.searches.setdefault("device seconds", {})
    found: dict[str, Floats] = {}
    for name, pools in degrees.items():
        key = (name, tuple(pools), space.zero_stage)
        if key not in known:
            known[key] = _least_seconds(space, pools)
        found[name] = known[key]
    return found


def _least_seconds(space: Space, pools: Mapping[int, int]) -> Floats:
    """Return the least device-seconds of a sample of each layer on one accelerator; a pool for each tp degree."""
    single = np.arange(space.layers)
    replicas = space.batch if space.zero_stage else 1
    least = np.full(space.layers, np.inf)
    for tp, pool in pools.items():
        size, fits = 1, np.ones(space.layers, dtype=bool)
        while fits.any():
            table = space.table(pool, tp, size, recompute=False)
            each = np.where(fits, table.compute_s(single, single + 1), np.inf) * tp / size
            least = np.minimum(least, each)
            if size >= space.batch:
                break
            again = space.table(pool, tp, size, recompute=True)
            used = again.memory_bytes(single, single + 1, in_flight=1, replicas=replicas)
            kept = table.memory_bytes(single, single + 1, in_flight=1, replicas=replicas)
            fits &= np.minimum(used, kept) <= table.limit_bytes
            size *= 2
    return least


def work_bound_s(space: Space, devices: Mapping[str, float] | None = None) -> float:
    """Return seconds that no iteration undercuts: all devices at work all the time, layers shared out at will.

    `devices` of each accelerator; by default all that are offered.
    """
    work = device_seconds(space)
    devices = _devices(space) if devices is None else devices
    names = sorted(name for name in devices if np.isfinite(work[name]).any())
    if not names:
        return float("inf")
    layers, batch = space.layers, float(space.batch)
    # Samples of a layer on an accelerator, then the time; a layer that doesn't fit is never there.
    count = len(names) * layers
    busy = np.zeros((len(names), count + 1))
    there = np.ones(count)
    for row, name in enumerate(names):
        part = slice(row * layers, (row + 1) * layers)
        there[part] = np.isfinite(work[name])
        busy[row, part] = np.where(np.isfinite(work[name]), work[name], 0.0)
        busy[row, -1] = -devices[name]
    done = np.hstack([np.tile(np.eye(layers), len(names)) * there, np.zeros((layers, 1))])
    cost = np.zeros(count + 1)
    cost[-1] = 1.0
    solved = linear(cost, np.vstack([busy, -done]), np.concatenate([np.zeros(len(names)), np.full(layers, -batch)]))
    return float("inf") if solved is None else solved.cost


def goal_bound(space: Space, target: Target) -> float:
    """Return a value that no plan's goal undercuts."""
    steps = space.scenario.job.training.steps
    fixed_s = least_fixed_s(space)
    match target.goal:
        case Figure.ITERATION_S:
            return work_bound_s(space)
        case Figure.DURATION_S:
            return work_bound_s(space) if steps is None else steps * work_bound_s(space) + fixed_s
        case Figure.USD_PER_HOUR:
            return min(rate.expected for rate in space.rates)
        case Figure.NODES:
            return 1.0
        case Figure.USD_PER_ITERATION | Figure.TOTAL_USD:
            rates = _device_rates(space)
            work = device_seconds(space)
            usd = float(np.min([work[name] * rates[name] for name in sorted(work)], axis=0).sum())
            usd *= space.batch / SECONDS_PER_HOUR
            if target.goal is Figure.USD_PER_ITERATION or steps is None:
                return usd
            return usd * steps + fixed_s / SECONDS_PER_HOUR * min(rate.expected for rate in space.rates)


def least_fixed_s(space: Space) -> float:
    """Return the least seconds that nodes of any provider are paid for beside training."""
    providers = {pool.offer.provider for pool in space.pools}
    return min(startup_s(provider) + teardown_s(provider) for provider in providers)


def breaks_limits(space: Space, target: Target) -> bool:
    """Return whether some limit is below what its figure can be at least, so that there is no plan."""
    return any(
        goal_bound(space, Target(goal=limit.figure, limits=())) > limit.at_most * (1.0 + TIE) for limit in target.limits
    )


def _devices(space: Space) -> dict[str, float]:
    """Return how many devices of each accelerator all zones have together."""
    rows = {pool.row: pool.accelerator.name for pool in space.pools}
    found: dict[str, float] = {}
    for row, name in sorted(rows.items()):
        found[name] = found.get(name, 0.0) + space.candidates.rows[row].devices
    return found


def _device_rates(space: Space) -> dict[str, float]:
    """Return the least USD per hour of one device of each accelerator."""
    found: dict[str, float] = {}
    for pool, rate in zip(space.pools, space.rates, strict=True):
        name = pool.accelerator.name
        found[name] = min(found.get(name, np.inf), rate.expected / pool.devices)
    return found
