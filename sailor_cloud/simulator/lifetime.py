"""How long a plan's nodes may live: their TTL must keep the budget even without a controller."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from sailor_cloud.model.document import Cost, PlanDocument
from sailor_cloud.model.job import Constraints
from sailor_cloud.model.offer import MINIMUM_BILLED_S, Offer
from sailor_cloud.units import SECONDS_PER_HOUR, duration_text, usd_text

# Time after the deadline for the last checkpoint, the results and the teardown, before nodes shut themselves down.
DEADLINE_GRACE_S = 600.0

# No budget keeps unattended nodes for longer than a year.
LONGEST_TTL_S = 365 * 86400.0

# Replacement nodes overlap with old ones for a while. If the TTL used the last cent, a run could never replace a node.
SHARE_OF_BUDGET = 0.95

# A run may take this many times as long as planned before its nodes shut themselves down, if the budget lasts at the
# expected rate. The upper end of nine in ten predictions is at about this much.
LATE = 1.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A longest lifetime of a run's nodes, and what sets it, in words."""

    seconds: float
    why: str


def ttl_s(
    limits: Constraints, cost: Cost, *, duration_s: float | None, offers: Iterable[Offer], as_of: datetime
) -> float | None:
    """Return the seconds from a run's start until its nodes shut themselves down; None without budget and deadline.

    With a deadline, that with its grace; else what the budget buys at the worst rate. Never longer than nearly all of
    the budget lasts at list prices with traffic. But at least `duration_s`, the plan's own duration with its reserve
    for preemption, and `LATE` times that if the budget lasts at the expected rate. Free nodes have no end by a budget;
    a year is the longest. Nodes of capacity with terms, by `as_of`, cost nothing before their start, and end with the
    capacity.
    """
    life = lifetime(limits, cost, duration_s=duration_s, offers=offers, as_of=as_of)
    return None if life is None else life.seconds


def lifetime(
    limits: Constraints, cost: Cost, *, duration_s: float | None, offers: Iterable[Offer], as_of: datetime
) -> Life | None:
    """Return `ttl_s` with what sets it."""
    lives = list(_lives(limits, cost, duration_s=duration_s, offers=offers, as_of=as_of))
    longest = Life(seconds=LONGEST_TTL_S, why="the longest TTL that is allowed")
    return min(*lives, longest, key=_seconds) if lives else None


def lifetime_of(document: PlanDocument) -> Life | None:
    """Return the lifetime of the nodes of a document with a cost. Commands have no prediction, but hourly costs."""
    cost, prediction = document.cost, document.prediction
    assert cost is not None, "a feasible plan has a cost"
    duration_s = None if prediction is None else prediction.duration_s
    if prediction is None and cost.total_usd is not None and cost.usd_per_hour > 0.0:
        by_hour = sum(line.usd for line in cost.lines if line.unit == "hour")
        duration_s = by_hour / cost.usd_per_hour * SECONDS_PER_HOUR
    offers, as_of = document.inputs.offers, document.as_of
    return lifetime(document.constraints, cost, duration_s=duration_s, offers=offers, as_of=as_of)


def _lives(
    limits: Constraints, cost: Cost, *, duration_s: float | None, offers: Iterable[Offer], as_of: datetime
) -> Iterator[Life]:
    """Yield each limit on the lifetime of nodes."""
    terms = [(offer.terms, offer.market) for offer in offers if offer.terms is not None]
    waits = max((each.start_s(as_of) for each, _ in terms), default=0.0)
    for each, market in terms:
        end = each.end_s(as_of, market)
        if end is not None:
            yield Life(seconds=end, why="when the reserved capacity ends")
    if limits.deadline is not None:
        grace = f"the deadline and {duration_text(DEADLINE_GRACE_S)} for the teardown"
        yield Life(seconds=limits.deadline + DEADLINE_GRACE_S, why=grace)
    if limits.budget_usd is not None and cost.usd_per_hour > 0:
        planned_s, spend = duration_s or 0.0, SHARE_OF_BUDGET * limits.budget_usd
        # Nodes that start and end cost less than the rate, which includes the traffic of training.
        known = duration_s is not None and cost.total_usd is not None
        begun_s, spent_usd = (planned_s, cost.total_usd or 0.0) if known else (waits, 0.0)
        life = Life(
            seconds=begun_s + (spend - spent_usd) / cost.usd_per_hour * SECONDS_PER_HOUR,
            why=f"how long {100 * SHARE_OF_BUDGET:.0f} % of the budget lasts at list prices",
        )
        if limits.deadline is None:
            worst_s = limits.budget_usd / cost.worst_case_usd_per_hour * SECONDS_PER_HOUR + waits
            late = Life(seconds=LATE * planned_s, why=f"{LATE:g} times the planned time, as a margin for delays")
            paid = Life(seconds=worst_s, why="how long the budget lasts at worst-case prices")
            life = min(life, max(paid, late, key=_seconds), key=_seconds)
        yield max(life, Life(seconds=planned_s, why="the planned time"), key=_seconds)


def _seconds(life: Life) -> float:
    return life.seconds


def too_short(life_s: float, duration_s: float | None) -> str:
    """Say why nodes with a lifetime can't complete a plan of some duration; "" if they can."""
    if life_s <= 0.0:
        return "the nodes would shut themselves down before they start, since their capacity has ended"
    if duration_s is None or life_s >= duration_s:
        return ""
    return (
        f"the nodes would shut themselves down {duration_text(life_s)} after their start, and the plan needs "
        f"{duration_text(duration_s)}"
    )


def below_least(document: PlanDocument) -> str:
    """Say why a budget can't pay what a plan's nodes cost even if they end at once; "" if it can.

    Capacity that is bought separately is not theirs.
    """
    offers, budget = document.inputs.offers_by_id(), document.constraints.budget_usd
    mine = [offers[node.offer] for node in document.plan.nodes if node.offer in offers] if document.plan else []
    rate = math.fsum(offer.usd_per_hour for offer in mine if not offer.bought_separately)
    least = rate * MINIMUM_BILLED_S / SECONDS_PER_HOUR
    if budget is None or not 0.0 < budget <= least:
        return ""
    return (
        f"each node is billed for {MINIMUM_BILLED_S:.0f} s at least, which costs {usd_text(least)} USD, "
        f"and the budget is {usd_text(budget)} USD"
    )
