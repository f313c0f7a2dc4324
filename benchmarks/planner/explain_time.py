"""Measures `plan` and `explain` on the same jobs, whole processes, cold: seconds, and their ratio.

Usage: python benchmarks/planner/explain_time.py [-o FILE]. Jobs: the examples for GCP, for seven kinds of GPU and for
Llama over two clouds, and the preset for AWS. CPU time is of all processes together; the scaled one is divided by the
CPU seconds that `reference_work.py` takes, the mean of a run before and a run after.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from reference_work import reference_cpu_s
from time_and_gap import ROOT, timed

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

PROGRAM = str(Path(sys.executable).parent / "sailor-cloud")
EXAMPLES = ("gcp-a100-v100.yaml", "seven-kinds.yaml", "llama3-8b-two-clouds.yaml")
_HEADS = (
    "job",
    "wall s of plan",
    "wall s of explain",
    "scaled CPU s of plan",
    "scaled CPU s of explain",
    "ratio",
    "aim",
)
# Of `explain`: scaled CPU seconds, and the ratio to `plan`.
AIM_S, AIM_RATIO = 10.0, 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    rows = [f"| {' | '.join(_HEADS)} |", "|---" * len(_HEADS) + "|"]
    with tempfile.TemporaryDirectory() as folder:
        _measured("explain", ROOT / "examples" / "quickstart.yaml", compiled=folder)
        for job in jobs(Path(folder)):
            rows.append(_row(job, compiled=folder))
            print(rows[-1], file=sys.stderr, flush=True)
    write("\n".join([measured_on(), *rows, ""]), chosen.output)


def jobs(folder: Path) -> tuple[Path, ...]:
    """Return the examples, and the preset for AWS, which is written to a folder."""
    preset = folder / "aws.yaml"
    subprocess.run([PROGRAM, "init", "--preset", "aws", "-o", str(preset)], check=True, capture_output=True)
    return (*(ROOT / "examples" / name for name in EXAMPLES), preset)


def _row(job: Path, *, compiled: str) -> str:
    reference_s = reference_cpu_s()
    (plan_s, plan_cpu), (explain_s, explain_cpu) = (
        _measured(name, job, compiled=compiled) for name in ("plan", "explain")
    )
    reference_s = (reference_s + reference_cpu_s()) / 2.0
    scaled_s, ratio = explain_cpu / reference_s, explain_cpu / plan_cpu
    figures = (plan_s, explain_s, plan_cpu / reference_s, scaled_s, ratio)
    missed = "" if scaled_s <= AIM_S and ratio <= AIM_RATIO else ", missed"
    aim = f"{AIM_S:g} s and {AIM_RATIO:g} x plan{missed}"
    return f"| {job.stem} | {' | '.join(f'{figure:.1f}' for figure in figures)} | {aim} |"


def _measured(command: str, job: Path, *, compiled: str) -> tuple[float, float]:
    """Return the wall and CPU seconds of a command; `compiled` is a folder for compiled modules."""
    wall_s, usage, output = timed(command, str(job), compiled=compiled)
    if not output:
        raise SystemExit(f"sailor-cloud {command} {job} failed")
    return wall_s, usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
