"""Measures `sailor-cloud plan JOB --json`, whole process, cold: seconds, memory, status and gap per job.

Usage: python benchmarks/planner/time_and_gap.py [--repeat 3] [--case NAME] [--prove] [-o FILE]. Wall time is the
least of the repeats, since other work on the machine only adds to it; CPU time is of the same run, its processes
together. The scaled one is divided by the CPU seconds that `reference_work.py` takes, the mean of a run before and a
run after. Modules are compiled before, as pip does it. Aims are those of the scaled CPU time, and with `--prove` those
of the gap; then a column names the branch that the bound comes from.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from reference_work import reference_cpu_s

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

_HEADS = ("job", "wall s", "CPU s", "scaled CPU s", "peak MiB", "status", "value", "bound", "gap", "aim")
ROOT = Path(__file__).parents[2]
# From so many zones on the gap has another aim.
MANY_ZONES = 20
AS_OF = "2026-11-21"
# Those of Google Cloud in which most of the five accelerators are sold.
ZONES = [
    *("europe-west4-a", "us-central1-a", "us-central1-c", "europe-west4-b", "us-central1-b"),
    *("us-east1-b", "us-west1-b", "asia-southeast1-c", "asia-east1-c", "europe-west4-c"),
    *("us-east1-c", "us-west1-a", "asia-southeast1-a", "asia-southeast1-b", "us-central1-f"),
    *("asia-northeast1-a", "asia-northeast1-c", "asia-northeast3-b", "us-east4-c", "asia-east1-a"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An example with changes: fields by their path, as in `constraints.budget_usd`. `aim_s`: of scaled CPU time."""

    name: str
    example: str
    changes: dict[str, Any]
    aim_s: float | None = None


