"""Measures by how much `--time-limit` is exceeded: six jobs, three limits, wall seconds of the search beyond the limit.

Usage: python benchmarks/planner/time_limit.py [--case TEXT] [-o FILE]. Each search is one call of `api.plan` in a
process of its own; the start of the process does not count, but reading the data does, as within the limit. Exits with
1 if a search takes more than 0.5 s beyond its limit. Other work on the machine adds to these seconds.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

from time_and_gap import AS_OF, CASES, Case, changed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

from sailor_cloud import api
from sailor_cloud.clock import DatedClock
from sailor_cloud.model.job import Job
from sailor_cloud.planner.space.effort import NoPlanInTimeError

LIMITS_S = (0.5, 1.0, 3.0)
ALLOWED_S = 0.5
NAMES = (
    *("2 zones x (8 A100 + 32 V100), 120 USD", "1 zone x 128 A100", "two nodes of opt-1.3b"),
    *("seven kinds over two clouds", "opt-30b, 20 zones, five kinds, 4,000 devices"),
)
JOBS = (
    *(case for case in CASES if case.name in NAMES),
    Case(
        name="a batch of ten million samples",
        example="gcp-a100-v100.yaml",
        changes={"constraints": {}, "training.global_batch_size": 10**7},
    ),
)
_HEADS = ("job", *(f"beyond {limit_s:g} s" for limit_s in LIMITS_S))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    rows, every_s = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"], []
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for case in (case for case in JOBS if chosen.case in case.name):
            found = [pool.submit(beyond, case, limit_s).result() for limit_s in LIMITS_S]
            every_s += [seconds for seconds, _ in found]
            shown = (f"{seconds:.2f} s{'' if planned else ', no plan'}" for seconds, planned in found)
            rows.append(f"| {case.name} | {' | '.join(shown)} |")
            print(rows[-1], file=sys.stderr, flush=True)
    largest_s = max(every_s, default=0.0)
    summary = f"Largest time beyond a limit: {largest_s:.2f} s, allowed {ALLOWED_S:g} s."
    write("\n".join([measured_on(), *rows, "", summary, ""]), chosen.output)
    sys.exit(1 if largest_s > ALLOWED_S else 0)


def beyond(case: Case, limit_s: float) -> tuple[float, bool]:
    """Return the seconds of a search beyond its limit, 0 if it ended before, and whether it found a plan."""
    job = Job.model_validate(changed(case))
    clock = DatedClock(datetime.fromisoformat(AS_OF).replace(tzinfo=UTC))
    begun, planned = time.perf_counter(), True
    try:
        api.plan(job, clock=clock, time_limit_s=limit_s)
    except NoPlanInTimeError:
        planned = False
    return max(0.0, time.perf_counter() - begun - limit_s), planned


if __name__ == "__main__":
    main()
