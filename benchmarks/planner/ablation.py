"""Switches off one step of the search at a time: how much worse do plans become, and how much CPU time does it save?

Usage: python benchmarks/planner/ablation.py [--step NAME] [--random 24] [-o FILE]. Plans the cases of time_and_gap.py
but for the quickstart, and so many random jobs of attack.py (seed 77), each in a process of its own. Prints, for each
step, in how many jobs the goal's figure becomes worse by more than 0.1 %, the worst one, and CPU seconds of all jobs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from attack import AS_OF, random_job
from commit import measured_on, write
from time_and_gap import CASES, changed

from sailor_cloud import api
from sailor_cloud.clock import FixedClock
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.planner.improvement import local_search
from sailor_cloud.planner.seeds import group_search, mixed
from sailor_cloud.planner.seeds.node_patterns import NodePatterns

WORSE = 0.001


def no_node_patterns() -> None:
    NodePatterns.every = lambda self: []  # type: ignore[method-assign]


def no_groups() -> None:
    mixed.grouped = lambda *_, **__: []


def no_shares_by_kind() -> None:
    group_search.Apportioned.drafts = lambda self: []  # type: ignore[method-assign]


def no_balanced_sizes() -> None:
    group_search.with_balanced_sizes = lambda *_, **__: None


def no_local_search() -> None:
    local_search._FIRST = local_search._WHOLE = 0.0
    local_search._BEST = ()


def half_of_the_local_search() -> None:
    local_search._FIRST, local_search._WHOLE = local_search._FIRST / 2.0, local_search._WHOLE / 2.0
    local_search._BEST = tuple(each / 2.0 for each in local_search._BEST)


STEPS: dict[str, Callable[[], None]] = {
    "node patterns": no_node_patterns,
    "groups of equal pipelines": no_groups,
    "groups: samples by kind": no_shares_by_kind,
    "groups: sizes that end together": no_balanced_sizes,
    "local search": no_local_search,
    "half of the local search": half_of_the_local_search,
}


def planned(job: Job, step: str | None) -> tuple[float, float]:
    """Return the figure of the goal, infinite without a plan, and CPU seconds."""
    if step is not None:
        STEPS[step]()
    begun = time.process_time()
    document = api.plan(job, clock=FixedClock(AS_OF))
    spent = time.process_time() - begun
    if document.prediction is None or document.cost is None:
        return float("inf"), spent
    money = document.cost.total_usd or document.cost.usd_per_iteration
    return money if job.goal is Goal.MINIMIZE_COST else document.prediction.iteration_s_replay, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--step", choices=STEPS, action="append")
    parser.add_argument("--random", type=int, default=24)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    dice = random.Random(77)
    jobs = [Job.model_validate(changed(case)) for case in CASES if not case.name.startswith("quickstart")]
    jobs += [random_job(dice, number) for number in range(chosen.random)]
    rows, whole = [], []
    for step in (None, *(chosen.step or STEPS)):
        with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
            found = pool.starmap(planned, [(job, step) for job in jobs], chunksize=1)
        whole = whole or found
        losses = [own / best - 1.0 for (own, _), (best, _) in zip(found, whole, strict=True) if best < float("inf")]
        cells = [step or "none", f"{sum(loss > WORSE for loss in losses)} of {len(losses)}"]
        cells += [f"{max(losses):.1%}", f"{sum(spent for _, spent in found):.0f}"]
        rows.append(f"| {' | '.join(cells)} |")
        print(rows[-1], file=sys.stderr, flush=True)
    head = "| step switched off | jobs worse by > 0.1 % | the worst | CPU s of all jobs |\n|---|---:|---:|---:|"
    write("\n".join([measured_on(), head, *rows, ""]), chosen.output)


if __name__ == "__main__":
    main()
