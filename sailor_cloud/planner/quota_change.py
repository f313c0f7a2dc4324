"""Which of an account's quotas rules out every plan, and how much of it would let one in."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from sailor_cloud.catalog.account_quotas import QuotaLimit
from sailor_cloud.planner.candidates import collect
from sailor_cloud.planner.goals import Target
from sailor_cloud.planner.quotas import binding, name, unit
from sailor_cloud.planner.space import Space, build

# Searches for the least of a quota; each halves what is left between too little and enough.
_MOST_SEARCHES = 8

Reach = Callable[[Space, Target], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """A quota, and how much would have to be left of it for a plan, all other limits staying."""

    quota: QuotaLimit
    needed: float

    @property
    def told(self) -> str:
        """Return the change in words: what is left, what is needed, and which limit to ask for."""
        raised = f"; a limit of {self.needed + self.quota.used:g} would do"
        return f"quota {self.quota.left:g} < {self.needed:g} {unit(self.quota)}: {name(self.quota)}{raised}"


def quota_changes(space: Space, target: Target, reach: Reach) -> tuple[QuotaChange, ...]:
    """Return the quotas each of which alone would let a plan in if it were larger, the smallest change first."""
    known = known_quotas(space)
    if not known:
        return ()
    free = collect(space.scenario.job, space.scenario.catalog, quotas=())
    found = []
    for quota in binding(known, free.pools, free.rows):
        others = tuple(other for other in known if other is not quota)
        if reach(under_quotas(space, others), target) is not None:
            most = math.fsum(
                max(quota.units(pool.offer) / pool.devices for pool in free.pools if pool.row == row) * limit.devices
                for row, limit in enumerate(free.rows)
                if any(pool.row == row for pool in free.pools)
            )
            step = math.gcd(*(int(quota.units(pool.offer)) for pool in free.pools)) or 1
            found.append(_least(space, target, reach, quota, others, most=math.ceil(most), step=step))
    return tuple(sorted(found, key=lambda change: (change.needed / max(change.quota.left, 1.0), change.quota.quota)))


def known_quotas(space: Space) -> tuple[QuotaLimit, ...]:
    """Return what is known of the account that a job would run under."""
    job = space.scenario.job
    return space.scenario.catalog.quotas(project=job.cloud.gcp.project if job.cloud.gcp is not None else None)


def tight_quotas(space: Space) -> tuple[QuotaLimit, ...]:
    """Return the known quotas that plans could break within the job's own limits."""
    known = known_quotas(space)
    if not known:
        return ()
    free = collect(space.scenario.job, space.scenario.catalog, quotas=())
    return binding(known, free.pools, free.rows)


def _least(
    space: Space,
    target: Target,
    reach: Reach,
    quota: QuotaLimit,
    others: tuple[QuotaLimit, ...],
    *,
    most: int,
    step: int,
) -> QuotaChange:
    """Return the least of a quota that lets a plan in, between what is left and the most that could be used."""
    low, high = math.floor(quota.left / step), math.ceil(most / step)
    for _ in range(_MOST_SEARCHES):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        tried = replace(quota, limit=float(middle * step), used=0.0)
        if reach(under_quotas(space, (*others, tried)), target) is None:
            low = middle
        else:
            high = middle
    return QuotaChange(quota=quota, needed=float(high * step))


def under_quotas(space: Space, quotas: tuple[QuotaLimit, ...]) -> Space:
    """Return the space of the same job for an account with other limits."""
    candidates = collect(space.scenario.job, space.scenario.catalog, quotas=quotas)
    offers = {pool.offer.id: pool.offer for pool in candidates.pools}
    found = build(replace(space.scenario, offers=offers), candidates)[0]
    found.zero_stage = space.zero_stage
    return found
