"""Lower bounds on any plan's goal, from a relaxation of its schedule.

The bounds hold under the closed form and under the replay, since only the compute of all passes counts. Waits between
stages, transfers and all-reduces are left out. The relaxation pools all devices of an accelerator over all zones, at
their lowest price, and layers can be divided. If the goal is money, the bound also counts what the cheapest chain of
stages adds: whole layers, memory, the shortest optimizer step, and the latency of a single microbatch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.model.plan import Recompute
from sailor_cloud.planner.bound.cost_bound import cheapest_usd
from sailor_cloud.planner.bound.programme import linear
from sailor_cloud.planner.space.goals import TIE, Figure, Target
from sailor_cloud.planner.space.quotas import quota_arrays
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import teardown_s
from sailor_cloud.simulator.money import start
from sailor_cloud.units import SECONDS_PER_HOUR

Floats = NDArray[np.float64]

# The most recomputations of a bound with the money that it leaves, and the least growth for another one.
_PASSES = 8
_CLOSER = 1.001


def device_seconds(space: Space) -> dict[str, Floats]:
    """Return the least device-seconds of one sample of each layer on each accelerator, shape [layers].

    This is the minimum over tp degrees and microbatch sizes; it is infinite if a layer does not fit. Time per sample
    falls as the microbatch grows, so powers of two up to the first size that does not fit cover all sizes that do.
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
    """Return the least device-seconds of a sample of each layer on one accelerator; `pools` has one per tp degree."""
    single = np.arange(space.layers)
    replicas = space.batch if space.zero_stage else 1
    least = np.full(space.layers, np.inf)
    for tp, pool in pools.items():
        size, fits = 1, np.ones(space.layers, dtype=bool)
        while fits.any():
            table = space.table(pool, tp, size)
            each = np.where(fits, table.compute_s(single, single + 1), np.inf) * tp / size
            least = np.minimum(least, each)
            if size >= space.batch:
                break
            again = space.table(pool, tp, size, recompute=Recompute.FULL)
            used = again.memory_bytes(single, single + 1, in_flight=1, replicas=replicas)
            kept = table.memory_bytes(single, single + 1, in_flight=1, replicas=replicas)
            fits &= np.minimum(used, kept) <= table.limit_bytes
            size *= 2
    return least


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A limited resource. `each`: how much of it one device of each accelerator takes."""

    each: Mapping[str, float]
    limit: float


def work_bound_s(space: Space, devices: Mapping[str, float] | None = None) -> float:
    """Return a lower bound on the seconds of an iteration if no device is idle and layers can be divided.

    `devices`: the number for each accelerator; by default all that are offered.
    """
    devices = _devices(space) if devices is None else devices
    resources = [Resource(each={name: 1.0}, limit=count) for name, count in sorted(devices.items())]
    return max(_work_s(space, resources), _cores_s(space))


def _cores_s(space: Space) -> float:
    """Return the seconds that the shared cores need, if the work runs on the devices that use them least."""
    cores = space.cores(1)
    if not np.isfinite(cores):
        return 0.0
    least = np.min([seconds for _, seconds in sorted(device_seconds(space).items())], axis=0)
    return float(least.sum()) * space.batch / cores


def _work_s(space: Space, resources: Sequence[Resource]) -> float:
    """Return the least seconds of work within resources; the first resources name the accelerators."""
    work = device_seconds(space)
    names = sorted({name for resource in resources for name in resource.each if np.isfinite(work[name]).any()})
    if not names:
        return float("inf")
    layers, batch = space.layers, float(space.batch)
    # Columns: samples of a layer on an accelerator, then the time; a layer that does not fit gets no samples.
    count = len(names) * layers
    busy = np.zeros((len(resources), count + 1))
    there = np.concatenate([np.isfinite(work[name]) for name in names]).astype(float)
    seconds = np.concatenate([np.where(np.isfinite(work[name]), work[name], 0.0) for name in names])
    for row, resource in enumerate(resources):
        busy[row, :-1] = np.repeat([resource.each.get(name, 0.0) for name in names], layers) * seconds
        busy[row, -1] = -resource.limit
    done = np.hstack([np.tile(np.eye(layers), len(names)) * there, np.zeros((layers, 1))])
    cost = np.zeros(count + 1)
    cost[-1] = 1.0
    limits = np.concatenate([np.zeros(len(resources)), np.full(layers, -batch)])
    solved = linear(cost, np.vstack([busy, -done]), limits)
    if solved is None:
        return float("inf")
    # By duality, any prices bound the seconds, so the solver's rounding does no harm.
    prices = solved.prices[: len(resources)]
    layer = np.min(
        [
            np.where(np.isfinite(work[name]), _price(resources, prices, name) * seconds, np.inf)
            for name, seconds in zip(names, np.split(seconds, len(names)), strict=True)
        ],
        axis=0,
    )
    return float(batch * layer.sum() / sum(price * each.limit for price, each in zip(prices, resources, strict=True)))


def _price(resources: Sequence[Resource], prices: Floats, name: str) -> float:
    """Return the price of a device."""
    return float(sum(price * each.each.get(name, 0.0) for price, each in zip(prices, resources, strict=True)))


def iteration_bound_s(space: Space, target: Target, egress_usd: float = 0.0) -> float:
    """Return a lower bound on the seconds of an iteration within the limits of a target.

    A longer iteration leaves less money for devices, so the bound is recomputed from its own value. `egress_usd`: the
    least cost of an iteration's traffic.
    """
    resources, rates = offered(space), device_rates(space)
    seconds = max(_work_s(space, resources), work_bound_s(space))
    for _ in range(_PASSES):
        limits = spending(space, target, seconds, np.inf) if 0.0 < seconds < np.inf else []
        if not limits:
            break
        usd_per_hour = min(limit.usd_per_hour(egress_usd) for limit in limits)
        if usd_per_hour <= 0.0:
            return float("inf")
        before = seconds
        seconds = max(seconds, _work_s(space, [*resources, Resource(each=rates, limit=usd_per_hour)]))
        if seconds <= before * _CLOSER:
            break
    return seconds


def offered(space: Space) -> list[Resource]:
    """Return the limits by the devices of all zones, the number of nodes and the account's quotas."""
    found = [Resource(each={name: 1.0}, limit=count) for name, count in sorted(_devices(space).items())]
    most = space.scenario.job.constraints.max_nodes
    if most is not None:
        share: dict[str, float] = {}
        for pool in space.pools:
            share[pool.accelerator.name] = min(share.get(pool.accelerator.name, np.inf), 1.0 / pool.devices)
        found.append(Resource(each=share, limit=float(most)))
    quotas = quota_arrays(space.candidates)
    used = {(pool.row, pool.accelerator.name) for pool in space.pools}
    for units, left in zip(quotas.row_units, quotas.left, strict=True):
        least: dict[str, float] = {}
        for row, name in sorted(used):
            least[name] = min(least.get(name, np.inf), float(units[row]))
        found.append(Resource(each=least, limit=float(left) + 1e-6))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """A limit on money: `limit` USD pay for all nodes during `paid_s` and for the egress of some iterations."""

    paid_s: float
    iterations: float
    limit: float

    def usd_per_hour(self, egress_usd: float) -> float:
        """Return the most that nodes may cost per hour, after the egress of each iteration is paid."""
        return (self.limit - self.iterations * egress_usd) * SECONDS_PER_HOUR / self.paid_s


