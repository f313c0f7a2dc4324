"""Finds out which constraint rules out every plan, and the smallest change that would let one in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sailor_cloud.model.document import Infeasibility
from sailor_cloud.planner.candidates import Pool
from sailor_cloud.planner.goals import Figure, Limit, Target
from sailor_cloud.planner.shortage import NO_PLAN, shortage
from sailor_cloud.planner.space import Space

# The goal's figure of the best plan, None without a plan.
Reach = Callable[[Space, Target], float | None]

_UNITS = {
    "budget_usd": "USD",
    "deadline": "s",
    "max_usd_per_hour": "USD/h",
    "min_throughput": "iterations/s",
    "max_usd_per_iteration": "USD/iteration",
    "max_nodes": "nodes",
}
_REMEDIES = {
    "budget_usd": "the smallest budget that would do is",
    "deadline": "the shortest deadline that would do is",
    "max_usd_per_hour": "the smallest rate that would do is",
    "min_throughput": "the highest throughput that can be reached is",
    "max_usd_per_iteration": "the smallest price of an iteration is",
    "max_nodes": "the smallest number of nodes that would do is",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A constraint, what it is and what it would have to be, both as the job file writes them."""

    name: str
    limit: float
    needed: float

    @property
    def stretch(self) -> float:
        """By which factor the constraint is missed."""
        ratio = self.needed / self.limit
        return max(ratio, 1.0 / ratio)


def explain_infeasible(space: Space, target: Target, reach: Reach) -> Infeasibility:
    """Return the binding constraint of a problem without a plan.

    Tried in turn: constraints that can't be met even alone, giving up one constraint, the number of nodes, memory.
    """
    broken = _broken_by_themselves(space, target, reach)
    if len(broken) == 1:
        # Giving up another constraint would not help; the others may ask for more than this one alone needs.
        needed = reach(space, replace(target.without(broken[0][0].name), goal=broken[0][0].figure))
        if needed is not None:
            change = _change(broken[0][0], needed)
            return _told(change, [change])
    if broken:
        changes = [_change(limit, needed) for limit, needed in broken]
        return _told(max(changes, key=lambda change: change.stretch), changes)
    alone = _needed_alone(space, target, reach)
    if alone:
        return _told(min(alone, key=lambda change: change.stretch), alone)
    if target.limits and reach(space, Target(goal=target.goal, limits=())) is not None:
        names = ", ".join(limit.name for limit in target.limits)
        first = target.limits[0]
        return Infeasibility(
            constraint=first.name,
            limit=_written(first.name, first.at_most),
            needed=None,
            unit=_UNITS[first.name],
            message=f"no plan keeps {names} at the same time, though each can be kept; relax one of them",
        )
    why = shortage(space, one_zone=False)
    found = "no plan that fits in memory was found" if why == NO_PLAN else why
    return Infeasibility(
        constraint="memory",
        limit=None,
        needed=None,
        unit="bytes",
        message=f"{found}, even with one sample at a time; "
        "allow more devices per zone, larger accelerators or more nodes",
    )


def _needed_alone(space: Space, target: Target, reach: Reach) -> list[_Change]:
    """Return what each constraint would have to be if all others stay."""
    changes = []
    for limit in target.limits:
        needed = reach(space, replace(target.without(limit.name), goal=limit.figure))
        if needed is not None:
            changes.append(_change(limit, needed))
    most = space.scenario.job.constraints.max_nodes
    if most is not None:
        needed = reach(_any_number_of_nodes(space), replace(target, goal=Figure.NODES))
        if needed is not None:
            changes.append(_Change(name="max_nodes", limit=most, needed=needed))
    return changes


def _broken_by_themselves(space: Space, target: Target, reach: Reach) -> list[tuple[Limit, float]]:
    """Return the constraints that no plan keeps even when there is no other, with the least that is reached."""
    broken = []
    for limit in target.limits:
        needed = reach(space, Target(goal=limit.figure, limits=()))
        if needed is not None and needed > limit.at_most:
            broken.append((limit, needed))
    return broken


def _any_number_of_nodes(space: Space) -> Space:
    """Return the space without the limit on nodes."""
    job = space.scenario.job
    constraints = job.constraints.model_copy(update={"max_nodes": None})
    rows = space.candidates.rows
    pools = tuple(
        Pool(
            offer=pool.offer,
            accelerator=pool.accelerator,
            row=pool.row,
            max_nodes=rows[pool.row].devices // pool.devices,
        )
        for pool in space.pools
    )
    return Space(
        scenario=replace(space.scenario, job=job.model_copy(update={"constraints": constraints})),
        candidates=replace(space.candidates, pools=pools),
        tp_degrees=space.tp_degrees,
        rates=space.rates,
        zero_stage=space.zero_stage,
    )


def _change(limit: Limit, needed: float) -> _Change:
    return _Change(name=limit.name, limit=_written(limit.name, limit.at_most), needed=_enough(limit.name, needed))


def _written(name: str, figure: float) -> float:
    return 1.0 / figure if name == "min_throughput" else figure


def _enough(name: str, figure: float) -> float:
    """Return a figure as the job file writes it, rounded to four significant digits to the side that suffices."""
    written = _written(name, figure)
    step = 10.0 ** (math.floor(math.log10(written)) - 3)
    rounded = math.floor(written / step) * step if name == "min_throughput" else math.ceil(written / step) * step
    return float(f"{rounded:.6g}")


def _told(change: _Change, changes: list[_Change]) -> Infeasibility:
    others = [other for other in changes if other is not change]
    message = f"{change.name} {change.limit:g} {_UNITS[change.name]} can't be met; {_REMEDIES[change.name]} " + (
        f"{change.needed:g} {_UNITS[change.name]}"
    )
    if others:
        listed = ", ".join(f"{other.name} {other.needed:g} {_UNITS[other.name]}" for other in others)
        message += f" (or instead: {listed})"
    return Infeasibility(
        constraint=change.name,
        limit=change.limit,
        needed=change.needed,
        unit=_UNITS[change.name],
        message=message,
    )
