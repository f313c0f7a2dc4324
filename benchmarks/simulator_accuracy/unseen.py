"""Predicts published runs of sources from which nothing was fitted or calibrated, and says how far off it is.

python benchmarks/simulator_accuracy/unseen.py [--runs FILE] [--results FILE]

unseen_runs.csv has the columns of published_throughput.csv and `address`, `virtual_stages` (ranges of layers per stage
of Megatron's interleaved schedule), `eager_script` (1: modules of torch in a small script of the source's own) and
`assumed` (what the source leaves open). No constant, rule or choice of the simulator may come from these rows. Runs
with virtual stages are also predicted in 1F1B, without them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
from commit import measured_on, write
from published import PublishedRun, read_published
from published_time import Timed, cases_of, in_bars, predict, report, summary, table

from sailor_cloud.workload import ComputeProfiles, profiles

RUNS = Path(__file__).with_name("unseen_runs.csv")
_HEAD = """\
# Runs of unseen sources

Tokens/s and device of {rows} published runs of {sources} sources that no constant was fitted on, and no ± calibrated
on. The sources were found after the simulator's constants were fixed. A source counts as one, whatever its rows. Only
runs whose figures were read in the source are here: none of low trust, and none whose address is not known. That
Megatron-LM has kernel rates of its own was decided with NeMo's rows in sight; their sizes come from other measurements
(`sailor_cloud/simulator/engines/registry.py`). `unseen_runs.csv` has address, date and assumptions of each row. The ±
has a part for programs without runs on a generation since the first 150 rows were predicted. Its size comes from other
runs alone (`prediction_errors.md`).

| means over sources | error | bias | inside p50 | inside p90 |
|---|---|---|---|---|
"""


def timed(runs: Sequence[PublishedRun], known: ComputeProfiles) -> list[Timed]:
    """Predict runs. Raises ValueError if one can't be laid out: every row of this table can."""
    cases, unlaid = cases_of(runs, known)
    if unlaid:
        raise ValueError("; ".join(f"{each.id}: {each.reason}" for each in unlaid))
    return [predict(case) for case in cases]


def by(name: Callable[[Timed], str], rows: Sequence[Timed]) -> dict[str, list[Timed]]:
    """Return rows by a name, largest group first."""
    found: dict[str, list[Timed]] = {}
    for each in rows:
        found.setdefault(name(each), []).append(each)
    return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))


def overall(title: str, rows: Sequence[Timed]) -> str:
    """Return a table line with the means over sources."""
    each = [summary(of) for of in by(lambda row: row.run.source_name, rows).values()]
    error, bias, p50, p90 = (
        float(np.mean([of[name] for of in each])) for name in ("mean", "bias", "inside_p50", "inside_p90")
    )
    return f"| {title}, {len(each)} sources, {len(rows)} rows | {error:.1%} | {bias:+.1%} | {p50:.0%} | {p90:.0%} |"


def groups(title: str, name: Callable[[Timed], str], rows: Sequence[Timed]) -> list[str]:
    """Return the figures of each group as a table, with the median p50 and p90 that were stated."""
    lines = [
        f"## {title}",
        "",
        "| | rows | mean error | bias | p50 stated | inside p50 | p90 stated | inside p90 |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for group, of in by(name, rows).items():
        found = summary(of)
        stated = [float(np.median([getattr(each, kind) for each in of])) for kind in ("error_p50", "error_p90")]
        lines.append(
            f"| {group} | {len(of)} | {found['mean']:.1%} | {found['bias']:+.1%} | {stated[0]:.1%} "
            f"| {found['inside_p50']:.0%} | {stated[1]:.1%} | {found['inside_p90']:.0%} |"
        )
    return [*lines, ""]


def interleaved(rows: Sequence[Timed], plain: Sequence[Timed]) -> list[str]:
    """Return the errors of runs with virtual stages beside those of the same runs in 1F1B, `plain`."""
    lines = ["## Virtual stages", "", "| | rows | mean error | in 1F1B | ratio |", "|---|---|---|---|---|"]
    in_1f1b = {each.run.id: each for each in plain}
    for name, of in by(lambda row: row.run.source_name, [row for row in rows if row.run.virtual_stages > 1]).items():
        error, without = summary(of)["mean"], summary([in_1f1b[each.run.id] for each in of])["mean"]
        lines.append(f"| {name} | {len(of)} | {error:.1%} | {without:.1%} | {error / without:.2f} |")
    return [*lines, ""]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=RUNS)
    parser.add_argument("--results", type=Path, help="write the report to this file instead of stdout")
    chosen = parser.parse_args()
    known = profiles.load()
    runs, unread = read_published(chosen.runs)
    if unread:
        raise ValueError("; ".join(f"{each.id}: {each.reason}" for each in unread))
    rows = timed([run for run in runs if in_bars(run)], known)
    programs = [row for row in rows if not row.run.eager_script]
    figures = table(rows, named=lambda runs: [run.source_name for run in runs])
    names = by(lambda row: row.run.source_name, rows)
    lines = [_HEAD.format(rows=len(rows), sources=len(names)) + overall("all", rows)]
    lines.append(overall("without eager scripts", programs))
    plain = timed([replace(row.run, virtual_stages=1) for row in programs], known)
    lines.append(overall("same, virtual stages ignored", plain))
    narrow = replace(known, errors=replace(known.errors, program=0.0))
    lines += [overall("same, ± without `program`", timed([row.run for row in programs], narrow)), ""]
    lines += report("By source", figures)
    scripts = [name for name, of in names.items() if of[0].run.eager_script]
    lines += [f"Eager scripts of the source's own: {'; '.join(scripts)}.", ""]
    lines += interleaved(programs, plain)
    lines += groups("By engine, without eager scripts", lambda row: row.run.engine.name, programs)
    lines += groups("By accelerator, without eager scripts", lambda row: row.run.accelerator, programs)
    write("\n".join([*lines, measured_on()]), chosen.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
