"""Compares the search with every plan of small random jobs, made without any code of the planner.

Usage: python benchmarks/planner/brute_force.py [--jobs 300] [--first 0] [-o FILE]. All plans are simulated. A job fails
if a plan beats the bound, if the plan that is shown is worse than the best one by more than its gap says, or if it is
called optimal and another one is better by more than 0.1 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from factories.brute_force import every_plan  # noqa: E402
from factories.planning import make_space, plan, tiny_job  # noqa: E402
from sailor_cloud.model.document import Status  # noqa: E402
from sailor_cloud.model.job import Goal, Job  # noqa: E402
from sailor_cloud.planner.space.answer import OPTIMAL_GAP  # noqa: E402
from sailor_cloud.simulator import Evaluation, evaluate  # noqa: E402

GOALS = ("maximize-throughput", "minimize-cost", "minimize-time")
ACCELERATORS = (
    {"CPU-fast": 1},
    {"CPU-fast": 2},
    {"CPU-slow": 2},
    {"CPU-fast": 1, "CPU-slow": 1},
    {"CPU-fast": 1, "CPU-slow": 2},
)


def random_job(number: int) -> Job:
    """A model of one to three blocks on up to three devices in one zone or two."""
    dice = random.Random(number)
    return tiny_job(
        blocks=dice.randint(1, 3),
        batch=dice.randint(1, 6),
        hidden=dice.choice((32, 64)),
        zones=dice.choice((("local-a",), ("local-a", "local-b"))),
        accelerators=dice.choice(ACCELERATORS),
        goal=dice.choice(GOALS),
        constraints={"max_nodes": dice.randint(1, 3)},
    )


def value(job: Job, evaluation: Evaluation) -> float:
    """The figure that a job minimises."""
    prediction, cost = evaluation.prediction, evaluation.cost
    figures = {
        Goal.MAXIMIZE_THROUGHPUT: prediction.iteration_s_replay,
        Goal.MINIMIZE_TIME: prediction.duration_s,
        Goal.MINIMIZE_COST: cost.total_usd,
    }
    return float(figures[job.goal] or 0.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    failures, optimal, plans, worst = [], 0, 0, 0.0
    for number in range(chosen.first, chosen.first + chosen.jobs):
        job = random_job(number)
        scenario = make_space(job).scenario
        every = [found for each in every_plan(scenario) if (found := evaluate(each, scenario)).fits]
        least = min(value(job, each) for each in every)
        document = plan(job)
        shown, bound = document.objective.value, document.bound
        if job.goal is Goal.MAXIMIZE_THROUGHPUT:
            shown, bound = 1.0 / shown, 1.0 / bound
        plans += len(every)
        proven = document.status is Status.OPTIMAL
        optimal += proven
        worst = max(worst, shown / least - 1.0)
        beaten = bound > least * (1.0 + 1e-9) or shown < bound * (1.0 - 1e-9)
        if beaten or (proven and shown > least * (1.0 + OPTIMAL_GAP)):
            failures.append(f"job {number}: best {least:.6g}, shown {shown:.6g}, bound {bound:.6g}, {document.status}")
    lines = [
        f"{chosen.jobs} jobs from {chosen.first} on, {plans} plans simulated, {time.process_time():.0f} CPU s: "
        f"{optimal} called optimal, the plan shown at most {worst:.3%} behind the best, {len(failures)} failures",
        *failures,
    ]
    print("\n".join(lines))
    if chosen.output:
        chosen.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    raise SystemExit(1 if failures else 0)


if __name__ == "__main__":
    main()
