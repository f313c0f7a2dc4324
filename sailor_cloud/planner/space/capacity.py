"""Plans over capacity with a start and an end: one search for each window; the best result is the answer.

Within one search, nodes wait as in `planner.evaluate.bill`, and the end is a deadline. A plan uses only capacity that
exists during the whole window.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from sailor_cloud.catalog.capacity import groups
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.document import Decision, Ground, Infeasibility, Pick, PlanDocument, Rejected, Status
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.planner.space.answer import OPTIMAL_GAP, share_above
from sailor_cloud.planner.space.effort import OutOfTimeError
from sailor_cloud.planner.space.search_options import SearchOptions
from sailor_cloud.units import duration_text, usd_text


def over_capacity(
    job: Job, asked: SearchOptions, now: datetime, search: Callable[[Job, SearchOptions], PlanDocument]
) -> PlanDocument:
    """Return the best plan over all capacity that a job may use, with the job's limits.

    Raises OutOfTimeError if no search has a plan and one of them ran out of time.
    """
    parts = groups(job, now)
    if len(parts) == 1:
        found = search(_with(job, parts[0], now), asked) if job.cloud.reserved else search(job, asked)
        return replace(found, job=job, constraints=job.constraints)
    searched: list[tuple[Sequence[Capacity], PlanDocument | None]] = []
    for number, part in enumerate(parts):
        try:
            searched.append((part, search(_with(job, part, now), _share(asked, number, len(parts)))))
        except OutOfTimeError:
            searched.append((part, None))
    documents = [document for _, document in searched if document is not None]
    feasible = [document for document in documents if document.plan is not None]
    if not feasible:
        if len(documents) < len(parts):
            raise OutOfTimeError
        return _infeasible(job, documents, parts)
    best = min(feasible, key=lambda document: _order(document, asked.choose))
    named = {entry.market for entry in job.cloud.reserved}
    kept = [row for row in best.rejected if row.market not in named]
    rows = [row for part, document in searched for row in _left_out(part, document, best, now)]
    complete = len(documents) == len(parts)
    cut_short = not complete or any(document.search.cut_short for document in documents)
    best = replace(
        best,
        job=job,
        constraints=job.constraints,
        rejected=(*kept, *rows),
        decision=_decided(best, rows),
        search=replace(best.search, cut_short=cut_short, weakest_branch=None),
    )
    return _bounded(best, feasible, complete=complete)


def _with(job: Job, part: Sequence[Capacity], now: datetime) -> Job:
    """Return the job with some of its capacity; the end of the capacity is the deadline."""
    ends = [end for entry in part if (end := entry.terms.end_s(now, entry.market)) is not None]
    limits = [*ends, *([] if job.constraints.deadline is None else [job.constraints.deadline])]
    cloud = job.cloud.model_copy(update={"capacity": tuple(part)})
    constraints = job.constraints.model_copy(update={"deadline": min(limits, default=None)})
    return job.model_copy(update={"cloud": cloud, "constraints": constraints})


def _share(asked: SearchOptions, number: int, count: int) -> SearchOptions:
    """Return the options for one of several searches: its part of the time and of the progress."""
    limit, tell = asked.time_limit_s, asked.progress
    return replace(
        asked,
        time_limit_s=None if limit is None else limit / count,
        progress=None if tell is None else lambda share: tell((number + share) / count),
    )


def _order(document: PlanDocument, choose: Pick | None) -> float:
    assert document.cost is not None
    if choose is Pick.CHEAPEST and document.cost.total_usd is not None:
        return document.cost.total_usd
    if choose is Pick.FASTEST and document.prediction is not None and document.prediction.duration_s is not None:
        return document.prediction.duration_s
    value = document.objective.value if document.objective is not None else 0.0
    return -value if document.job.goal is Goal.MAXIMIZE_THROUGHPUT else value


def _bounded(best: PlanDocument, others: Sequence[PlanDocument], *, complete: bool) -> PlanDocument:
    """Return the document with the bound of all searches; without one if a search has no result."""
    bounds = [document.bound for document in others]
    known = [bound for bound in bounds if bound is not None]
    if best.bound is None or best.objective is None or len(known) < len(bounds) or not complete:
        return replace(best, bound=None, optimality_gap=None, status=Status.FEASIBLE, gap_parts=())
    value = best.objective.value
    bound = max(known) if best.job.goal is Goal.MAXIMIZE_THROUGHPUT else min(known)
    gap = share_above(max(value, bound), min(value, bound))
    proven = best.status is Status.OPTIMAL and gap <= OPTIMAL_GAP
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return replace(best, bound=bound, optimality_gap=gap, status=status, gap_parts=() if proven else best.gap_parts)


def _left_out(
    part: Sequence[Capacity], document: PlanDocument | None, best: PlanDocument, now: datetime
) -> list[Rejected]:
    """Return the capacity of one search that the best plan does not use, with the cost of its own plan."""
    if document is best:
        return []
    used = {offer.terms.name for offer in best.inputs.offers if offer.terms is not None}
    starts = [entry.terms.start_s(now) for entry in part]
    ends = [entry.terms.end_s(now, entry.market) for entry in part]
    limits = max(starts, default=0.0), min((end for end in ends if end is not None), default=None)
    rows = []
    for entry, start, end in zip(part, starts, ends, strict=True):
        # Capacity with a wider window belongs to another search.
        if entry.name in used or (start, end) != limits or (start <= 0 and end is None):
            continue
        if document is None:
            why = "no plan with it was found in its share of the time limit"
        elif document.infeasibility is None:
            why = _costs_more(entry, document)
        else:
            why = _why(entry, document.infeasibility, now)
        what = f"{entry.market} {entry.name}"
        row = Rejected(what=what, why=why, ground=Ground.QUOTA, subject=what, zone=entry.zone, market=entry.market)
        rows.append(row)
    return rows


def _costs_more(entry: Capacity, document: PlanDocument) -> str:
    if all(offer.terms is None or offer.terms.name != entry.name for offer in document.inputs.offers):
        return "is in no plan as good as the chosen one"
    usd = document.cost.total_usd if document.cost is not None else None
    seconds = document.prediction.duration_s if document.prediction is not None else None
    money = "" if usd is None else f"{usd_text(usd)} USD"
    time = "" if seconds is None else f"{duration_text(seconds)} with the wait"
    return f"its best plan takes {' and '.join(filter(None, (money, time)))}"


def _decided(best: PlanDocument, rows: Sequence[Rejected]) -> Decision | None:
    """Return the decision with the reason why capacity with a start or an end is left out."""
    if best.decision is None:
        return None
    left_out = [
        replace(one, why="; ".join(reasons))
        if (reasons := [f"{row.what}: {row.why}" for row in rows if row.market == one.name])
        else one
        for one in best.decision.left_out
    ]
    return replace(best.decision, left_out=tuple(left_out))


def _why(entry: Capacity, found: Infeasibility, now: datetime) -> str:
    start, end = entry.terms.start_s(now), entry.terms.end_s(now, entry.market)
    if found.constraint != "deadline" or end is None:
        return found.message
    begins = f"begins in {duration_text(start)}" if start > 0 else "is there now"
    needs = "" if found.needed is None else f"; {duration_text(found.needed)} would do"
    return f"{begins} and ends in {duration_text(end)}, before the run could{needs}"


def _infeasible(job: Job, found: Sequence[PlanDocument], parts: Sequence[Sequence[Capacity]]) -> PlanDocument:
    """Return why no search has a plan: the reason of the first one, or the end of the capacity."""
    now, first = found[0].as_of, found[0]
    rows = [row for part, document in zip(parts, found, strict=True) for row in _left_out(part, document, first, now)]
    why = first.infeasibility
    assert why is not None
    if why.constraint == "resources" and rows:
        latest = found[-1].infeasibility
        assert latest is not None
        message = "; ".join(f"{row.what}: {row.why}" for row in rows)
        why = replace(latest, message=message)
    return replace(first, job=job, constraints=job.constraints, infeasibility=why, rejected=(*first.rejected, *rows))
