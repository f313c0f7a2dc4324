"""Measures predicted peak memory against published runs, source by source.

python benchmarks/simulator_accuracy/published_memory.py [--reference DIR] [--measurements FILE] [--json FILE]

The reference folder (default: $SAILOR_CLOUD_REFERENCE, else ../shared/reference beside the checkout) holds
published_throughput.csv and published_failed_or_oom.csv. Without it the benchmark prints SKIPPED and ends with 0.
--measurements predicts another table of the same columns.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from published import PublishedRun, Recompute, Unread, read_failed, read_published

from sailor_cloud.model import plan
from sailor_cloud.model.job import Optimizer
from sailor_cloud.model.offer import Precision
from sailor_cloud.simulator import in_flight, memory_table
from sailor_cloud.simulator.engines import stage_bounds
from sailor_cloud.units import GIB
from sailor_cloud.workload import tp_problem
from sailor_cloud.workload.profiles import load
from sailor_cloud.workload.stacks import DEFAULT

CHECKOUT = Path(__file__).resolve().parents[2]
# Sources with fewer rows count as one.
FEWEST_ROWS = 5
POOLED = "sources under five rows, pooled"
TRUSTED = ("high", "medium")
HALF = (Precision.BF16, Precision.FP16)
COMFORTABLE = 0.8
# What a source leaves unsaid is taken as not done.
_RECOMPUTE = {
    Recompute.NONE: plan.Recompute.NONE,
    Recompute.SELECTIVE: plan.Recompute.SELECTIVE,
    Recompute.FULL: plan.Recompute.FULL,
    Recompute.UNKNOWN: plan.Recompute.NONE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One run with its predicted peak and what its device can hold."""

    run: PublishedRun
    predicted_bytes: float
    limit_bytes: float
    device_bytes: float

    @property
    def error(self) -> float:
        assert self.run.peak_bytes is not None
        return self.predicted_bytes / self.run.peak_bytes - 1.0

    @property
    def impossible(self) -> bool:
        return self.predicted_bytes > self.limit_bytes

    @property
    def comfortable(self) -> bool:
        return self.predicted_bytes < COMFORTABLE * self.device_bytes


def peak_bytes(run: PublishedRun, framework_bytes: int) -> float:
    """Return the predicted peak of the fullest stage. Raises ValueError for a layout that the model can't have."""
    if run.pp > run.decoder.blocks:
        raise ValueError(f"{run.pp} stages for {run.decoder.blocks} blocks")
    problem = tp_problem(run.decoder, run.tp)
    if problem is not None:
        raise ValueError(problem)
    table = memory_table(
        run.decoder,
        run.engine,
        sequence_length=run.sequence_length,
        precision=run.precision,
        optimizer=Optimizer.ADAMW,
        tp=run.tp,
        microbatch_size=run.microbatch_size,
        recompute=_RECOMPUTE[run.recompute],
        zero_stage=run.zero_stage,
        framework_bytes=framework_bytes,
    )
    bounds = np.array(stage_bounds(run.engine.split, run.decoder, run.pp))
    held = in_flight(run.pp, np.arange(run.pp), run.microbatches)
    return float(np.max(table.total(bounds[:-1], bounds[1:], in_flight=held, replicas=run.dp)))


def judge(runs: Sequence[PublishedRun]) -> tuple[tuple[Judged, ...], tuple[Unread, ...]]:
    """Predict every run; also return those that can't be predicted, with the reason."""
    stack = load().stacks[DEFAULT]
    judged, unread = [], []
    for run in runs:
        # Parts are named for their memory: the catalog lacks some.
        device = float(run.accelerator.rsplit("-", 1)[1]) * GIB
        try:
            predicted = peak_bytes(run, stack.framework_bytes)
        except ValueError as error:
            unread.append(Unread(id=run.id, source=run.source_name, reason=str(error)))
            continue
        judged.append(
            Judged(
                run=run,
                predicted_bytes=predicted,
                limit_bytes=device * stack.usable_fraction,
                device_bytes=device,
            )
        )
    return tuple(judged), tuple(unread)


def in_bars(run: PublishedRun) -> bool:
    return run.peak_bytes is not None and run.trust in TRUSTED and run.precision in HALF


def by_source(judged: Sequence[Judged]) -> Mapping[str, Sequence[Judged]]:
    """Group rows by source, the largest first; small sources are one."""
    found: dict[str, list[Judged]] = defaultdict(list)
    for each in judged:
        found[each.run.source_name].append(each)
    large = {name: rows for name, rows in found.items() if len(rows) >= FEWEST_ROWS}
    small = [each for name, rows in found.items() if name not in large for each in rows]
    ordered = dict(sorted(large.items(), key=lambda item: (-len(item[1]), item[0])))
    return {**ordered, POOLED: small} if small else ordered


def summary(rows: Sequence[Judged]) -> dict[str, float]:
    """Return rows, mean and median absolute error, bias, and the share called impossible."""
    errors = np.array([each.error for each in rows])
    return {
        "rows": len(rows),
        "mean": float(np.abs(errors).mean()),
        "median": float(np.median(np.abs(errors))),
        "bias": float(errors.mean()),
        "impossible": float(np.mean([each.impossible for each in rows])),
    }


def report(groups: Mapping[str, Mapping[str, float]], comfortable: float | None, unread: Sequence[Unread]) -> str:
    """Return the table as Markdown."""
    lines = [
        "| peak memory | rows | mean error | median | bias | ran, called impossible |",
        "|---|---|---|---|---|---|",
    ]
    for name, of in groups.items():
        lines.append(
            f"| {name} | {of['rows']} | {of['mean']:.1%} | {of['median']:.1%} | {of['bias']:+.1%} "
            f"| {of['impossible']:.1%} |"
        )
    if groups:
        means = np.mean([of["mean"] for of in groups.values()])
        ran = np.average([of["impossible"] for of in groups.values()], weights=[of["rows"] for of in groups.values()])
        lines.append(f"| mean of the sources' means; of all runs | | {means:.1%} | | | {ran:.1%} |")
    if comfortable is not None:
        lines.append(f"\nOf the failed layouts, called comfortable (under 80 % of the device): {comfortable:.1%}")
    reasons = Counter(each.reason for each in unread)
    lines += [f"- {count} rows left out: {reason}" for reason, count in sorted(reasons.items())]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAILOR_CLOUD_REFERENCE") or CHECKOUT.parent / "shared" / "reference"
    parser.add_argument("--reference", type=Path, default=Path(default))
    parser.add_argument("--measurements", type=Path, help="predict this table instead")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    chosen = parser.parse_args()
    table = chosen.measurements or chosen.reference / "published_throughput.csv"
    if not table.is_file():
        print(f"SKIPPED: no {table}; name the folder with --reference or SAILOR_CLOUD_REFERENCE")
        return 0
    runs, unread = read_published(table)
    judged, unpredicted = judge([run for run in runs if in_bars(run)])
    groups = {name: summary(rows) for name, rows in by_source(judged).items()}
    comfortable = None
    failures = chosen.reference / "published_failed_or_oom.csv"
    if chosen.measurements is None and failures.is_file():
        failed, _ = read_failed(failures, {run.decoder.name: run.decoder for run in runs})
        comfortable = float(np.mean([each.comfortable for each in judge(failed)[0]]))
    print(report(groups, comfortable, [*unread, *unpredicted]))
    if chosen.json:
        figures = {"sources": groups, "comfortable": comfortable}
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
