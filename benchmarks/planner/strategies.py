"""Compares our plans with those of published planners, on the cases of the Sailor paper, all judged by our simulator.

Usage: python benchmarks/planner/strategies.py [--cases 3] [--case fig10] [--oracle] [--artifact DIR [--differences]]
[-o FILE], or with --into FOLDER [--artifact DIR] for all results files at once.
OPT-350 in fp32, global batch 1024, on demand: one kind of GPU (figure 7), two kinds (8b), five zones (10), and two
zones of both kinds, the cheapest of at least 0.2 iterations/s (11) and the fastest with a limit on money (12). With
--artifact, a tree of Sailor's artifact, its own formulas judge all plans (engine sailor-artifact), on its profiles,
links and prices; without a tree there that is skipped. With --differences only the plans of the artifact's own adapters
that are faster than those of our versions, side by side with ours. With --into all cases with oracles are written to
strategies.md, and with --artifact also strategies_artifact.md and strategies_differences.md. CPU seconds are those of
this process. Exits with 1 where a published planner's plan is more than 0.2 % better than ours, or a plan of an adapter
is not the known one.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on

from sailor_cloud import catalog, compare, workload
from sailor_cloud import network as networks
from sailor_cloud.clock import SystemClock
from sailor_cloud.errors import RequestError
from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.job import Goal, Job
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision
from sailor_cloud.model.plan import Plan
from sailor_cloud.planner.search import problem_of
from sailor_cloud.planner.strategies import Comparison, Contender, strategy_named
from sailor_cloud.planner.strategies.cluster import Cluster, clusters_of, even_cuts
from sailor_cloud.planner.strategies.driver import carried_out
from sailor_cloud.planner.strategies.grid import by_stage, plan_of
from sailor_cloud.planner.strategies.strategy import Strategy
from sailor_cloud.report.comparison.planners import as_markdown
from sailor_cloud.simulator import engine_named, evaluate

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A case in which an adapter of the artifact reaches more iterations/s than our version of the planner.

    `grid` is its plan: stages, replicas and microbatch size, without tensor parallelism. None: the best plan of the
    planner's space by the artifact's formulas, by which that adapter ranks.
    """

    case: str
    planner: str
    rate: float
    grid: tuple[int, int, int] | None


