"""Plans the cases of Sailor's artifact by its own formulas, on the product's path: import, plan, export.

Usage: python benchmarks/planner/artifact.py ARTIFACT [--case TEXT] [--prove] [--plans DIR] [-o FILE]. ARTIFACT is the
root of the artifact's repository or a folder with its data files; without it the benchmark is skipped. OPT-350 in fp32,
global batch 1024. `sailor` is what the artifact's planner finds and `known` the best plan known before by the same
formulas (SOSP'25 artifact, commit cf2c8e3, run in 2026-11); a ratio above 1 is better. `gap` is that to the bound of
all plans with equal pipelines, by our count of money. USD are those of the formulas, the devices in use alone. Exits
with 1 where a plan is more than 0.1 % worse than the best known, does not fit, takes more devices of a zone than there
are, or has a size that the artifact did not profile.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from commit import measured_on, write

from sailor_cloud import api
from sailor_cloud.errors import RequestError
from sailor_cloud.interchange import export_plan, import_artifact
from sailor_cloud.interchange.sailor_tables import ArtifactTables, read_tables
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job_file import parse_job
from sailor_cloud.model.offer import Precision

A, V, G = "A100-40", "V100-16", "GH-96"
ONE, TWO = ("us-central1-a",), ("us-central1-a", "us-central1-b")
FIVE = (*TWO, "us-central1-c", "us-central1-f", "us-west1-b")
MODEL, WORSE = "sailor-opt-350", 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """`devices` of every zone. `sailor` and `known` are iterations/s, or with `least_rate` USD per iteration."""

    name: str
    zones: tuple[str, ...]
    devices: dict[str, int]
    sailor: float | None
    known: float | None
    budget: float | None = None
    least_rate: float | None = None


BOTH = {A: 128, V: 128}
CASES = (
    Case(name="32 A100", zones=ONE, devices={A: 32}, sailor=0.1251, known=0.1297),
    Case(name="80 A100", zones=ONE, devices={A: 80}, sailor=0.2722, known=0.2722),
    Case(name="128 A100", zones=ONE, devices={A: 128}, sailor=0.4175, known=0.4175),
    Case(name="32 A100 + 96 V100", zones=ONE, devices={A: 32, V: 96}, sailor=0.1700, known=0.2015),
    Case(name="80 A100 + 240 V100", zones=ONE, devices={A: 80, V: 240}, sailor=0.3609, known=0.4117),
    Case(name="128 A100 + 384 V100", zones=ONE, devices={A: 128, V: 384}, sailor=0.5229, known=0.5862),
    Case(name="5 zones x 32 A100", zones=FIVE, devices={A: 32}, sailor=0.4149, known=0.4153),
    Case(name="5 zones x 80 A100", zones=FIVE, devices={A: 80}, sailor=0.7278, known=0.7431),
    # Sailor's 1.0198 iterations/s take 132 devices of a zone that has 128.
    Case(name="5 zones x 128 A100", zones=FIVE, devices={A: 128}, sailor=1.0198, known=1.0293),
    Case(name="2 zones x (128 A100 + 128 V100)", zones=TWO, devices=BOTH, sailor=0.6629, known=0.7250),
    Case(name="same, at least 0.2 it/s", zones=TWO, devices=BOTH, sailor=0.2779, known=0.2773, least_rate=0.2),
    Case(name="same, at least 0.4 it/s", zones=TWO, devices=BOTH, sailor=0.3145, known=0.3128, least_rate=0.4),
    Case(name="same, at least 0.66 it/s", zones=TWO, devices=BOTH, sailor=None, known=0.4551, least_rate=0.66),
    Case(name="same, at least 0.7 it/s", zones=TWO, devices=BOTH, sailor=None, known=0.5810, least_rate=0.7),
    Case(name="same, at least 0.8 it/s", zones=TWO, devices=BOTH, sailor=None, known=None, least_rate=0.8),
    Case(name="same, at most 1.2 USD", zones=TWO, devices=BOTH, sailor=0.6629, known=0.7250, budget=1.2),
    Case(name="same, at most 0.4 USD", zones=TWO, devices=BOTH, sailor=0.4153, known=0.4175, budget=0.4),
    Case(name="same, at most 0.3 USD", zones=TWO, devices=BOTH, sailor=0.2350, known=0.3013, budget=0.3),
    Case(name="512 A100 + 512 V100", zones=ONE, devices={A: 512, V: 512}, sailor=0.851, known=1.1091),
    Case(name="32 A100 + 32 V100 + 32 GH", zones=ONE, devices={A: 32, V: 32, G: 32}, sailor=None, known=0.3675),
)
COLUMNS = "| case | sailor | known | ours | ratio | gap | USD/iteration | CPU s | plan |\n" + "|---" * 9 + "|"
JOB = """
name: case
model: {{preset: {model}}}
training: {{global_batch_size: 1024, sequence_length: 2048, precision: fp32}}
goal: {goal}
constraints: {{{limits}}}
resources:
  - {{provider: gcp, zones: {zones}, markets: [on-demand], accelerators: {devices}}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--case", default="", help="only cases whose name holds this text")
    parser.add_argument("--prove", action="store_true", help="raise the bound of each case, as 'plan --prove' does")
    parser.add_argument("--plans", type=Path, help="folder for the plans in the artifact's form")
    parser.add_argument("-o", "--output", type=Path)
    chosen = parser.parse_args()
    failed, lines = [], ["# Planner: the cases of Sailor's artifact by its own formulas\n", measured_on(), COLUMNS]
    with tempfile.TemporaryDirectory() as folder:
        imported = Path(folder)
        try:
            day = datetime.now(UTC).date()
            import_artifact(chosen.artifact, imported, precision=Precision.FP32, as_of=day)
        except RequestError as error:
            sys.stdout.write(f"SKIPPED: {error}\n")
            return 0
        tables = read_tables(imported / "compute_profiles")
        for case in CASES:
            if chosen.case not in case.name:
                continue
            begun = time.process_time()
            document = planned(case, imported, prove=chosen.prove)
            exported = None if document.plan is None else export_plan(document.plan, document.inputs.hardware_by_id())
            spent = time.process_time() - begun
            line, faults = row(case, document, exported, tables, spent)
            lines.append(line)
            failed += [f"{case.name}: {fault}" for fault in faults]
            sys.stderr.write(line + "\n")
            if chosen.plans is not None and exported is not None:
                chosen.plans.mkdir(parents=True, exist_ok=True)
                name = "".join(letter if letter.isalnum() else "-" for letter in case.name)
                (chosen.plans / f"{name}.json").write_text(json.dumps(exported))
    lines += ["", *(f"- MISSED: {fault}" for fault in failed), ""]
    write("\n".join(lines), chosen.output)
    return 1 if failed else 0


def planned(case: Case, imported: Path, *, prove: bool) -> PlanDocument:
    limits = {"max_usd_per_iteration": case.budget, "min_throughput": case.least_rate}
    job = parse_job(
        JOB.format(
            model=MODEL,
            goal="maximize-throughput" if case.least_rate is None else "minimize-cost",
            limits=", ".join(f"{name}: {value}" for name, value in limits.items() if value is not None),
            zones=list(case.zones),
            devices=str(case.devices).replace("'", ""),
        )
    )
    return api.plan(
        job,
        engine="sailor-artifact",
        profiles=imported / "compute_profiles",
        network=imported / "bandwidth_profiles",
        pricing=imported / "pricing",
        prove=prove,
    )


def row(
    case: Case, document: PlanDocument, exported: dict[str, Any] | None, tables: ArtifactTables, spent: float
) -> tuple[str, list[str]]:
    """Return a line of the table, and what is wrong with a plan."""
    known = ["–" if value is None else f"{value:.4f}" for value in (case.sailor, case.known)]
    start = f"| {case.name} | {known[0]} | {known[1]} |"
    if exported is None or document.prediction is None:
        faults = [] if case.known is None else ["no plan was found"]
        return f"{start} none | – | – | – | {spent:.1f} | {document.infeasibility and '–'} |", faults
    group = exported["pipeline_list"][0]
    seconds, size = document.prediction.iteration_s_replay, exported["mbs"]
    used: Counter[tuple[str, str]] = Counter()
    for stage in group["tmp_per_stage"]:
        for machines, tp in stage:
            used[machines[0][0], machines[0][2]] += tp
    faults = [
        f"{count} {gpu} in {zone}, which has {case.devices.get(gpu, 0)}"
        for (gpu, zone), count in sorted(used.items())
        if count > case.devices.get(gpu, 0)
    ]
    times = tables.models[MODEL].times
    kinds = [(stage[0][0][0][0], stage[0][1]) for stage in group["tmp_per_stage"]]
    faults += [f"{gpu} at tp {tp} has no profile of {size}" for gpu, tp in kinds if (gpu, size, tp) not in times]
    faults += [
        f"stage {memory.stage} takes {memory.total_bytes} of {memory.limit_bytes} bytes"
        for memory in document.prediction.memory
        if memory.total_bytes > memory.limit_bytes
    ]
    rent = sum(count * tables.usd_per_device_hour[gpu] for (gpu, _), count in used.items()) * seconds / 3600.0
    usd = rent + sum(link.bytes_per_iteration * (link.usd_per_gb or 0.0) / 1e9 for link in document.inputs.links)
    value = usd if case.least_rate is not None else 1.0 / seconds
    ratio = None
    if case.known is not None:
        ratio = case.known / value if case.least_rate is not None else value / case.known
        # Known values have four digits.
        if ratio < 1.0 - WORSE:
            faults.append(f"{value:.4f} is {1.0 - ratio:.2%} worse than the best known {case.known:.4f}")
    stages = zip(kinds, group["layers_per_stage"], strict=True)
    shape = " ".join(f"{len(layers)}x{gpu.split('-')[0]}.tp{tp}" for (gpu, tp), layers in stages)
    ratio_text = "–" if ratio is None else f"{ratio:.4f}"
    gap = "–" if document.optimality_gap is None else f"{document.optimality_gap:.2%}"
    line = f"{start} {value:.4f} | {ratio_text} | {gap} | {usd:.4f} | {spent:.1f} "
    line += f"| mbs{size} dp{group['dp'][0]}: {shape} |"
    return line, faults


if __name__ == "__main__":
    sys.exit(main())
