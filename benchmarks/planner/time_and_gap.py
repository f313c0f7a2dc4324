"""Measures `sailor-cloud plan JOB --json`, whole process, cold: seconds, memory, status and gap per job.

Usage: python benchmarks/planner/time_and_gap.py [--repeat 3] [-o FILE]. Wall time is the least of the repeats, since
other work on the machine only adds to it; CPU time is of the same run.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

_COLUMNS = "| job | wall s | CPU s | peak MiB | status | value | bound | gap |\n|---|---|---|---|---|---|---|---|"
ROOT = Path(__file__).parents[2]
AS_OF = "2026-11-21"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An example with changes: fields by their path, as in `constraints.budget_usd`."""

    name: str
    example: str
    changes: dict[str, Any]


CASES = (
    Case(name="quickstart", example="quickstart.yaml", changes={}),
    Case(
        name="quickstart, two fast per zone",
        example="quickstart.yaml",
        changes={"resources.0.accelerators": {"CPU-fast": 2, "CPU-slow": 1}},
    ),
    Case(name="quickstart, deadline of 20 s", example="quickstart.yaml", changes={"constraints.deadline": "20s"}),
    Case(name="2 zones x (8 A100 + 32 V100), 120 USD", example="gcp-a100-v100.yaml", changes={}),
    Case(name="same, minimize-cost", example="gcp-a100-v100.yaml", changes={"goal": "minimize-cost"}),
    Case(name="same, budget of 100 USD", example="gcp-a100-v100.yaml", changes={"constraints.budget_usd": 100}),
    Case(name="same, bf16", example="gcp-a100-v100.yaml", changes={"training.precision": "bf16"}),
    Case(
        name="1 zone x 128 A100",
        example="gcp-a100-v100.yaml",
        changes={"resources.0.zones": ["us-central1-a"], "resources.0.accelerators": {"A100-40": 128}},
    ),
    Case(
        name="2 zones x (128 A100 + 128 V100)",
        example="gcp-a100-v100.yaml",
        changes={"resources.0.accelerators": {"A100-40": 128, "V100-16": 128}},
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    wall_s: float
    cpu_s: float
    peak_mib: float
    document: dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    rows = [_row(case, min((measure(case) for _ in range(chosen.repeat)), key=lambda m: m.wall_s)) for case in CASES]
    text = "\n".join([header(), _COLUMNS, *rows, ""])
    if chosen.output is None:
        sys.stdout.write(text)
    else:
        chosen.output.write_text(text)


def measure(case: Case, *options: str) -> Measured:
    """Plan one case in a process of its own."""
    job = yaml.safe_load((ROOT / "examples" / case.example).read_text())
    for path, value in case.changes.items():
        *parents, last = path.split(".")
        inner = job
        for parent in parents:
            inner = inner[int(parent) if parent.isdigit() else parent]
        inner[last] = value
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(job))
        program = str(Path(sys.executable).parent / "sailor-cloud")
        command = [program, "plan", str(file), "--json", "--as-of", AS_OF, *options]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        output = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - started
    return Measured(
        wall_s=wall_s,
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        document=json.loads(output),
    )


def header() -> str:
    """Return the machine, the commit and the command of a measurement."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    when = datetime.now(UTC).date().isoformat()
    command = " ".join(["python", *sys.argv])
    return (
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}, {when}. "
        f"Commit: {commit}. Command: `{command}`.\n"
    )


def _row(case: Case, measured: Measured) -> str:
    document = measured.document
    objective = document["objective"]
    if objective is None:
        reason = document["infeasibility"]
        shown = f"{reason['constraint']} needs {reason['needed']:g} {reason['unit']} | – | –"
    else:
        shown = f"{objective['value']:.4g} {objective['unit']} | {document['bound']:.4g} | "
        shown += f"{100 * document['optimality_gap']:.1f} %"
    return (
        f"| {case.name} | {measured.wall_s:.1f} | {measured.cpu_s:.1f} | {measured.peak_mib:.0f} | "
        f"{document['status']} | {shown} |"
    )


if __name__ == "__main__":
    main()