CASES = (
    Case(name="quickstart", example="quickstart.yaml", changes={}, aim_s=1.0),
    Case(
        name="quickstart, two fast per zone",
        example="quickstart.yaml",
        changes={"resources.0.accelerators": {"CPU-fast": 2, "CPU-slow": 1}},
    ),
    Case(name="quickstart, deadline of 20 s", example="quickstart.yaml", changes={"constraints.deadline": "20s"}),
    Case(name="2 zones x (8 A100 + 32 V100), 120 USD", example="gcp-a100-v100.yaml", changes={}, aim_s=4.0),
    Case(name="same, minimize-cost", example="gcp-a100-v100.yaml", changes={"goal": "minimize-cost"}),
    Case(name="same, budget of 100 USD", example="gcp-a100-v100.yaml", changes={"constraints.budget_usd": 100}),
    Case(name="same, bf16", example="gcp-a100-v100.yaml", changes={"training.precision": "bf16"}),
    *(
        Case(
            name=f"1 zone x {devices} A100",
            example="gcp-a100-v100.yaml",
            changes={"resources.0.zones": ["us-central1-a"], "resources.0.accelerators": {"A100-40": devices}},
        )
        for devices in (16, 32, 128)
    ),
    Case(
        name="1 zone x (8 A100 + 32 V100)",
        example="gcp-a100-v100.yaml",
        changes={"resources.0.zones": ["us-central1-a"], "constraints": {}},
    ),
    Case(
        name="2 zones x (128 A100 + 128 V100)",
        example="gcp-a100-v100.yaml",
        changes={"resources.0.accelerators": {"A100-40": 128, "V100-16": 128}},
    ),
    Case(
        name="two nodes of opt-1.3b",
        example="gcp-a100-v100.yaml",
        changes={
            "model": {"preset": "opt-1.3b"},
            "training.global_batch_size": 64,
            "constraints": {},
            "resources.0.zones": ["us-central1-a"],
            "resources.0.accelerators": {"A100-40": 16},
            "resources.0.instance_types": ["a2-highgpu-8g"],
        },
    ),
    Case(name="seven kinds over two clouds", example="seven-kinds.yaml", changes={}, aim_s=10.0),
    Case(
        name="opt-30b, 20 zones, five kinds, 4,000 devices",
        example="gcp-a100-v100.yaml",
        changes={
            "model": {"preset": "opt-30b"},
            "training.global_batch_size": 1024,
            "constraints": {},
            "resources.0.zones": ZONES,
            "resources.0.markets": ["spot", "on-demand"],
            "resources.0.accelerators": dict.fromkeys(("A100-40", "A100-80", "V100-16", "T4-16", "L4-24"), 40),
        },
        aim_s=30.0,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run. `reference_s`: CPU seconds of the reference workload beside it, if that was measured."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    document: dict[str, Any]
    reference_s: float | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--prove", action="store_true", help="`plan --prove`: up to 300 CPU seconds more for its bound")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    chosen = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as compiled:
        measure(CASES[0], compiled=compiled)
        for case in CASES:
            if chosen.case in case.name:
                options = ["--prove"] * chosen.prove
                each = [scaled(case, *options, compiled=compiled) for _ in range(chosen.repeat)]
                best = min(each, key=lambda m: m.wall_s)
                rows.append(_row(case, best, prove=chosen.prove))
                print(rows[-1], file=sys.stderr, flush=True)
    heads = [*_HEADS, *(["branch of the bound"] * chosen.prove)]
    write("\n".join([measured_on(), f"| {' | '.join(heads)} |", "|---" * len(heads) + "|", *rows, ""]), chosen.output)


def changed(case: Case) -> dict[str, Any]:
    """Return the job of a case."""
    job: dict[str, Any] = yaml.safe_load((ROOT / "examples" / case.example).read_text())
    for path, value in case.changes.items():
        *parents, last = path.split(".")
        inner: Any = job
        for parent in parents:
            inner = inner[int(parent) if parent.isdigit() else parent]
        inner[last] = value
    return job


def measure(case: Case, *options: str, compiled: str) -> Measured:
    """Plan one case in a process of its own; `compiled` is a folder for compiled modules."""
    job = changed(case)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        wall_s, usage, output = timed("plan", str(file), "--json", *options, compiled=compiled)
    return Measured(
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        document=json.loads(output),
    )


def scaled(case: Case, *options: str, compiled: str) -> Measured:
    """Plan one case between two runs of the reference workload."""
    before_s = reference_cpu_s()
    measured = measure(case, *options, compiled=compiled)
    return replace(measured, reference_s=(before_s + reference_cpu_s()) / 2.0)


def gap_aim(job: dict[str, Any]) -> float | None:
    """Return the gap that `--prove` aims at for a job, by its zones, accelerators and money; None if there is none."""
    resources = job["resources"]
    zones = {zone for entry in resources for zone in entry["zones"]}
    accelerators = {name for entry in resources for name in entry["accelerators"]}
    if any(entry["provider"] == "local" for entry in resources):
        return None
    if len(zones) == 1:
        return {1: 0.02, 2: 0.06}.get(len(accelerators))
    if len(zones) >= MANY_ZONES:
        return 0.15
    return 0.1 if (job.get("constraints") or {}).get("budget_usd") else 0.08


def timed(*arguments: str, compiled: str) -> tuple[float, resource.struct_rusage, bytes]:
    """Run a command as of one day in a process of its own; return wall seconds, resources used, and stdout."""
    command = [str(Path(sys.executable).parent / "sailor-cloud"), *arguments, "--as-of", AS_OF]
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment)
    assert process.stdout is not None
    output = process.stdout.read()
    _, _, usage = os.wait4(process.pid, 0)
    return time.perf_counter() - started, usage, output


def _row(case: Case, measured: Measured, *, prove: bool) -> str:
    document, gap = measured.document, measured.document["optimality_gap"]
    objective = document["objective"]
    if objective is None:
        reason = document["infeasibility"]
        figures = [f"{reason['constraint']} needs {reason['needed']:g} {reason['unit']}", "–", "–"]
    else:
        figures = [f"{objective['value']:.4g} {objective['unit']}"]
        figures += ["–", "–"] if gap is None else [f"{document['bound']:.4g}", f"{100 * gap:.1f} %"]
    assert measured.reference_s is not None, "the reference workload runs beside each case"
    scaled_s = measured.cpu_s / measured.reference_s
    if prove:
        aim = None if objective is None else gap_aim(changed(case))
        shown = _aim(aim, gap, factor=100.0, unit="%")
    else:
        shown = _aim(case.aim_s, scaled_s, factor=1.0, unit="s")
    seconds = [f"{figure:.1f}" for figure in (measured.wall_s, measured.cpu_s, scaled_s)]
    cells = [case.name, *seconds, f"{measured.peak_mib:.0f}", document["status"], *figures, shown]
    cells += [document["search"].get("weakest_branch") or "–"] * prove
    return f"| {' | '.join(cells)} |"


def _aim(aim: float | None, reached: float | None, *, factor: float, unit: str) -> str:
    if aim is None:
        return "–"
    shown = f"{factor * aim:g} {unit}"
    return shown if reached is not None and reached <= aim else f"{shown}, missed"


if __name__ == "__main__":
    main()
