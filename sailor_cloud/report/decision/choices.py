"""The chosen plan and its alternatives: their benefits, the limits that they break, and which are efficient."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.model.document import Alternative, PlanDocument, Rejected
from sailor_cloud.model.plan import Plan
from sailor_cloud.report import text
from sailor_cloud.units import usd_difference

CHOSEN = "chosen"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A plan that could be bought. `usd` is the whole run, or one iteration if there is no number of steps.

    `efficient`: no other choice is both faster and cheaper. `breaks` names the limits that it violates.
    """

    label: str
    chosen: bool
    plan: Plan
    iteration_s: float
    duration_s: float | None
    usd_per_hour: float
    usd: float
    slower: float
    extra_usd: float
    breaks: tuple[str, ...]
    efficient: bool

    @property
    def verdict(self) -> str:
        return ", ".join(self.breaks) or ("the plan" if self.chosen else "keeps all limits")


def choices(document: PlanDocument) -> tuple[Choice, ...]:
    """Return the chosen plan and then its alternatives in the document's order; () for an infeasible document."""
    plan, prediction, cost = document.plan, document.prediction, document.cost
    if plan is None or prediction is None or cost is None:
        return ()
    chosen = Alternative(
        label=CHOSEN,
        plan=plan,
        iteration_s=prediction.iteration_s_replay,
        throughput_iterations_per_s=prediction.throughput_iterations_per_s,
        usd_per_hour=cost.usd_per_hour,
        total_usd=cost.total_usd,
        duration_s=prediction.duration_s,
    )
    every = [chosen, *document.alternatives]
    points = [(other.iteration_s, _usd(other)) for other in every]
    return tuple(
        Choice(
            label=other.label,
            chosen=other is chosen,
            plan=other.plan,
            iteration_s=other.iteration_s,
            duration_s=other.duration_s,
            usd_per_hour=other.usd_per_hour,
            usd=_usd(other),
            slower=other.iteration_s / chosen.iteration_s - 1.0,
            extra_usd=usd_difference(_usd(other), _usd(chosen)),
            breaks=_broken(document, other),
            efficient=not any(_beats(rival, point) for rival in points),
        )
        for other, point in zip(every, points, strict=True)
    )


def without_plan(document: PlanDocument) -> tuple[Rejected, ...]:
    """Return the restricted spaces without a plan, each with the reason; they are listed with the alternatives."""
    return tuple(row for row in document.rejected if row.restrictions)


def usd_unit(document: PlanDocument) -> str:
    """Return the unit of a choice's `usd`."""
    return "USD" if document.job.training.steps else "USD/iteration"


def _usd(other: Alternative) -> float:
    if other.total_usd is not None:
        return other.total_usd
    return other.usd_per_hour * other.iteration_s / 3600.0


def _beats(rival: tuple[float, float], point: tuple[float, float]) -> bool:
    return rival != point and rival[0] <= point[0] and rival[1] <= point[1]


def _broken(document: PlanDocument, other: Alternative) -> tuple[str, ...]:
    given = document.constraints
    broken = []
    if given.budget_usd is not None and other.total_usd is not None and other.total_usd > given.budget_usd:
        broken.append(f"over budget by {text.usd(usd_difference(other.total_usd, given.budget_usd))} USD")
    if given.deadline is not None and other.duration_s is not None and other.duration_s > given.deadline:
        broken.append(f"misses the deadline by {text.seconds(other.duration_s - given.deadline)}")
    if given.max_usd_per_hour is not None and other.usd_per_hour > given.max_usd_per_hour:
        broken.append(f"over {text.usd(given.max_usd_per_hour)} USD/h")
    if given.min_throughput is not None and other.throughput_iterations_per_s < given.min_throughput:
        broken.append(f"under {given.min_throughput:g} iterations/s")
    if given.max_usd_per_iteration is not None:
        spent = other.usd_per_hour * other.iteration_s / 3600.0
        if spent > given.max_usd_per_iteration:
            broken.append(f"over {text.usd(given.max_usd_per_iteration)} USD/iteration")
    if given.max_nodes is not None and len(other.plan.nodes) > given.max_nodes:
        broken.append(f"{len(other.plan.nodes)} nodes, at most {given.max_nodes}")
    return tuple(broken)


TITLE = "cost against time"
# In which of two costs no plan of this speed is cheaper: that of the run, or that of the nodes per hour.
BEST = "best per"


def frontier_numbers(document: PlanDocument) -> tuple[str, ...]:
    """Return the headings of the number columns, between devices and zones and `BEST`."""
    timed = all(point.duration_s is not None for point in document.frontier)
    return ("time" if timed else "iteration", usd_unit(document), "nodes USD/h")


def frontier_rows(document: PlanDocument) -> list[tuple[str, ...]]:
    """Return the cells of each point, fastest first: devices, zones, the numbers, and the cost in which it is best.

    The last cell also says if the point is over the budget.
    """
    budget = document.constraints.budget_usd
    over = [budget is not None and (point.total_usd or 0.0) > budget for point in document.frontier]
    return [
        (
            " + ".join(f"{count} {name}" for name, count in point.devices.items()),
            point.zones[0] if len(point.zones) == 1 else f"{len(point.zones)} zones",
            text.seconds(point.seconds),
            text.usd(point.usd),
            "" if point.nodes_usd_per_hour is None else text.usd(point.nodes_usd_per_hour),
            ("run" if point.cheapest else "hour") + (", over budget" if too_much else ""),
        )
        for point, too_much in zip(document.frontier, over, strict=True)
    ]
