"""Measures how the time of a search grows with devices, zones, accelerators and layers; draws it as SVG.

Usage: python benchmarks/planner/scaling.py [-o FILE.md] [--svg FILE.svg]. Every case is a process of its own, cold.
The zones and types of instances are those of the shipped GCP prices.
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

from sailor_cloud import catalog
from sailor_cloud.model.offer import Provider

ROOT = Path(__file__).parents[2]
AS_OF = "2026-11-21"
# The largest case of all, and the cases around it, one thing changed at a time.
TYPES = ("A100-40", "A100-80", "V100-16", "T4-16", "L4-24")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    axis: str
    devices: int
    zones: int
    types: int
    preset: str


SMALL_MODEL, LARGE_MODEL = "sailor-opt-350", "opt-30b"

CASES = (
    Case(axis="devices", devices=64, zones=4, types=2, preset=SMALL_MODEL),
    Case(axis="devices", devices=256, zones=4, types=2, preset=SMALL_MODEL),
    Case(axis="devices", devices=1024, zones=4, types=2, preset=SMALL_MODEL),
    Case(axis="zones", devices=256, zones=1, types=2, preset=SMALL_MODEL),
    Case(axis="zones", devices=256, zones=8, types=2, preset=SMALL_MODEL),
    Case(axis="zones", devices=256, zones=20, types=2, preset=SMALL_MODEL),
    Case(axis="types", devices=256, zones=4, types=1, preset=SMALL_MODEL),
    Case(axis="types", devices=256, zones=4, types=5, preset=SMALL_MODEL),
    Case(axis="layers", devices=256, zones=4, types=2, preset=LARGE_MODEL),
    Case(axis="all", devices=4096, zones=20, types=5, preset=LARGE_MODEL),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--svg", type=Path)
    chosen = parser.parse_args()
    measured = [(case, *_measure(case)) for case in CASES]
    lines = [_header(), *(_row(case, seconds, cpu, document) for case, seconds, cpu, document in measured), ""]
    text = "\n".join(lines)
    if chosen.output:
        chosen.output.write_text(text)
    else:
        sys.stdout.write(text)
    if chosen.svg:
        chosen.svg.write_text(_svg([(case, cpu) for case, _, cpu, _ in measured]))


def _job(case: Case) -> dict[str, Any]:
    prices = catalog.load()
    zones: dict[str, int] = {}
    for offer in prices.offers(provider=Provider("gcp")):
        if offer.accelerator in TYPES[: case.types]:
            zones[offer.zone] = zones.get(offer.zone, 0) + 1
    names = sorted(zones, key=lambda zone: (-zones[zone], zone))[: case.zones]
    each = max(8, case.devices // (len(names) * case.types))
    return {
        "name": "scaling",
        "model": {"preset": case.preset},
        "training": {"global_batch_size": 1024, "sequence_length": 2048, "steps": 1000, "precision": "fp16"},
        "goal": "maximize-throughput",
        "resources": [
            {
                "provider": "gcp",
                "zones": names,
                "markets": ["spot", "on-demand"],
                "accelerators": dict.fromkeys(TYPES[: case.types], each),
            }
        ],
    }


def _measure(case: Case) -> tuple[float, float, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "job.yaml"
        file.write_text(yaml.safe_dump(_job(case)))
        program = str(Path(sys.executable).parent / "sailor-cloud")
        command = [program, "plan", str(file), "--json", "--as-of", AS_OF]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        output = process.stdout.read()
        _, _, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    return seconds, usage.ru_utime + usage.ru_stime, json.loads(output)


def _header() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    when = datetime.now(UTC).date().isoformat()
    return (
        "# Planner: how time grows\n\n"
        f"Machine: {platform.machine()}, {os.cpu_count()} cores, CPython {platform.python_version()}, {when}. "
        f"Commit: {commit}. Command: `{' '.join(['python', *sys.argv])}`. Whole process, cold; other work on the "
        "machine adds to wall time, and somewhat to CPU time.\n\n"
        "| changed | devices | zones | types | model | wall s | CPU s | status | value | gap |\n"
        "|---|---|---|---|---|---|---|---|---|---|"
    )


def _row(case: Case, seconds: float, cpu: float, document: dict[str, Any]) -> str:
    objective, gap = document["objective"], document["optimality_gap"]
    value = document["infeasibility"]["constraint"] if objective is None else f"{objective['value']:.4g}"
    shown = "–" if gap is None else f"{100 * gap:.0f} %"
    return (
        f"| {case.axis} | {case.devices} | {case.zones} | {case.types} | {case.preset} | {seconds:.1f} | {cpu:.1f} | "
        f"{document['status']} | {value} | {shown} |"
    )


def _svg(points: list[tuple[Case, float]]) -> str:
    """Return bars of CPU seconds, one per case."""
    high = max(cpu for _, cpu in points)
    rows = []
    for number, (case, cpu) in enumerate(points):
        y = 20 + 28 * number
        name = f"{case.axis}: {case.devices} devices, {case.zones} zones, {case.types} types, {case.preset}"
        rows.append(f'<text x="10" y="{y + 14}">{name}</text>')
        rows.append(f'<rect x="400" y="{y}" width="{360 * cpu / high:.1f}" height="18" fill="#4a7ab5"/>')
        rows.append(f'<text x="{406 + 360 * cpu / high:.1f}" y="{y + 14}">{cpu:.1f} s</text>')
    height = 40 + 28 * len(points)
    style = "font: 13px sans-serif"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="840" height="{height}" style="{style}">'
        f"<title>CPU seconds of a search</title>{''.join(rows)}</svg>\n"
    )


if __name__ == "__main__":
    main()
