"""Compares our plan with those of published planners, by the same simulator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.shown import Rows, Shown

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One planner's plan. `name` is "sailor-cloud" for ours. Figures are None without a plan.

    `estimate_s`: seconds of an iteration by the planner's cost model. `duration_s`, `total_usd`: of the whole run, None
    without a number of steps. `seconds`: processor time of its search.
    """

    name: str
    oracle: bool
    iteration_s: float | None
    estimate_s: float | None
    usd_per_iteration: float | None
    duration_s: float | None
    total_usd: float | None
    usd_per_hour: float | None
    devices: int
    out_of_memory: int
    over_limits: int
    seconds: float
    note: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Comparison(Shown):
    """All planners on one job, ours first, then by iterations per second."""

    job: str
    contenders: Rows[Contender]

    def to_frame(self) -> DataFrame:
        """Return the planners as a pandas frame, one row each."""
        return self.contenders.to_frame()

    def shown_facts(self) -> list[tuple[str, str]]:
        fastest = min(self.contenders, key=lambda each: each.iteration_s or float("inf"))
        return [
            ("comparison", self.job),
            ("planners", f"{len({each.name for each in self.contenders})} planners"),
            ("fastest", f"fastest {fastest.name}" if fastest.iteration_s else "no plan"),
        ]

    def shown_rows(self) -> list[tuple[str, Rows[Contender]]]:
        return [("planners, ours first", self.contenders)]


def contender(document: PlanDocument, name: str, seconds: float) -> Contender:
    """Return the figures of one planner's document; `seconds` is the processor time of its search."""
    run, cost, prediction = document.search.strategy, document.cost, document.prediction
    ended = "ended by the time limit" if document.search.cut_short else ""
    devices = sum(node.devices for node in document.plan.nodes) if document.plan else 0
    return Contender(
        name=name,
        oracle=run is not None and run.oracle,
        iteration_s=prediction.iteration_s_replay if prediction else None,
        estimate_s=run.estimate_s if run else (prediction.iteration_s if prediction else None),
        usd_per_iteration=cost.usd_per_iteration if cost else None,
        duration_s=prediction.duration_s if prediction else None,
        total_usd=cost.total_usd if cost else None,
        usd_per_hour=cost.usd_per_hour if cost else None,
        devices=devices,
        out_of_memory=run.out_of_memory if run else 0,
        over_limits=run.over_limits if run else 0,
        seconds=seconds,
        note=ended if document.infeasibility is None else document.infeasibility.message,
    )


def without_plan(name: str, seconds: float, note: str) -> Contender:
    """Return the row of a planner whose search ended without a plan and without a proof that there is none."""
    return Contender(
        name=name,
        oracle=False,
        iteration_s=None,
        estimate_s=None,
        usd_per_iteration=None,
        duration_s=None,
        total_usd=None,
        usd_per_hour=None,
        devices=0,
        out_of_memory=0,
        over_limits=0,
        seconds=seconds,
        note=note,
    )


def compared(job: str, ours: Contender, others: list[Contender]) -> Comparison:
    """Return the comparison: ours, the others from the fastest on, then those without a plan."""
    missing = float("inf")
    ranked = sorted(others, key=lambda each: (each.iteration_s or missing, each.name, each.oracle))
    return Comparison(job=job, contenders=Rows((ours, *ranked)))
