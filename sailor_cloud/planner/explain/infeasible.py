"""Finds the constraint that rules out every plan, and the smallest change that permits one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from sailor_cloud.model.document import Infeasibility
from sailor_cloud.planner.explain.quota_change import QuotaChange, quota_changes
from sailor_cloud.planner.explain.shortage import NO_PLAN, shortage
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space.candidates import Pool
from sailor_cloud.planner.space.goals import LIMIT_UNITS, TIE, Figure, Limit, Target, limit_text
from sailor_cloud.planner.space.quotas import unit
from sailor_cloud.planner.space.space import Space
from sailor_cloud.units import sufficient_duration_text, usd_decimals

_REMEDIES = {
    "budget_usd": ("the smallest budget", "that would do"),
    "deadline": ("the shortest deadline", "that would do"),
    "max_usd_per_hour": ("the smallest rate", "that would do"),
    "min_throughput": ("the highest throughput", "that can be reached"),
    "max_usd_per_iteration": ("the smallest price of an iteration", "that can be reached"),
    "max_nodes": ("the smallest number of nodes", "that would do"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """A constraint, its value and the needed value, both as in the job file."""

    name: str
    limit: float
    needed: float

    @property
    def stretch(self) -> float:
        """The factor by which a plan misses the constraint."""
        ratio = self.needed / self.limit
        return max(ratio, 1.0 / ratio)


def explain_infeasible(space: Space, target: Target, searched: Searched, *, exact: bool = True) -> Infeasibility:
    """Return the constraint that binds if there is no plan, and the smallest change that permits one.

    In this order, it tries: constraints that can't be met even alone, one dropped constraint, the number of nodes,
    quotas, several constraints at once, memory. `exact`: the searches enumerate all plans; otherwise the change is the
    smallest one found.
    """
    broken = _broken_by_themselves(space, target, searched)
    if broken:
        kept = tuple(limit for limit in target.limits if limit not in broken)
        together = _needed_together(space, target, searched, broken, kept)
        together = together or _needed_together(space, target, searched, [*broken, *kept], ())
        if together:
            return _infeasibility(together, alternatives=[], quotas=quota_changes(space, target, searched), exact=exact)
    alone = sorted(_needed_alone(space, target, searched), key=lambda change: change.stretch)
    quotas = quota_changes(space, target, searched)
    if alone:
        return _infeasibility(alone[:1], alternatives=alone[1:], quotas=quotas, exact=exact)
    if quotas:
        return by_quota(quotas)
    together = _needed_together(space, target, searched, list(target.limits), ())
    return _infeasibility(together, alternatives=[], quotas=(), exact=exact) if together else _by_memory(space)


def by_quota(changes: tuple[QuotaChange, ...]) -> Infeasibility:
    """Return the infeasibility of a job that quotas rule out.

    `changes` has at least one entry, each of which would suffice.
    """
    first = changes[0]
    others = "".join(f" (or instead {other.in_words})" for other in changes[1:])
    remedies = (first.remedy, *(f"{other.remedy} ({other.short})" for other in changes[1:]))
    return Infeasibility(
        constraint="quota",
        limit=first.quota.remaining,
        needed=first.needed,
        unit=unit(first.quota),
        message=first.in_words + others,
        reason=first.short,
        remedies=remedies,
    )


def _by_memory(space: Space) -> Infeasibility:
    why = shortage(space, one_zone=False)
    found = "no plan that fits in memory was found" if why == NO_PLAN else why
    reason = f"{found}, even with one sample at a time"
    remedies = ("more devices per zone", "larger accelerators", "more nodes")
    return Infeasibility(
        constraint="memory",
        limit=None,
        needed=None,
        unit="bytes",
        message=f"{reason}; allow {', '.join(remedies[:-1])} or {remedies[-1]}",
        reason=reason,
        remedies=remedies,
    )


def _needed_together(
    space: Space, target: Target, searched: Searched, limits: list[Limit], kept: tuple[Limit, ...]
) -> list[_Change]:
    """Return the values that limits would need together if `kept` ones stay; empty if none suffice.

    The first limit is relaxed as little as possible; then each of the next ones as little as that allows.
    """
    changes: list[_Change] = []
    for limit in limits:
        needed = searched.reachable(space, Target(goal=limit.figure, limits=kept))
        if needed is None:
            return []
        if needed > limit.at_most:
            changes.append(_change(limit, needed))
            enough = changes[-1].needed
            limit = replace(limit, at_most=1.0 / enough if limit.name == "min_throughput" else enough)
        kept = (*kept, limit)
    return changes


def _needed_alone(space: Space, target: Target, searched: Searched) -> list[_Change]:
    """Return the value that each constraint would need if all others stay."""
    changes = []
    for limit in target.limits:
        needed = searched.reachable(space, replace(target.without(limit.name), goal=limit.figure))
        if needed is not None:
            changes.append(_change(limit, needed))
    most = space.scenario.job.constraints.max_nodes
    if most is not None:
        needed = searched.reachable(_any_number_of_nodes(space), replace(target, goal=Figure.NODES))
        if needed is not None:
            changes.append(_Change(name="max_nodes", limit=most, needed=needed))
    return changes


def _broken_by_themselves(space: Space, target: Target, searched: Searched) -> list[Limit]:
    """Return the constraints that no plan keeps even without the others, the most exceeded one first."""
    broken = []
    for limit in target.limits:
        needed = searched.reachable(space, Target(goal=limit.figure, limits=()))
        if needed is not None and needed > limit.at_most:
            broken.append((limit, needed))
    return [limit for limit, _ in sorted(broken, key=lambda entry: -entry[1] / entry[0].at_most)]


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
        known=space.known,
        numbers=space.numbers,
        even_layers=space.even_layers,
        even_batches=space.even_batches,
    )


def _change(limit: Limit, needed: float) -> _Change:
    return _Change(
        name=limit.name, limit=_written(limit.name, limit.at_most), needed=_rounded_to_suffice(limit.name, needed)
    )


def nearest(target: Target, figures: Mapping[Figure, float]) -> str:
    """Return, in words, the limits that a plan would need which breaks the present ones."""
    broken = (limit for limit in target.limits if figures[limit.figure] > limit.at_most * (1.0 + TIE))
    needed = (_change(limit, figures[limit.figure]) for limit in broken)
    return " and ".join(_short(change) for change in needed)


def _written(name: str, figure: float) -> float:
    return 1.0 / figure if name == "min_throughput" else figure


def _rounded_to_suffice(name: str, figure: float) -> float:
    """Return a figure as the job file writes it, rounded to four significant digits so that it suffices.

    Money is rounded to the shown digits, so that the shown value suffices.
    """
    written = _written(name, figure)
    step = 10.0 ** (math.floor(math.log10(written)) - 3)
    if LIMIT_UNITS[name].startswith("USD"):
        step = max(step, 10.0 ** -usd_decimals(written))
    rounded = math.floor(written / step) * step if name == "min_throughput" else math.ceil(written / step) * step
    return float(f"{rounded:.6g}")


def _infeasibility(
    changes: list[_Change], *, alternatives: list[_Change], quotas: tuple[QuotaChange, ...], exact: bool
) -> Infeasibility:
    """Return the infeasibility by the first change, with the other changes that it needs and its alternatives."""
    change = changes[0]
    what, which = _REMEDIES[change.name]
    reason = f"{change.name} {limit_text(change.name, change.limit)} can't be met"
    needed = f"{what} {which if exact else 'found ' + which} is {_in_words(change)}"
    if changes[1:]:
        needed += f"; with that, {' and '.join(_short(other) for other in changes[1:])} would be needed as well"
    instead = [*(_short(other) for other in alternatives), *(other.in_words for other in quotas)]
    message = f"{reason}; {needed}"
    if instead:
        message += f" (or instead: {', '.join(instead)})"
    return Infeasibility(
        constraint=change.name,
        limit=change.limit,
        needed=change.needed,
        unit=LIMIT_UNITS[change.name],
        message=message,
        reason=reason,
        remedies=(needed, *instead),
    )


def _short(change: _Change) -> str:
    return f"{change.name} {_in_words(change)}"


def _in_words(change: _Change) -> str:
    """Return a needed value in words; a deadline is rounded up so that it suffices."""
    return limit_text(change.name, change.needed, sufficient_duration_text)
