"""Finds the quotas that rule out every plan, and how much of them would permit one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from sailor_cloud.catalog.account.quotas import QuotaLimit
from sailor_cloud.planner.bound.bounds import breaks_limits
from sailor_cloud.planner.improvement.choice import first_that_holds
from sailor_cloud.planner.solving import Searched
from sailor_cloud.planner.space.candidates import collect
from sailor_cloud.planner.space.draft import Draft, nodes_of
from sailor_cloud.planner.space.goals import Target
from sailor_cloud.planner.space.quotas import binding, name, unit, used
from sailor_cloud.planner.space.restrictions import zero_stages
from sailor_cloud.planner.space.space import Space, build

# The searches for the least of a quota; each halves the interval between too little and enough.
_MOST_SEARCHES = 8
# The most plans with a small use of a quota that are replayed.
_MOST_CHECKED = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaChange:
    """A quota, and how much of it must be left for a plan if all other limits stay."""

    quota: QuotaLimit
    needed: float

    @property
    def in_words(self) -> str:
        """Return the change in words: what is left, what is needed, and which limit to request."""
        return f"{self.short}; {self.remedy}"

    @property
    def short(self) -> str:
        """Return, in words, what is left and what is needed."""
        return f"quota {self.quota.remaining:g} < {self.needed:g} {unit(self.quota)}: {name(self.quota)}"

    @property
    def remedy(self) -> str:
        """Return, in words, which limit to request."""
        return f"a limit of {self.needed + self.quota.used:g} would do"


def quota_changes(space: Space, target: Target, searched: Searched) -> tuple[QuotaChange, ...]:
    """Return the quotas each of which, if it were larger, would permit a plan; the smallest change first."""
    known = known_quotas(space)
    if not known:
        return ()
    free = collect(space.scenario.job, space.scenario.catalog, quotas=())
    found = []
    for quota in binding(known, free.pools, free.rows):
        others = tuple(other for other in known if other is not quota)
        loose = under_quotas(space, others)
        if loose.pools and not all(breaks_limits(loose.at(stage), target) for stage in zero_stages(loose)):
            most = math.fsum(
                max(quota.units(pool.offer) / pool.devices for pool in free.pools if pool.row == row) * limit.devices
                for row, limit in enumerate(free.rows)
                if any(pool.row == row for pool in free.pools)
            )
            step = math.gcd(*(int(quota.units(pool.offer)) for pool in free.pools)) or 1
            change = _least(space, target, searched, quota, others, most=math.ceil(most / step), step=step)
            found += [change] if change is not None else []
    return tuple(
        sorted(found, key=lambda change: (change.needed / max(change.quota.remaining, 1.0), change.quota.quota))
    )


def _least_used(space: Space, target: Target, quota: QuotaLimit, drafts: list[Draft]) -> float:
    """Return the least use of a quota by a draft that keeps the limits; the first draft keeps them."""
    taken = [
        (used(quota, space.candidates, nodes_of(tuple(part.slots for part in draft.pipelines))), number)
        for number, draft in enumerate(drafts)
    ]
    for units, number in sorted(taken)[:_MOST_CHECKED]:
        if units < taken[0][0] and first_that_holds(space, target, drafts[number : number + 1]) is not None:
            return units
    return taken[0][0]


def known_quotas(space: Space) -> tuple[QuotaLimit, ...]:
    """Return the known quotas of the account under which a job would run."""
    return space.scenario.catalog.quotas(space.scenario.job.cloud)


def tight_quotas(space: Space) -> tuple[QuotaLimit, ...]:
    """Return the known quotas that plans could exceed within the job's own limits."""
    known = known_quotas(space)
    if not known:
        return ()
    free = collect(space.scenario.job, space.scenario.catalog, quotas=())
    return binding(known, free.pools, free.rows)


def _least(
    space: Space,
    target: Target,
    searched: Searched,
    quota: QuotaLimit,
    others: tuple[QuotaLimit, ...],
    *,
    most: int,
    step: int,
) -> QuotaChange | None:
    """Return the least of a quota that permits a plan; None if even `most` does not.

    Small increases are tried first, since a search over few devices is fastest; `most` counts `step`s.
    """

    def used_of(steps: int) -> float | None:
        tried = replace(quota, limit=float(steps * step), used=0.0)
        part = under_quotas(space, (*others, tried))
        answer, chosen = searched.best(part, target)
        if chosen is None:
            return None
        return _least_used(part, target, quota, [chosen.draft, *answer.drafts, *answer.others])

    low, ahead = math.floor(quota.remaining / step), 1
    taken = None
    while taken is None and low < most:
        tried = min(low + ahead, most)
        taken = used_of(tried)
        low, ahead = (low, ahead) if taken is not None else (tried, 2 * ahead)
    if taken is None:
        return None
    high = math.ceil(taken / step)
    for _ in range(_MOST_SEARCHES):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        if used_of(middle) is None:
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
    found.share_tables(space)
    return found