# The artifact's own figures (SOSP'25, commit cf2c8e3, run in 2026-11). Of all grids with even layers within the limits
# of the adapters these alone have the figures, in iterations/s and in USD.
DIFFERENCES = (
    Difference(case="fig7-1x32-a100", planner="amp", rate=0.1166, grid=(1, 32, 1)),
    Difference(case="fig7-1x80-a100", planner="amp", rate=0.2050, grid=(2, 32, 1)),
    Difference(case="fig7-1x80-a100", planner="dtfm", rate=0.2381, grid=(2, 40, 1)),
    Difference(case="fig10-5x80-a100", planner="atlas", rate=0.7280, grid=None),
)
READ = (
    "Seconds of one iteration are those of the stage that computes longest. Its own estimate is what the cost model of "
    "the planner says of the grid. By that it chose ours."
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
    parser.add_argument("--differences", action="store_true", help="plans of its adapters side by side with ours")
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--into", type=Path, metavar="FOLDER", help="write all results files there")
    given = parser.parse_args()
    if given.differences and given.artifact is None:
        parser.error("--differences needs --artifact")
    with tempfile.TemporaryDirectory() as folder:
        try:
            options = {} if given.artifact is None else imported(given.artifact, Path(folder))
            if given.into is not None:
                return all_into(given, options)
            return side_by_side(given.output, options) if given.differences else compared(given, options)
        except RequestError as error:
            print(f"SKIPPED: {error}")
            return 0


def imported(artifact: Path, folder: Path) -> dict[str, Any]:
    """Import an artifact; return the options of a comparison by its formulas."""
    import_artifact(artifact, folder, precision=Precision.FP32, as_of=datetime.now(UTC).date())
    names = {"profiles": "compute_profiles", "network": "bandwidth_profiles", "pricing": "pricing"}
    return {"engine": "sailor-artifact", **{option: folder / name for option, name in names.items()}}


def all_into(given: argparse.Namespace, options: dict[str, Any]) -> int:
    """Write all results files to a folder: by our simulator, and by the artifact's formulas where it is given."""
    given.oracle, given.output = True, given.into / "strategies.md"
    failed = compared(given, {})
    if options:
        given.output = given.into / "strategies_artifact.md"
        failed |= compared(given, options)
        failed |= side_by_side(given.into / "strategies_differences.md", options)
    return failed


def compared(given: argparse.Namespace, options: dict[str, Any]) -> int:
    parts = ["# Published planners and ours\n", measured_on()]
    beaten, found, goals = [], [], []
    for job in [job for case in CASES if given.case in (job := job_of(*case)).name][: given.cases]:
        found.append(compare(job, oracle=given.oracle, **options))
        goals.append(job.goal)
        parts.append(f"## {job.name}\n\n{as_markdown(found[-1])}")
        beaten += better(found[-1], job.goal)
        print(parts[-1], flush=True)
    parts.insert(2, best(found, goals) + "\n" + summary(found))
    parts.append("## Planners that beat ours\n\n" + ("\n".join(f"- {line}" for line in beaten) or "None.") + "\n")
    print(parts[2], parts[-1], sep="\n")
    if given.output:
        given.output.write_text("\n".join(parts))
    return 1 if beaten else 0


def figure(of: Contender, goal: Goal) -> float:
    """Return what a plan is compared by; less is better."""
    return (of.usd_per_iteration if goal is Goal.MINIMIZE_COST else of.iteration_s) or math.inf


def better(found: Comparison, goal: Goal) -> list[str]:
    """Return the planners whose plans are better than ours by the job's goal."""
    ours, *others = found.contenders
    return [
        f"{found.job}: {other.name}{', oracle' * other.oracle} {figure(ours, goal) / figure(other, goal) - 1.0:+.1%}"
        for other in others
        if figure(other, goal) < figure(ours, goal) * (1.0 - TOLERANCE)
    ]


def best(found: Sequence[Comparison], goals: Sequence[Goal]) -> str:
    """Return a table of our plan, the best published planner by the job's goal, and the best oracle."""
    lines = [
        "## Iterations/s (USD/iteration) of ours and of the best others by the job's goal\n",
        "| case | sailor-cloud | best published planner | behind | best oracle | behind |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for of, goal in zip(found, goals, strict=True):
        ours, *others = of.contenders
        cells = [of.job, shown(ours)]
        for oracle in (False, True):
            each = min((c for c in others if c.oracle is oracle), key=lambda c: figure(c, goal), default=None)
            if each is None or each.iteration_s is None:
                cells += ["-", "-"]
            else:
                behind = 1.0 - figure(ours, goal) / figure(each, goal)
                cells += [f"{shown(each)} {each.name}", f"{behind:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def shown(of: Contender | None) -> str:
    if of is None or of.iteration_s is None:
        return "-"
    return f"{1.0 / of.iteration_s:.4f} ({of.usd_per_iteration or 0.0:.3f})"


def summary(found: Sequence[Comparison]) -> str:
    """Return two tables of all planners by case: iterations/s with USD per iteration, and CPU seconds of the search."""
    names = sorted(
        {(each.name, each.oracle) for of in found for each in of.contenders}, key=lambda key: (key[1], key[0])
    )
    head = f"| planner | {' | '.join(of.job for of in found)} |\n| --- |{' ---: |' * len(found)}"
    tables = {"Iterations/s (USD/iteration)": [head], "CPU seconds of the search": [head]}
    for name, oracle in names:
        rows = [next((c for c in of.contenders if (c.name, c.oracle) == (name, oracle)), None) for of in found]
        spent = ["-" if c is None else f"{c.seconds:.1f}" for c in rows]
        for cells, lines in zip((list(map(shown, rows)), spent), tables.values(), strict=True):
            lines.append(f"| {name}{', oracle' * oracle} | {' | '.join(cells)} |")
    return "\n".join(f"## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in tables.items())


def side_by_side(output: Path | None, options: dict[str, Any]) -> int:
    """Write the plans of the artifact's adapters beside ours, by its formulas and by our simulator."""
    parts = ["# Plans of the artifact's adapters and of our versions, side by side\n", measured_on(), READ]
    wrong = []
    for difference in DIFFERENCES:
        (job,) = [job for case in CASES if (job := job_of(*case)).name == difference.case]
        strategy = strategy_named(difference.planner)
        (theirs,) = clusters_for(job, **options)
        same = {machine.devices for machine in theirs.machines}
        ours = next(each for each in clusters_for(job) if {machine.devices for machine in each.machines} == same)
        own, oracle = (outcome.plan for outcome in carried_out(strategy, theirs))
        known = oracle if difference.grid is None else grid_of(theirs, *difference.grid)
        assert own is not None
        assert known is not None
        plans = {"ours": own, "the adapter's": known}
        rate = 1.0 / evaluate(known, theirs.scenario).prediction.iteration_s_replay
        if abs(rate - difference.rate) > 0.0001:
            wrong.append(f"{difference.planner} on {difference.case}: {rate:.4f} instead of {difference.rate:.4f}")
        parts.append(f"## {strategy.name}, {job.name}\n\n{shapes(strategy, theirs, plans)}")
        for judge, cluster in (("the artifact's formulas", theirs), ("our simulator", ours)):
            parts.append(f"Seconds by {judge}:\n\n{seconds(cluster, plans)}")
        print(*parts[-3:], sep="\n\n", flush=True)
    print(*wrong, sep="\n")
    if output:
        output.write_text("\n\n".join(part.rstrip() for part in parts) + "\n")
    return 1 if wrong else 0


def clusters_for(
    job: Job,
    *,
    engine: str = "sailor",
    profiles: Path | None = None,
    network: Path | None = None,
    pricing: Path | None = None,
) -> tuple[Cluster, ...]:
    """Return what strategies get of a job, of one instance type each; options as of `compare`."""
    space = problem_of(
        job,
        catalog=catalog.load(pricing=pricing),
        network=networks.load(profiles=network, pricing=pricing),
        profiles=workload.profiles.load(profiles=profiles),
        clock=SystemClock(),
        decoder=workload.job_decoder(job, base=None),
        engine=engine_named(engine, profiles=profiles),
    ).space
    return clusters_of(space.scenario, space.candidates)


def grid_of(cluster: Cluster, stages: int, replicas: int, size: int) -> Plan:
    return plan_of(cluster, by_stage(cluster.slots(1), stages, replicas), even_cuts(cluster.layers, stages), size)


def shapes(strategy: Strategy, cluster: Cluster, plans: dict[str, Plan]) -> str:
    """Return a table of plans with what the strategy's own cost model says of each."""
    lines = [
        "| plan | stages x replicas x tp | microbatch | layers | devices | its own estimate, iterations/s |",
        "| --- | --- | ---: | --- | ---: | ---: |",
    ]
    for name, plan in plans.items():
        first, held = plan.pipelines[0], {node.id for node in plan.nodes}
        tp = len(first.stages[0].devices)
        layers = ", ".join(str(stage.end_layer - stage.first_layer) for stage in first.stages)
        part = cluster.part(machine for machine in cluster.machines if machine.name in held)
        alike = [each.estimate_s for each in strategy.propose(part) if outline(each.build()) == outline(plan)]
        grid = f"{len(first.stages)} x {len(plan.pipelines)} x {tp}"
        used = sum(len(stage.devices) for pipeline in plan.pipelines for stage in pipeline.stages)
        lines.append(f"| {name} | {grid} | {first.microbatch_size} | {layers} | {used} | {1.0 / min(alike):.4f} |")
    return "\n".join(lines)


def outline(plan: Plan) -> tuple[int, int, int, int]:
    """Return replicas, stages, tensor parallelism and microbatch size."""
    pipeline = plan.pipelines[0]
    return len(plan.pipelines), len(pipeline.stages), len(pipeline.stages[0].devices), pipeline.microbatch_size


def seconds(cluster: Cluster, plans: dict[str, Plan]) -> str:
    """Return a table of where an iteration's seconds go on the busiest stage; the four add up."""
    lines = [
        "| plan | iterations/s | USD/iteration | iteration | compute | transfers | bubble | all-reduce |",
        f"| --- |{' ---: |' * 7}",
    ]
    offers = {machine.name: machine.pool.offer.id for machine in cluster.machines}
    for name, plan in plans.items():
        there = replace(plan, nodes=tuple(replace(node, offer=offers[node.id]) for node in plan.nodes))
        found = evaluate(there, cluster.scenario)
        whole, waits = found.prediction.iteration_s_replay, found.prediction.waits
        parts = (whole, waits.compute_s, waits.transfer_s, waits.bubble_s, waits.sync_s)
        figures = " | ".join(f"{value:.3f}" for value in parts)
        lines.append(f"| {name} | {1.0 / whole:.4f} | {found.cost.usd_per_iteration:.3f} | {figures} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
