"""Solves the artifact's cases in the space of even batches, by the artifact's own formulas, each in a cold process.

Usage: python benchmarks/planner/even_batches.py ARTIFACT [--case TEXT] [--wider] [--nodes N] [--plans DIR] [-o FILE].
ARTIFACT is the folder with the data files of Sailor's artifact; without it the benchmark is skipped. Plans are found by
the product's exact search (sailor_cloud.planner.even) over costs made of the artifact's formulas, and scored by those
formulas. With --wider, plans whose replicas of a stage differ in GPU, tp or zone are searched and bounded, too.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sailor_cases import CASES, Case
from sailor_even import Placed, SailorEven, answer
from sailor_formulas import Artifact
from sailor_links import Links
from sailor_mixed import differing

from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.offer import Precision
from sailor_cloud.planner.even.engine import GAP

ROOT = Path(__file__).parents[2]
MODEL, BATCH = "OPT-350", 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("--plans", type=Path, help="folder for the plans in the artifact's form")
    parser.add_argument("--nodes", type=int, default=200, help="searches of a microbatch size and number of replicas")
    parser.add_argument("--wider", action="store_true", help="bound plans whose replicas of a stage differ, too")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--differing", type=float, help=argparse.SUPPRESS)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    if not (chosen.artifact / "simulator_profiles.json").is_file():
        sys.stdout.write(f"SKIPPED: {chosen.artifact} does not hold the artifact's data files\n")
        return
    if chosen.one is not None:
        case = next(case for case in CASES if case.name == chosen.one)
        sys.stdout.write(json.dumps(one(case, chosen)))
        return
    check_import(chosen.artifact)
    rows = []
    for case in CASES:
        if chosen.case in case.name:
            measured = in_a_process(case, chosen.artifact, chosen.nodes)
            if chosen.wider:
                known = "inf" if measured["value"] is None else str(measured["value"])
                measured["differing"] = in_a_process(case, chosen.artifact, chosen.nodes, known)
            rows.append(row(case, measured))
            sys.stderr.write(rows[-1] + "\n")
            if chosen.plans is not None and measured["plan"] is not None:
                chosen.plans.mkdir(parents=True, exist_ok=True)
                name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
                (chosen.plans / f"{name}.json").write_text(json.dumps(measured["plan"]))
    text = "\n".join([header(), *rows, ""])
    if chosen.output is None:
        sys.stdout.write(text)
    else:
        chosen.output.write_text(text)


def check_import(artifact: Path) -> None:
    """Import the artifact as its users would; the formulas read the same files."""
    with tempfile.TemporaryDirectory() as folder:
        day = datetime.now(UTC).date()
        imported = import_artifact(artifact, Path(folder), precision=Precision.FP32, as_of=day)
    named = {gpu for case in CASES for gpu, _ in case.devices}
    assert named <= set(imported.accelerators), named - set(imported.accelerators)
    assert not named & set(imported.unpriced), named & set(imported.unpriced)


def solved(case: Case, artifact: Path, nodes: int) -> dict[str, Any]:
    """Solve one case."""
    started = time.perf_counter()
    outcome, problems = answer(Artifact(artifact, MODEL, BATCH), case, gap=GAP, most_nodes=nodes)
    found = {
        "search_s": time.perf_counter() - started,
        "nodes": outcome.nodes,
        "bound": outcome.bound,
        "value": None,
        "plan": None,
    }
    if not outcome.found:
        return found
    best = outcome.found[0]
    assert isinstance(best.placed, Placed)
    kinds = problems[best.part].kinds(best.size)
    chain = zip(best.chain.kinds, best.chain.cut[:-1], best.chain.cut[1:], strict=True)
    stages = " ".join(f"{end - first}x{kinds[k].gpu.split('-')[0]}.tp{kinds[k].tp}" for k, first, end in chain)
    score = best.placed.score
    over = [place for place, count in score.devices.items() if count > case.devices.get(place, 0)]
    assert not over, over
    assert not score.problems, score.problems
    return found | {
        "value": best.value,
        "iteration_s": score.iteration_s,
        "usd": score.usd,
        "plan": best.placed.plan,
        "shape": f"mbs{best.size} dp{best.replicas}: {stages}",
    }


def one(case: Case, chosen: argparse.Namespace) -> dict[str, Any]:
    """Solve a case, or search and bound plans of it whose replicas of a stage differ in GPU, tp or zone."""
    if chosen.differing is None:
        return solved(case, chosen.artifact, chosen.nodes)
    even = SailorEven(Links(Artifact(chosen.artifact, MODEL, BATCH)), case)
    found = differing(even, gap=GAP, known=chosen.differing, cuts=[])
    better = None if not found.found else found.found[0]
    plan = None if better is None else better.placed
    assert plan is None or isinstance(plan, Placed)
    over = [] if plan is None else [p for p, n in plan.score.devices.items() if n > case.devices.get(p, 0)]
    assert not over, over
    return {
        "bound": found.bound,
        "searches": found.searches,
        "value": None if better is None else better.value,
        "shape": None if better is None else str(better.mix),
    }


def in_a_process(case: Case, artifact: Path, nodes: int, differing: str | None = None) -> dict[str, Any]:
    """Solve one case in a process of its own; adds its seconds, CPU seconds and peak MiB.

    differing: the value of a plan, to bound those whose replicas of a stage differ.
    """
    command = [sys.executable, __file__, str(artifact), "--one", case.name, "--nodes", str(nodes)]
    command += [] if differing is None else ["--differing", differing]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    output = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    found: dict[str, Any] = json.loads(output)
    return found | {
        "wall_s": time.perf_counter() - started,
        "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_mib": usage.ru_maxrss / 1024,
    }


def header() -> str:
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    load = os.getloadavg()[0]
    return (
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}, "
        f"{datetime.now(UTC).date().isoformat()}, load average at the end {load:.1f}. Commit: {commit}.\n\n"
        "| case | Sailor | blind search | found | USD/iteration | gap | gap with differing replicas (CPU s) | wall s "
        "| CPU s | peak MiB | plan |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|"
    )


def row(case: Case, found: dict[str, Any]) -> str:
    known = [f"{value:.4f}" if value is not None else "–" for value in (case.sailor, case.blind)]
    cost = f"{found['wall_s']:.1f} | {found['cpu_s']:.1f} | {found['peak_mib']:.0f}"
    if found["value"] is None:
        proof = "no plan, proven" if found["bound"] == float("inf") else f"none found, bound {found['bound']:.4f}"
        return f"| {case.name} | {known[0]} | {known[1]} | {proof} | – | – | {wider(found)} | {cost} | – |"
    shown = found["usd"] if case.cheapest else 1.0 / found["iteration_s"]
    unit = " USD" if case.cheapest else ""
    gap = 100.0 * (1.0 - found["bound"] / found["value"])
    return (
        f"| {case.name} | {known[0]} | {known[1]} | {shown:.4f}{unit} | {found['usd']:.4f} | {gap:.2f} % | "
        f"{wider(found)} | {cost} | {found['shape']} |"
    )


def wider(found: dict[str, Any]) -> str:
    """Return the gap of plans whose replicas of a stage differ, a better one of them, and the CPU seconds."""
    if "differing" not in found:
        return "–"
    wide = found["differing"]
    least, spent = wide["bound"], f"({wide['cpu_s']:.1f})"
    value = wide["value"] if wide["value"] is not None else found["value"]
    if value is not None:
        better = "" if wide["value"] is None else f", found {value:.4f} ({wide['shape']})"
        return f"{100.0 * (1.0 - least / value):.2f} %{better} {spent}"
    return f"no plan, proven {spent}" if least == float("inf") else f"undecided from {least:.4f} {spent}"


if __name__ == "__main__":
    main()
