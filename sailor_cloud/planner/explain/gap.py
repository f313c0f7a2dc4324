"""Splits a plan's goal into parts, which explain a wide gap to its bound.

The first part is work alone, on all offered devices without idle time. The others are added to it: unused devices,
waits, pipeline fill, exposed all-reduces and traffic. The bound covers some of these too, but not by part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sailor_cloud.model.document import GapPart
from sailor_cloud.planner.bound.bounds import goal_bound, least_fixed_s, work_bound_s
from sailor_cloud.planner.evaluate.assess import Assessor, Times
from sailor_cloud.planner.space.draft import Draft, nodes_of
from sailor_cloud.planner.space.goals import Figure, Target
from sailor_cloud.planner.space.space import Space
from sailor_cloud.units import SECONDS_PER_HOUR

# Smaller shares of the value come from the order of summation.
_SMALLEST = 1e-9


def gap_parts(space: Space, target: Target, draft: Draft, figures: Mapping[Figure, Any]) -> tuple[GapPart, ...]:
    """Return the parts of a draft's goal, work alone first; they add up to the draft's figure.

    Units are those of the goal: seconds or USD, for one iteration or the whole run. `figures`: the draft's under the
    replay. Returns () if a pipeline has fewer microbatches than its stages could hold at once.
    """
    found = {figure: float(amount) for figure, amount in figures.items()}
    value = found[target.goal]
    space = space.at(draft.zero_stage)
    times = Assessor(space, target).times(draft)
    if times is None:
        return ()
    work = goal_bound(space, target, close=False)
    match target.goal:
        case Figure.ITERATION_S | Figure.DURATION_S:
            amounts, unit = _seconds(space, target, draft, found, times, work), "s"
        case Figure.USD_PER_ITERATION | Figure.TOTAL_USD:
            amounts, unit = _usd(space, target, draft, found, times, work), "USD"
        case Figure.USD_PER_HOUR | Figure.NODES:
            return ()
    return tuple(
        GapPart(what=what, amount=amount, unit=unit)
        for what, amount in amounts.items()
        if abs(amount) > _SMALLEST * value
    )


def _seconds(
    space: Space, target: Target, draft: Draft, figures: Mapping[Figure, float], times: Times, work: float
) -> dict[str, float]:
    whole = target.goal is Figure.DURATION_S
    steps = (space.scenario.job.training.steps or 1) if whole else 1
    iteration_s = figures[Figure.ITERATION_S]
    fixed_s = least_fixed_s(space) if whole else 0.0
    most = times.schedule_s - times.steady_s + times.sums_s
    other_s = max(0.0, min(most, iteration_s - times.steady_s - times.update_s))
    filling = min(other_s, times.schedule_s - times.steady_s)
    everywhere_s, here_s = (work - fixed_s) / steps, work_bound_s(space, _devices(space, draft))
    return {
        "work on all offered devices without idle time": work,
        "unused devices": steps * (here_s - everywhere_s),
        "waits on slower stages and transfers": steps * (times.steady_s - here_s),
        "filling and emptying pipelines": steps * filling,
        "all-reduces": steps * (other_s - filling),
        "the optimizer step": steps * times.update_s,
        "cores shared by ranks": steps * (iteration_s - times.steady_s - times.update_s - other_s),
        "start, teardown and lost work": figures[target.goal] - steps * iteration_s - fixed_s if whole else 0.0,
    }


def _usd(
    space: Space, target: Target, draft: Draft, figures: Mapping[Figure, float], times: Times, work: float
) -> dict[str, float]:
    whole = target.goal is Figure.TOTAL_USD
    steps = (space.scenario.job.training.steps or 1) if whole else 1
    cheapest_usd_per_s = min(rate.expected for rate in space.rates) / SECONDS_PER_HOUR
    fixed = least_fixed_s(space) * cheapest_usd_per_s if whole else 0.0
    per_iteration = figures[Figure.USD_PER_ITERATION]
    iteration_s = figures[Figure.ITERATION_S]
    counts = nodes_of(tuple(pipeline.slots for pipeline in draft.pipelines))
    rented_s = sum(space.rates[pool].expected * count for pool, count in counts.items()) / SECONDS_PER_HOUR
    nodes = rented_s * iteration_s
    busy = sum(seconds * _device_usd_per_s(space, pool) for pool, seconds in times.busy_device_s.items())
    return {
        "work on the most cost-efficient devices": work,
        "work on more expensive or slower devices": steps * busy - (work - fixed),
        "devices that wait, are idle or have finished their last pass": steps * (nodes - busy),
        "gateways": steps * (per_iteration - times.egress_usd - nodes),
        "traffic": steps * times.egress_usd,
        "start, teardown and lost work": figures[target.goal] - steps * per_iteration - fixed,
    }


def _devices(space: Space, draft: Draft) -> Mapping[str, float]:
    """Return the number of devices of each accelerator on a draft's nodes."""
    found: dict[str, float] = {}
    for pool, count in nodes_of(tuple(pipeline.slots for pipeline in draft.pipelines)).items():
        name = space.pools[pool].accelerator.name
        found[name] = found.get(name, 0.0) + count * space.pools[pool].devices
    return found


def _device_usd_per_s(space: Space, pool: int) -> float:
    return space.rates[pool].expected / space.pools[pool].devices / SECONDS_PER_HOUR