def spending(space: Space, target: Target, least_s: float, most_s: float) -> list[Spending]:
    """Return the limits on money for plans within a target whose iterations take `least_s` to `most_s`."""
    steps, found = space.scenario.job.training.steps, []
    for limit in target.limits:
        match limit.figure:
            case Figure.USD_PER_HOUR:
                paid_s, iterations = SECONDS_PER_HOUR, SECONDS_PER_HOUR / most_s
            case Figure.USD_PER_ITERATION:
                paid_s, iterations = least_s, 1.0
            case Figure.TOTAL_USD if steps is not None:
                paid_s, iterations = steps * least_s + least_fixed_s(space), float(steps)
            case _:
                continue
        found.append(Spending(paid_s=paid_s, iterations=iterations, limit=limit.at_most * (1.0 + TIE)))
    return found


def goal_bound(space: Space, target: Target, *, close: bool = True) -> float:
    """Return a lower bound on the goal of any plan; without `close`, only the bound from work."""
    steps = space.scenario.job.training.steps
    fixed_s = least_fixed_s(space)
    match target.goal:
        case Figure.ITERATION_S:
            return iteration_bound_s(space, target) if close else work_bound_s(space)
        case Figure.DURATION_S:
            seconds = iteration_bound_s(space, target) if close else work_bound_s(space)
            return seconds if steps is None else steps * seconds + fixed_s
        case Figure.USD_PER_HOUR:
            return min(rate.expected for rate in space.rates)
        case Figure.NODES:
            return 1.0
        case Figure.USD_PER_ITERATION | Figure.TOTAL_USD:
            rates = {name: rate / SECONDS_PER_HOUR for name, rate in device_rates(space).items()}
            work = device_seconds(space)
            usd = float(np.min([work[name] * rates[name] for name in sorted(work)], axis=0).sum()) * space.batch
            if close and np.isfinite(usd):
                usd = max(usd, cheapest_usd(space, rates))
            if target.goal is Figure.USD_PER_ITERATION or steps is None:
                return usd
            return usd * steps + fixed_s / SECONDS_PER_HOUR * min(rate.expected for rate in space.rates)


def least_fixed_s(space: Space) -> float:
    """Return the least seconds, besides training, for which nodes of any provider are paid."""
    providers = {pool.offer.provider for pool in space.pools}
    return min(start(space.scenario, (provider,), 1).fixed_s + teardown_s(provider) for provider in providers)


def breaks_limits(space: Space, target: Target) -> bool:
    """Return whether a limit is below the lower bound of its figure, so that no plan can keep it."""
    return any(
        goal_bound(space, Target(goal=limit.figure, limits=()), close=False) > limit.at_most * (1.0 + TIE)
        for limit in target.limits
    )


def _devices(space: Space) -> dict[str, float]:
    """Return the number of devices of each accelerator in all zones together."""
    rows = {pool.row: pool.accelerator.name for pool in space.pools}
    found: dict[str, float] = {}
    for row, name in sorted(rows.items()):
        found[name] = found.get(name, 0.0) + space.candidates.rows[row].devices
    return found


def device_rates(space: Space) -> dict[str, float]:
    """Return the least USD per hour of one device of each accelerator."""
    found: dict[str, float] = {}
    for pool, rate in zip(space.pools, space.rates, strict=True):
        name = pool.accelerator.name
        found[name] = min(found.get(name, np.inf), rate.expected / pool.devices)
    return found
