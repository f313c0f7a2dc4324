"""Compares today's plans with those of the planner before it was written again: is any of them worse?

Usage: python benchmarks/planner/not_worse.py [--case TEXT] [-o FILE]. `former_plans.json` holds the plans of commit
db0dc64 for the jobs of the tables in its benchmarks/results/planner*.md and of those that time_and_gap.py has today;
only this benchmark reads it. Both plans are judged by today's simulator: seconds of an iteration in the replay, or
USD where the job minimises money. A former plan has no ratio if an offer of it is gone, or if it no longer fits in
memory or within the job's limits. Exits with 1 if a plan is worse than the former one by more than 0.2 %.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import TypeAdapter
from time_and_gap import Case, changed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

from sailor_cloud import api, catalog, network, workload
from sailor_cloud.catalog import Catalog
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.job import Job
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.model.plan import Plan
from sailor_cloud.network import Network
from sailor_cloud.planner.search import problem_of
from sailor_cloud.planner.space.goals import Figure, figures_of, target_of
from sailor_cloud.simulator import Scenario, evaluate

FORMER = Path(__file__).with_name("former_plans.json")
WORSE = 0.002
# What local nodes share, so that figures do not depend on the machine that runs the benchmark.
MACHINE = LocalMachine(cores=2, speed=1.0)
_HEADS = ("job", "table", "unit", "former plan", "plan of today", "today / former", "what hinders a comparison")
_PLAN = TypeAdapter(Plan)


@dataclass(frozen=True, slots=True, kw_only=True)
class Former:
    """A job, and the plan that the former planner found for it. `table`: the results file that the job is from."""

    case: Case
    table: str
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The figures of both plans in `unit`; infinite where there is none. `hindrance`: why they have no ratio."""

    unit: str
    former: float
    today: float
    hindrance: str = ""

    @property
    def ratio(self) -> float:
        """Return today's figure by the former one; 0 where the former plan is no longer possible."""
        return 0.0 if self.hindrance else self.today / self.former


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    as_of, every = read(FORMER)
    rows, found = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"], []
    for former in every:
        if chosen.case in former.case.name:
            found.append(compared(former, FixedClock(as_of)))
            rows.append(_row(former, found[-1]))
            print(rows[-1], file=sys.stderr, flush=True)
    worse, left_out = sum(each.ratio > 1.0 + WORSE for each in found), sum(bool(each.hindrance) for each in found)
    summary = f"Worse by more than {WORSE:.1%}: {worse} of {len(found)}. Without a ratio: {left_out}."
    write("\n".join([measured_on(), *rows, "", summary, ""]), chosen.output)
    sys.exit(1 if worse else 0)


def read(file: Path) -> tuple[datetime, list[Former]]:
    """Return the date of the former plans' prices, and the plans."""
    stored: dict[str, Any] = json.loads(file.read_text())
    plans = [
        Former(
            case=Case(name=row["name"], example=row["example"], changes=row["changes"]),
            table=row["table"],
            plan=_PLAN.validate_python(row["plan"]),
        )
        for row in stored["plans"]
    ]
    return datetime.fromisoformat(stored["as_of"]), plans


def compared(former: Former, clock: FixedClock) -> Compared:
    """Plan a job, and judge the former plan and the one of today by the same simulator."""
    job = Job.model_validate(changed(former.case))
    target, scenario = target_of(job), scenario_of(job, clock)
    unit = "USD" if target.goal in (Figure.TOTAL_USD, Figure.USD_PER_ITERATION) else "s"
    document = api.plan(job, clock=clock, machine=MACHINE)
    today = math.inf
    if document.plan is not None:
        today = float(figures_of(evaluate(document.plan, scenario))[target.goal])
    gone = sorted({node.offer for node in former.plan.nodes} - set(scenario.offers))
    if gone:
        return Compared(unit=unit, former=math.inf, today=today, hindrance=f"not sold any more: {', '.join(gone)}")
    evaluation = evaluate(former.plan, scenario)
    figures = {**figures_of(evaluation), Figure.NODES: np.array(float(len(former.plan.nodes)))}
    hindrances = [] if evaluation.fits else ["does not fit in memory"]
    hindrances += [
        f"{limit.name} needs {float(figures[limit.figure]):.5g}, allowed {limit.at_most:.5g}"
        for limit in target.limits
        if not replace(target, limits=(limit,)).feasible(figures)
    ]
    return Compared(unit=unit, former=float(figures[target.goal]), today=today, hindrance="; ".join(hindrances))


def scenario_of(job: Job, clock: FixedClock) -> Scenario:
    """Return what plans of a job are judged by, with every offer of the catalog: a search leaves inferior ones out."""
    prices, links = data()
    profiles = replace(workload.profiles.load(), machine=MACHINE)
    scenario = problem_of(job, catalog=prices, network=links, profiles=profiles, clock=clock).space.scenario
    return replace(scenario, offers={offer.id: offer for offer in prices.offers()})


@lru_cache
def data() -> tuple[Catalog, Network]:
    return catalog.load(), network.load()


def _row(former: Former, found: Compared) -> str:
    figures = ["–" if math.isinf(figure) else f"{figure:.5g}" for figure in (found.former, found.today)]
    ratio = "–" if found.hindrance else f"{found.ratio:.4f}"
    worse = ", **worse**" if found.ratio > 1.0 + WORSE else ""
    return (
        f"| {former.case.name} | {former.table} | {found.unit} | {' | '.join(figures)} | {ratio}{worse} | "
        f"{found.hindrance or '–'} |"
    )


if __name__ == "__main__":
    main()
