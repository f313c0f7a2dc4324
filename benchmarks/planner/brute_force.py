"""Compares the search with every plan of small random jobs, made without any code of the planner.

Usage: python benchmarks/planner/brute_force.py [--jobs 300] [--first 0] [--prove] [-o FILE]. All plans are simulated. A
job fails if a plan beats the bound, if the plan that is shown is worse than the best one by more than its gap says, or
if it is called optimal and another one is better by more than 0.1 %. With `--prove` jobs have two zones whose traffic
costs money, and limits on money; the bound is that of `plan --prove`, and no plan is searched for.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NoReturn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from factories.brute_force import every_plan  # noqa: E402
from factories.planning import example, make_space, plan, tiny_job  # noqa: E402
from sailor_cloud.model.document import Status  # noqa: E402
from sailor_cloud.model.job import Goal, Job  # noqa: E402
from sailor_cloud.model.plan import Plan  # noqa: E402
from sailor_cloud.planner.bound.bounds import iteration_bound_s  # noqa: E402
from sailor_cloud.planner.bound.proof import proven_s  # noqa: E402
from sailor_cloud.planner.space.answer import OPTIMAL_GAP  # noqa: E402
from sailor_cloud.planner.space.goals import Figure, Limit, Target, figures_of  # noqa: E402
from sailor_cloud.simulator import Evaluation, Scenario, evaluate  # noqa: E402

# CPU seconds that a job's proof may take.
PROOF_S = 2.0
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


def crossing_job(dice: random.Random) -> Job:
    """A narrow model on up to three nodes of one device each, in two zones between which traffic costs money."""
    return example(
        "gcp-a100-v100.yaml",
        constraints={"max_nodes": dice.choice((2, 2, 3))},
        training__global_batch_size=dice.randint(2, 6),
        training__sequence_length=dice.choice((512, 4096, 16384)),
        training__steps=dice.choice((100, 2000)),
        model={
            "model_type": "gpt2",
            "vocab_size": dice.choice((64, 5000)),
            "hidden_size": dice.choice((64, 256, 1024)),
            "num_hidden_layers": dice.randint(1, 2),
            "num_attention_heads": 8,
            "max_position_embeddings": 16384,
            "tie_word_embeddings": dice.random() < 0.5,
        },
        resources__0__zones=dice.choice((["us-central1-a", "us-central1-b"], ["us-central1-a", "us-west1-b"])),
        resources__0__accelerators=dice.choice(({"A100-40": 1}, {"V100-16": 1}, {"A100-40": 1, "V100-16": 1})),
        resources__0__markets=["spot"],
    )


def proven(first: int, jobs: int) -> tuple[str, list[str]]:
    """Return what the proof says of jobs over two zones with a limit on money, and where a plan beats it."""
    failures, plans, crossing, gaps = [], 0, 0, []
    for number in range(first, first + jobs):
        dice = random.Random(number)
        job = crossing_job(dice)
        space = make_space(job)
        every = [
            (found, len({space.scenario.offers[node.offer].zone for node in each.nodes}))
            for each in every_plan(space.scenario)
            if _on_offer(job, space.scenario, each) and (found := evaluate(each, space.scenario)).fits
        ]
        figure = dice.choice((Figure.TOTAL_USD, Figure.USD_PER_ITERATION, Figure.USD_PER_HOUR))
        spent = sorted(float(figures_of(each)[figure]) for each, _ in every)
        limit = Limit(name="money", figure=figure, at_most=dice.choice(spent))
        within = [each for each in every if float(figures_of(each[0])[figure]) <= limit.at_most]
        best, zones = min(within, key=lambda each: each[0].prediction.iteration_s_replay)
        least_s = best.prediction.iteration_s_replay
        target = Target(goal=Figure.ITERATION_S, limits=(limit,))
        deadline = space.known.deadline
        deadline.now_s, deadline.at_s = time.process_time, time.process_time() + PROOF_S
        # As if a worse plan were known, so that times are tried which plans take.
        bound_s, branch = proven_s(space, target, 1.2 * least_s, iteration_bound_s(space, target))
        plans += len(every)
        crossing += zones > 1
        gaps.append(1.0 - bound_s / least_s)
        if bound_s > least_s * (1.0 + 1e-9):
            failures.append(f"job {number}: best {least_s:.6g}, bound {bound_s:.6g} of {branch}")
    summary = (
        f"{jobs} jobs over two zones from {first} on, {plans} plans simulated, {time.process_time():.0f} CPU s: "
        f"the best plan of {crossing} is in both zones, the bound is {statistics.median(gaps):.1%} below it (median), "
        f"{len(failures)} failures"
    )
    return summary, failures


def _on_offer(job: Job, scenario: Scenario, plan: Plan) -> bool:
    """Return whether a plan takes no more devices of a zone than the job allows."""
    offers = [scenario.offers[node.offer] for node in plan.nodes]
    taken = Counter((offer.zone, offer.accelerator) for offer in offers)
    return all(count <= job.resources[0].accelerators[name] for (_, name), count in taken.items())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prove", action="store_true")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    if chosen.prove:
        summary, failures = proven(chosen.first, chosen.jobs)
        finish([summary, *failures], chosen.output, failed=bool(failures))
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
        called = document.status is Status.OPTIMAL
        optimal += called
        worst = max(worst, shown / least - 1.0)
        beaten = bound > least * (1.0 + 1e-9) or shown < bound * (1.0 - 1e-9)
        if beaten or (called and shown > least * (1.0 + OPTIMAL_GAP)):
            failures.append(f"job {number}: best {least:.6g}, shown {shown:.6g}, bound {bound:.6g}, {document.status}")
    lines = [
        f"{chosen.jobs} jobs from {chosen.first} on, {plans} plans simulated, {time.process_time():.0f} CPU s: "
        f"{optimal} called optimal, the plan shown at most {worst:.3%} behind the best, {len(failures)} failures",
        *failures,
    ]
    finish(lines, chosen.output, failed=bool(failures))


def finish(lines: list[str], output: Path | None, *, failed: bool) -> NoReturn:
    print("\n".join(lines))
    if output:
        output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    raise SystemExit(1 if failed else 0)


if __name__ == "__main__":
    main()
