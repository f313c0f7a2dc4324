"""Does a job's plan lose to a plan of a part of the job, with fewer zones?

Usage: python benchmarks/planner/subspaces.py [--cases 20] [--seed 1] [-o FILE]. Each case is a random job over 4 to 20
zones of GCP. The planner plans it, then the same job in each of its regions and continents.
Every plan of a part is a plan of the whole job. Prints by how much the best of them is better, in the figure that its
report shows. Exits with 1 if more than one plan is beaten by more than 5 %.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

from sailor_cloud import api, catalog
from sailor_cloud.clock import FixedClock
from sailor_cloud.errors import SailorError
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.offer import Provider

AS_OF = datetime(2026, 11, 21, tzinfo=UTC)
BEATEN, MOST_BEATEN = 0.05, 1
ACCELERATORS = ("A100-40", "A100-80", "L4-24", "T4-16", "V100-16")
# Models with their sequence lengths.
MODELS = {"gpt2-medium": 1024, "opt-1.3b": 2048, "opt-30b": 2048, "opt-6.7b": 2048, "sailor-opt-350": 2048}
HEADS = ("job", "shown (s or USD)", "best part", "there", "better by", "CPU s of plan")


def random_job(dice: random.Random, number: int, zones: list[str]) -> Job:
    """Return a job at random; some have no plan."""
    model, goal = dice.choice(sorted(MODELS)), dice.choice([*[Goal.MAXIMIZE_THROUGHPUT] * 3, Goal.MINIMIZE_COST])
    names = dice.sample(ACCELERATORS, dice.choice((1, 2, 2, 3, 5)))
    wanted: dict[str, Any] = {
        "name": f"zones-{number}",
        "model": {"preset": model},
        "training": {
            "global_batch_size": dice.choice((128, 256, 1024)),
            "sequence_length": MODELS[model],
            "steps": 2000,
            "precision": "fp16",
        },
        "goal": goal,
        "resources": [
            {
                "provider": "gcp",
                "zones": sorted(dice.sample(zones, dice.choice((4, 6, 8, 12, 20)))),
                "markets": ["spot", "on-demand"],
                "accelerators": {name: dice.choice((4, 8, 16, 40)) for name in sorted(names)},
            }
        ],
    }
    if goal is Goal.MINIMIZE_COST:
        wanted["constraints"] = {"deadline": dice.choice(("12h", "48h", "96h"))}
    return Job.model_validate(wanted)


def parts(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield the job in each of its regions, and in each continent with several of them."""
    (entry,) = job.resources
    places: dict[str, list[str]] = defaultdict(list)
    for zone in entry.zones:
        region = zone.rsplit("-", 1)[0]
        places[region].append(zone)
        places[region.split("-", maxsplit=1)[0]].append(zone)
    known = {tuple(entry.zones)}
    for place, zones in places.items():
        if tuple(zones) not in known:
            known.add(tuple(zones))
            yield place, job.model_copy(update={"resources": (entry.model_copy(update={"zones": tuple(zones)}),)})


def figure(job: Job) -> float | None:
    """Return the iteration's seconds or the run's USD of the plan; None if there is none."""
    try:
        document = api.plan(job, clock=FixedClock(AS_OF))
    except SailorError:
        return None
    if document.prediction is None or document.cost is None:
        return None
    return document.cost.total_usd if job.goal is Goal.MINIMIZE_COST else document.prediction.iteration_s_replay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    offers = catalog.load().offers(provider=Provider("gcp"), accelerators=ACCELERATORS)
    zones, dice = sorted({offer.zone for offer in offers}), random.Random(chosen.seed)
    rows, beaten = [], 0
    for row, share in islice(compared(random_job(dice, number, zones) for number in count()), chosen.cases):
        rows.append(row)
        beaten += share > BEATEN
        print(row, file=sys.stderr, flush=True)
    told = f"Beaten by more than {100 * BEATEN:g} %: {beaten} of {len(rows)}."
    heads = [f"| {' | '.join(HEADS)} |", "|---" * len(HEADS) + "|"]
    write("\n".join([measured_on(), *heads, *rows, "", told, ""]), chosen.output)
    raise SystemExit(beaten > MOST_BEATEN)


def compared(jobs: Iterator[Job]) -> Iterator[tuple[str, float]]:
    """Yield the row of each job that has a plan, and the share by which a part's plan is better."""
    for job in jobs:
        before = time.process_time()
        shown = figure(job)
        spent = time.process_time() - before
        if shown is None:
            continue
        found = {place: value for place, part in parts(job) if (value := figure(part)) is not None}
        best = min(found, key=found.__getitem__, default=None)
        least = shown if best is None else found[best]
        share = max(0.0, shown / least - 1.0)
        (entry,), model = job.resources, job.model
        assert model is not None
        offered = ", ".join(f"{devices} {name}" for name, devices in sorted(entry.accelerators.items()))
        what = f"{job.name}: {model.preset}, batch {job.training.global_batch_size}, {offered} in each of "
        what += f"{len(entry.zones)} zones, {job.goal.value}"
        yield f"| {what} | {shown:.4g} | {best or '–'} | {least:.4g} | {100 * share:.2f} % | {spent:.1f} |", share


if __name__ == "__main__":
    main()
