"""The lifetime of a run's nodes, and their cost meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.simulator.lifetime import below_least, lifetime_of, too_short
from sailor_cloud.units import SECONDS_PER_HOUR

NO_END = (
    "the job has neither a budget nor a deadline, so nothing would end its nodes; "
    "give constraints.budget_usd or constraints.deadline, or --budget or --deadline"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Remaining:
    """The remaining iterations after the newest checkpoint, money and time; None means unlimited.

    For a command, the number of `steps` may be unknown.
    """

    steps: int | None
    usd: float | None
    seconds: float | None
    # Until the nodes shut themselves down; `usd_alone` must last that long if the controller dies.
    life_s: float = 0.0
    usd_alone: float | None = None


def life_s(document: PlanDocument) -> float:
    """Return the seconds from the start of a run until its nodes shut themselves down.

    This is the plan's TTL, or less if a plan written elsewhere would exceed its budget. Raises RequestError for a job
    without budget and deadline, since nothing would end its nodes, for nodes that would end before the run, and for a
    budget that can't pay what is billed at least.
    """
    duration = document.prediction.duration_s if document.prediction is not None else None
    own = lifetime_of(document)
    lives = (document.ttl_s, None if own is None else own.seconds)
    life = min((life for life in lives if life is not None), default=None)
    if life is None and document.constraints.budget_usd is not None:
        raise RequestError(
            "the nodes cost nothing, so no budget would end them; give constraints.deadline or --deadline"
        )
    if life is None:
        raise RequestError(NO_END)
    if why := below_least(document):
        raise RequestError(f"{why}; raise constraints.budget_usd, or give --budget")
    if why := too_short(life, duration):
        raise RequestError(f"{why}; raise constraints.deadline, or write the plan again with 'sailor-cloud plan'")
    return life


def with_affordable_rate(document: PlanDocument, left: Remaining) -> PlanDocument:
    """Return a plan whose worst rate the remaining budget can pay until the nodes shut themselves down.

    Nodes whose price may rise get that limit if their provider takes one; never below the plan's list prices.
    """
    if document.cost is None or left.usd_alone is None or left.life_s <= 0.0:
        return document
    most = max(document.cost.usd_per_hour, left.usd_alone / left.life_s * SECONDS_PER_HOUR)
    worst = min(document.cost.worst_case_usd_per_hour, most)
    return replace(document, cost=replace(document.cost, worst_case_usd_per_hour=worst))


def usd_per_hour(document: PlanDocument) -> float:
    """Return a plan's hourly cost during training, with traffic."""
    return document.cost.usd_per_hour if document.cost is not None else 0.0
