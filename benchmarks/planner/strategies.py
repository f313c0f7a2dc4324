"""Compares our plans with those of published planners, on the cases of the Sailor paper, all judged by our simulator.

Usage: python benchmarks/planner/strategies.py [--cases 3] [--case fig10] [--oracle] [--artifact DIR] [-o FILE].
OPT-350 in fp32, global batch 1024, on demand: one kind of GPU (figure 7), two kinds (8b), five zones (10), and two
zones of both kinds, the cheapest of at least 0.2 iterations/s (11) and the fastest with a limit on money (12). With
--artifact, a tree of Sailor's artifact, its own formulas judge all plans (engine sailor-artifact), on its profiles,
links and prices; without a tree there that is skipped. CPU seconds are those of this process. Exits with 1 where a
published planner's plan is more than 0.2 % better than ours.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on

from sailor_cloud import compare
from sailor_cloud.errors import RequestError
from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision
from sailor_cloud.planner.strategies import Comparison, Contender
from sailor_cloud.report.decision.comparison import as_markdown

ONE, TWO = ["us-central1-a"], ["us-central1-a", "us-central1-b"]
FIVE = [*TWO, "us-central1-c", "us-central1-f", "us-west1-b"]
JOB = """
name: {name}
model: {{preset: sailor-opt-350}}
training: {{global_batch_size: 1024, sequence_length: 2048, precision: fp32}}
goal: {goal}
constraints: {{{limits}}}
resources:
  - {{provider: gcp, zones: {zones}, markets: [on-demand], accelerators: {accelerators}}}
"""
# Figure, zones, devices of each zone, limits.
CASES: tuple[tuple[str, list[str], dict[str, int], str], ...] = (
    ("fig7", ONE, {"A100-40": 32}, ""),
    ("fig7", ONE, {"A100-40": 80}, ""),
    ("fig7", ONE, {"A100-40": 128}, ""),
    ("fig8b", ONE, {"A100-40": 32, "V100-16": 96}, ""),
    ("fig8b", ONE, {"A100-40": 80, "V100-16": 240}, ""),
    ("fig8b", ONE, {"A100-40": 128, "V100-16": 384}, ""),
    ("fig10", FIVE, {"A100-40": 32}, ""),
    ("fig10", FIVE, {"A100-40": 80}, ""),
    ("fig10", FIVE, {"A100-40": 128}, ""),
    ("fig11", TWO, {"A100-40": 128, "V100-16": 128}, "min_throughput: 0.2"),
    ("fig12", TWO, {"A100-40": 128, "V100-16": 128}, "max_usd_per_iteration: 1.2"),
)
# A planner's plan that is better than ours by more than this is a defect of our search.
TOLERANCE = 0.002


def job_of(figure: str, zones: list[str], accelerators: dict[str, int], limits: str) -> Job:
    devices = "-".join(f"{count}-{name.split('-')[0].lower()}" for name, count in accelerators.items())
    name = f"{figure}-{len(zones)}x{devices}"
    goal = "minimize-cost" if "min_throughput" in limits else "maximize-throughput"
    kinds = str(accelerators).replace("'", "")
    return parse_job(JOB.format(name=name, zones=zones, accelerators=kinds, limits=limits, goal=goal))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=len(CASES), help="only the first so many")
    parser.add_argument("--oracle", action="store_true", help="also the best of each planner's plans by our simulator")
    parser.add_argument("--artifact", type=Path, help="judge all plans by the formulas of the artifact in this folder")
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("-o", "--output", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            return compared(given, {} if given.artifact is None else imported(given.artifact, Path(folder)))
        except RequestError as error:
            print(f"SKIPPED: {error}")
            return 0


def imported(artifact: Path, folder: Path) -> dict[str, Any]:
    """Import an artifact; return the options of a comparison by its formulas."""
    import_artifact(artifact, folder, precision=Precision.FP32, as_of=datetime.now(UTC).date())
    names = {"profiles": "compute_profiles", "network": "bandwidth_profiles", "pricing": "pricing"}
    return {"engine": "sailor-artifact", **{option: folder / name for option, name in names.items()}}


def compared(given: argparse.Namespace, options: dict[str, Any]) -> int:
    parts = ["# Published planners and ours\n", measured_on()]
    beaten, found = [], []
    for job in [job for case in CASES if given.case in (job := job_of(*case)).name][: given.cases]:
        found.append(compare(job, oracle=given.oracle, **options))
        parts.append(f"## {job.name}\n\n{as_markdown(found[-1])}")
        beaten += better(found[-1], job.goal)
        print(parts[-1], flush=True)
    parts.insert(2, summary(found))
    parts.append("## Planners that beat ours\n\n" + ("\n".join(f"- {line}" for line in beaten) or "None.") + "\n")
    print(parts[2], parts[-1], sep="\n")
    if given.output:
        given.output.write_text("\n".join(parts))
    return 1 if beaten else 0


def better(found: Comparison, goal: Goal) -> list[str]:
    """Return the planners whose plans are better than ours by the job's goal."""

    def figure(of: Contender) -> float:
        each = of.usd_per_iteration if goal is Goal.MINIMIZE_COST else of.iteration_s
        return each or math.inf

    ours, *others = found.contenders
    return [
        f"{found.job}: {other.name}{', oracle' * other.oracle} {figure(ours) / figure(other) - 1.0:+.1%}"
        for other in others
        if figure(other) < figure(ours) * (1.0 - TOLERANCE)
    ]


def summary(found: Sequence[Comparison]) -> str:
    """Return two tables of all planners by case: iterations/s with USD per iteration, and CPU seconds of the search."""
    names = sorted(
        {(each.name, each.oracle) for of in found for each in of.contenders}, key=lambda key: (key[1], key[0])
    )
    head = f"| planner | {' | '.join(of.job for of in found)} |\n| --- |{' ---: |' * len(found)}"
    tables = {"Iterations/s (USD/iteration)": [head], "CPU seconds of the search": [head]}
    for name, oracle in names:
        rows = [next((c for c in of.contenders if (c.name, c.oracle) == (name, oracle)), None) for of in found]
        shown = [
            "-"
            if c is None or c.iteration_s is None
            else f"{1.0 / c.iteration_s:.4f} ({c.usd_per_iteration or 0.0:.3f})"
            for c in rows
        ]
        seconds = ["-" if c is None else f"{c.seconds:.1f}" for c in rows]
        for cells, lines in zip((shown, seconds), tables.values(), strict=True):
            lines.append(f"| {name}{', oracle' * oracle} | {' | '.join(cells)} |")
    return "\n".join(f"## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in tables.items())


if __name__ == "__main__":
    sys.exit(main())
