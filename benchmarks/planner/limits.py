"""Does a plan under a limit lose to a plan of the same job that was found under another limit?

Usage: python benchmarks/planner/limits.py [--cases 12] [--seed 1] [-o FILE]. Each case is a random job of two or three
accelerators. The planner plans it without limits, then for speed under five budgets, and for money under four
throughputs. All plans found, those of other choices too, are plans of each of these jobs if they keep its limit. Prints
by how much the best of them is better than the job's own plan. Exits with 1 if more than one in fifty is beaten by more
than 5 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

from sailor_cloud import api
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import SailorError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Goal, Job

AS_OF = datetime(2026, 11, 21, tzinfo=UTC)
BEATEN, MOST_BEATEN = 0.05, 0.02
# Where limits lie between the figures of the cheapest and the fastest plan.
BUDGETS, THROUGHPUTS = (0.1, 0.25, 0.45, 0.65, 0.85), (0.2, 0.4, 0.6, 0.8)
MODELS = {"gpt2-medium": 1024, "opt-1.3b": 2048, "opt-6.7b": 2048, "sailor-opt-350": 2048}
PLACES = {
    "gcp": (("us-central1-a", "us-central1-b"), ("A100-40", "A100-80", "L4-24", "T4-16", "V100-16")),
    "aws": (("use1-az1", "use1-az2"), ("A100-40", "A10G-24", "H100-80", "L40S-48")),
}
HEADS = ("job", "limits", "beaten by more than 0.5 %", "by more than 5 %", "worst", "CPU s of a plan")


class Found(NamedTuple):
    """A plan: the seconds of an iteration and the USD of the run."""

    seconds: float
    usd: float


def random_job(dice: random.Random, number: int) -> Job:
    """Return a job at random; some have no plan."""
    model, provider = dice.choice(sorted(MODELS)), dice.choice(sorted(PLACES))
    zones, accelerators = PLACES[provider]
    names = dice.sample(accelerators, dice.choice((2, 2, 3)))
    wanted: dict[str, Any] = {
        "name": f"limits-{number}",
        "model": {"preset": model},
        "training": {
            "global_batch_size": dice.choice((32, 96, 128, 250, 256)),
            "sequence_length": MODELS[model],
            "steps": 2000,
            "precision": "fp16" if provider == "gcp" else "bf16",
        },
        "goal": "maximize-throughput",
        "resources": [
            {
                "provider": provider,
                "zones": list(zones[: dice.choice((1, 2))]),
                "markets": dice.choice((["spot"], ["spot", "on-demand"])),
                "accelerators": {name: dice.choice((4, 8, 12, 16, 24)) for name in sorted(names)},
            }
        ],
    }
    return Job.model_validate(wanted)


def limited(job: Job, goal: Goal, **limits: float) -> Job:
    """Return a job with another goal and other limits."""
    constraints = job.constraints.model_copy(update=limits)
    return job.model_copy(update={"goal": goal, "constraints": constraints})


def planned(job: Job) -> PlanDocument | None:
    """Return the plan of a job; None if there is none."""
    try:
        document = api.plan(job, clock=FixedClock(AS_OF))
    except SailorError:
        return None
    return None if document.prediction is None or document.cost is None else document


def own(document: PlanDocument) -> Found:
    """Return the plan of a document."""
    assert document.prediction is not None
    assert document.cost is not None
    return Found(document.prediction.iteration_s_replay, document.cost.total_usd or 0.0)


def choices(document: PlanDocument) -> Iterator[Found]:
    """Yield the plan of a document and its other choices."""
    yield own(document)
    for choice in document.decision.choices if document.decision is not None else ():
        yield Found(choice.iteration_s, choice.usd)


def losses(job: Job) -> tuple[list[float], float] | None:
    """Return for each limit by how much a plan loses, and the CPU seconds of a plan; None if a job has no plan."""
    begun = time.process_time()
    free = [planned(limited(job, goal)) for goal in (Goal.MAXIMIZE_THROUGHPUT, Goal.MINIMIZE_COST)]
    if None in free:
        return None
    fastest, cheapest = (own(document) for document in free if document is not None)
    budgets = [cheapest.usd + share * (fastest.usd - cheapest.usd) for share in BUDGETS]
    least, most = 1.0 / cheapest.seconds, 1.0 / fastest.seconds
    floors = [least + share * (most - least) for share in THROUGHPUTS]
    plans = {("usd", usd): planned(limited(job, Goal.MAXIMIZE_THROUGHPUT, budget_usd=usd)) for usd in budgets}
    plans |= {("s", floor): planned(limited(job, Goal.MINIMIZE_COST, min_throughput=floor)) for floor in floors}
    every = {found for each in (*free, *plans.values()) if each is not None for found in choices(each)}
    found = []
    for (kind, limit), document in plans.items():
        number = 0 if kind == "usd" else 1
        kept = [one for one in every if (one.usd <= limit if kind == "usd" else one.seconds <= 1.0 / limit)]
        if kept:
            best = min(one[number] for one in kept)
            found.append(float("inf") if document is None else max(0.0, own(document)[number] / best - 1.0))
    return found, (time.process_time() - begun) / (len(plans) + len(free))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    dice = random.Random(chosen.seed)
    rows: list[str] = []
    every: list[float] = []
    jobs = ((job, losses(job)) for job in (random_job(dice, number) for number in count()))
    for job, lost in islice(((job, lost) for job, lost in jobs if lost is not None), chosen.cases):
        shares, spent = lost
        every += shares
        (entry,), model = job.resources, job.model
        assert model is not None
        offered = ", ".join(f"{devices} {name}" for name, devices in sorted(entry.accelerators.items()))
        what = f"{job.name}: {model.preset}, batch {job.training.global_batch_size}, {offered} in each of "
        what += f"{len(entry.zones)} zones"
        over = [sum(share > least for share in shares) for least in (0.005, BEATEN)]
        rows.append(f"| {what} | {len(shares)} | {over[0]} | {over[1]} | {100 * max(shares):.1f} % | {spent:.1f} |")
        print(rows[-1], file=sys.stderr, flush=True)
    beaten = [sum(share > least for share in every) for least in (0.005, BEATEN)]
    told = (
        f"Of {len(every)} plans, {beaten[0]} lose by more than 0.5 % and {beaten[1]} by more than {100 * BEATEN:g} %."
    )
    heads = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    write("\n".join([measured_on(), *heads, *rows, "", told, ""]), chosen.output)
    raise SystemExit(beaten[1] > MOST_BEATEN * len(every))


if __name__ == "__main__":
    main()
