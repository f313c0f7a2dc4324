"""How long the nodes of a run may live, and what they cost meanwhile."""

from __future__ import annotations

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.planner.lifetime import ttl_s


def life_s(document: PlanDocument) -> float:
    """Return the seconds from the start of a run until its nodes end themselves.

    The plan's TTL, or less where a plan that was written elsewhere would outlive its budget. Raises RequestError for a
    job without budget and deadline: nothing would end its nodes.
    """
    assert document.cost is not None, "a feasible plan has a cost"
    lives = (document.ttl_s, ttl_s(document.constraints, document.cost))
    life = min((life for life in lives if life is not None), default=None)
    if life is None:
        raise RequestError(
            "the job has neither a budget nor a deadline, so nothing would end its nodes; "
            "give constraints.budget_usd or constraints.deadline, or --budget or --deadline"
        )
    return life


def usd_per_hour(document: PlanDocument) -> float:
    """Return what a plan costs while it trains, traffic included."""
    return document.cost.usd_per_hour if document.cost is not None else 0.0
