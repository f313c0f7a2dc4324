"""Measures predicted peak memory against published runs, source by source.

python benchmarks/simulator_accuracy/published_memory.py [--reference DIR] [--measurements FILE] [--json FILE]
    [--results FILE]

The reference folder (default: $SAILOR_CLOUD_REFERENCE, else ../shared/reference beside the checkout) holds
published_throughput.csv; without it the benchmark prints SKIPPED and ends with 0. It ends with 1 where a bar is missed.
published_failed_or_oom.csv, measured_iterations.csv and sailor-artifact/ are used where they are. --measurements
predicts another table of published_throughput.csv's columns with the shipped constants, and fits nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from clusters import USABLE_SHARE, accelerator
from memory_fit import SHIPPED, Constants, Peak, fit, peak_of_measured, peak_of_run
from published import Counter as Counted
from published import PublishedRun, Unread, read_failed, read_published
from reference import base_scenario, read_measured

from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Precision
from sailor_cloud.units import GIB

CHECKOUT = Path(__file__).resolve().parents[2]
# Sources with fewer rows count as one.
FEWEST_ROWS = 5
POOLED = "sources under five rows, pooled"
TRUSTED = ("high", "medium")
HALF = (Precision.BF16, Precision.FP16)
COMFORTABLE = 0.8
# Errors of a fit count as 1 / sqrt(rows of the source), so that no source outnumbers the others; measurements of our
# own clusters count double.
_MEASURED_WEIGHT, _FIT_SCALE = 2.0, 4.0
IN_SAMPLE, WITHOUT_SOURCE, WITHOUT_MODEL = "in sample", "source left out", "model left out"
LIMITS = {IN_SAMPLE: 0.10, WITHOUT_SOURCE: 0.15, WITHOUT_MODEL: 0.15}
IMPOSSIBLE_LIMIT, COMFORTABLE_LIMIT = 0.01, 0.20


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One run whose peak is known."""

    source: str
    model: str
    peak: Peak
    actual_bytes: float
    published: bool

    def error(self, constants: Constants) -> float:
        return self.peak.predicted_bytes(constants) / self.actual_bytes - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Errors of one source; `impossible` is the share of its runs that the device is said to have no room for."""

    rows: int
    mean: float
    median: float
    bias: float
    impossible: float


def peak_on_device(run: PublishedRun) -> Peak:
    """Return the peak of a run, also on parts that the catalog lacks."""
    nvlink, limit_bytes = 0.0, device_bytes(run.accelerator) * USABLE_SHARE
    with suppress(DataError):
        part = accelerator(run.accelerator)
        nvlink, limit_bytes = part.nvlink_gb_per_s or nvlink, float(part.usable_bytes)
    return peak_of_run(run, nvlink=nvlink, limit_bytes=limit_bytes)


def device_bytes(accelerator: str) -> float:
    """Parts are named for their memory. Raises ValueError for one that is not."""
    try:
        return float(accelerator.rpartition("-")[2]) * GIB
    except ValueError:
        raise ValueError(f"the name of {accelerator or 'an accelerator'} does not tell its memory") from None


def in_bars(run: PublishedRun) -> bool:
    return run.peak_bytes is not None and run.trust in TRUSTED and run.precision in HALF


def published_rows(runs: Sequence[PublishedRun]) -> tuple[list[Row], list[Unread]]:
    """Return the runs that can be predicted, small sources as one, and the others with the reason."""
    found, unread = [], []
    for run in runs:
        assert run.peak_bytes is not None
        try:
            peak = peak_on_device(run)
        except ValueError as error:
            unread.append(Unread(id=run.id, source=run.source_name, reason=str(error)))
            continue
        name, model = run.source_name, run.decoder.name
        found.append(Row(source=name, model=model, peak=peak, actual_bytes=run.peak_bytes, published=True))
    size = Counter(row.source for row in found)
    return [row if size[row.source] >= FEWEST_ROWS else replace(row, source=POOLED) for row in found], unread


def measured_rows(reference: Path) -> list[Row]:
    """Return the measured iterations, which are fitted on, too, where the folder has them."""
    if not (reference / "measured_iterations.csv").is_file() or not (reference / "sailor-artifact").is_dir():
        return []
    scenario = base_scenario(reference / "sailor-artifact")
    return [
        Row(
            source=f"measured {row.set_name}",
            model=row.model,
            peak=peak_of_measured(row, scenario),
            actual_bytes=row.peak_bytes,
            published=False,
        )
        for row in read_measured(reference / "measured_iterations.csv")[0]
        if row.peak_bytes is not None
    ]


def fit_rows(rows: Sequence[Row]) -> Constants:
    size = Counter(row.source for row in rows)
    weights = [_FIT_SCALE * (1.0 if row.published else _MEASURED_WEIGHT) / np.sqrt(size[row.source]) for row in rows]
    return fit([row.peak for row in rows], np.array([row.actual_bytes for row in rows]), np.array(weights))


def left_out_errors(rows: Sequence[Row], group: Callable[[Row], str]) -> list[float]:
    """Return the errors of all rows, each by constants fitted without its group.

    Where no row that gathers inputs ahead is left to learn from, none is assumed to.
    """
    fitted = {}
    for name in {group(row) for row in rows}:
        kept = [row for row in rows if group(row) != name]
        constants = fit_rows(kept)
        learnt = any(row.peak.gather_bytes for row in kept)
        fitted[name] = constants if learnt else replace(constants, gathers=0.0)
    return [row.error(fitted[group(row)]) for row in rows]


def summaries(rows: Sequence[Row], errors: Sequence[float], constants: Constants) -> dict[str, Summary]:
    """Return errors by source, the largest first."""
    found: dict[str, list[tuple[float, bool]]] = defaultdict(list)
    for row, error in zip(rows, errors, strict=True):
        found[row.source].append((error, not row.peak.fits(constants)))
    result = {}
    for name, of in sorted(found.items(), key=lambda item: (-len(item[1]), item[0])):
        each = np.array([error for error, _ in of])
        result[name] = Summary(
            rows=len(of),
            mean=float(np.abs(each).mean()),
            median=float(np.median(np.abs(each))),
            bias=float(each.mean()),
            impossible=float(np.mean([impossible for _, impossible in of])),
        )
    return result


def mean_of_means(of: Mapping[str, Summary]) -> float:
    return float(np.mean([each.mean for each in of.values()]))


def ran_impossible(of: Mapping[str, Summary]) -> float:
    return float(np.average([each.impossible for each in of.values()], weights=[each.rows for each in of.values()]))


def comfortable_share(failed: Sequence[PublishedRun]) -> float:
    """Return the share of failed layouts of which under 80 % of the device is said to be used.

    Those that the model can't have count as not comfortable.
    """
    found = []
    for run in failed:
        try:
            peak = peak_on_device(run)
        except ValueError:
            found.append(False)
            continue
        used = peak.predicted_bytes(SHIPPED, counter=Counted.DEVICE)
        found.append(used < COMFORTABLE * device_bytes(run.accelerator))
    return float(np.mean(found))


def table(title: str, of: Mapping[str, Summary]) -> list[str]:
    lines = [f"| {title} | rows | mean | median | bias | ran, called impossible |", "|---|---|---|---|---|---|"]
    for name, each in of.items():
        lines.append(
            f"| {name} | {each.rows} | {each.mean:.1%} | {each.median:.1%} | {each.bias:+.1%} | {each.impossible:.1%} |"
        )
    lines.append(
        f"| mean of the sources' means; of all runs | | {mean_of_means(of):.1%} | | | {ran_impossible(of):.1%} |"
    )
    return lines


def left_out_lines(unread: Sequence[Unread]) -> list[str]:
    reasons = Counter(each.reason.replace("\n", "; ") for each in unread)
    return [f"- {count} row{'s' * (count > 1)} left out: {reason}" for reason, count in sorted(reasons.items())]


def bar(name: str, figure: float, limit: float) -> tuple[str, bool]:
    met = figure <= limit
    return f"| {name} | {figure:.1%} | {limit:.0%} | {'met' if met else 'MISSED'} |", met


def constants_lines(constants: Constants) -> list[str]:
    of = constants.overheads
    return [
        f"- kept activations over the counted ones {of.activations:.2f}, plain attention over its probabilities "
        f"{of.scores:.2f}",
        f"- the allocator holds {of.reserve:.1%} on top, collectives {of.link_bytes_per_gb_per_s / 1e6:.1f} MB per "
        f"GB/s of NVLink; nanotron has {constants.gathers:.0f} gathered inputs in flight",
    ]


def report(reference: Path) -> tuple[str, bool, dict[str, object]]:
    """Return the tables with all bars, whether they are met, and the figures."""
    runs, unread = read_published(reference / "published_throughput.csv")
    rows, unpredicted = published_rows([run for run in runs if in_bars(run)])
    everything = [*rows, *measured_rows(reference)]
    errors = {
        IN_SAMPLE: [row.error(SHIPPED) for row in everything],
        WITHOUT_SOURCE: left_out_errors(everything, lambda row: row.source),
        WITHOUT_MODEL: left_out_errors(everything, lambda row: row.model),
    }
    of = {name: summaries(rows, each[: len(rows)], SHIPPED) for name, each in errors.items()}
    own = summaries(everything[len(rows) :], errors[IN_SAMPLE][len(rows) :], SHIPPED)
    table_of_failed = reference / "published_failed_or_oom.csv"
    shapes = {run.decoder.name: run.decoder for run in runs}
    failed = read_failed(table_of_failed, shapes)[0] if table_of_failed.is_file() else ()
    comfortable = comfortable_share(failed) if failed else None
    bars = [bar(f"mean of the sources' mean errors, {name}", mean_of_means(of[name]), LIMITS[name]) for name in LIMITS]
    bars.append(bar("runs that ran, called impossible", ran_impossible(of[IN_SAMPLE]), IMPOSSIBLE_LIMIT))
    if comfortable is not None:
        bars.append(bar(f"{len(failed)} failed layouts, called comfortable", comfortable, COMFORTABLE_LIMIT))
    lines = [
        "# Peak memory of published runs",
        "",
        "Runs of trust high or medium in bf16 or fp16; a source counts as one, whatever its rows. Predicted is what",
        "the source's counter shows: tensors, the allocator's reserve, or all of the device. In sample: the shipped",
        "constants. Left out: constants fitted without the source, or without the model. What a program keeps per",
        "parameter is in `sailor_cloud/simulator/engines/registry.py` and `published.PROGRAMS`, with sources: known,",
        "not fitted, though chosen with these rows in sight, as was which constants to have.",
        "",
        "| bar | figure | limit | |",
        "|---|---|---|---|",
        *(line for line, _ in bars),
        "",
        *(line for name in of for line in (*table(name, of[name]), "")),
        *(table("measured clusters, in sample", own) if own else ()),
        "",
        "Fitted on all of it:",
        "",
        *constants_lines(fit_rows(everything)),
        "",
        "Shipped:",
        "",
        *constants_lines(SHIPPED),
        "",
        *left_out_lines([*unread, *unpredicted]),
    ]
    figures: dict[str, object] = {
        **{name: {source: asdict(each) for source, each in found.items()} for name, found in of.items()},
        "comfortable": comfortable,
    }
    return "\n".join(lines), all(met for _, met in bars), figures


def judge(path: Path, *, alone: bool = True) -> tuple[str, dict[str, object]]:
    """Return the table of measurements that nothing was fitted on, and its figures.

    Rows that can't be read are listed if the table is judged `alone`.
    """
    runs, unread = read_published(path)
    rows, unpredicted = published_rows([run for run in runs if in_bars(run)])
    of = summaries(rows, [row.error(SHIPPED) for row in rows], SHIPPED)
    lines = [*(table("shipped constants", of) if of else ["no row with peak memory"])]
    if not alone:
        unread = ()
    figures: dict[str, object] = {"shipped": {source: asdict(each) for source, each in of.items()}}
    return "\n".join([*lines, "", *left_out_lines([*unread, *unpredicted])]), figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAILOR_CLOUD_REFERENCE") or CHECKOUT.parent / "shared" / "reference"
    parser.add_argument("--reference", type=Path, default=Path(default))
    parser.add_argument("--measurements", type=Path, help="predict this table instead")
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--results", type=Path, help="write the report to this file as well")
    chosen = parser.parse_args()
    if chosen.measurements:
        text, figures = judge(chosen.measurements)
        met = True
    elif (chosen.reference / "published_throughput.csv").is_file():
        text, met, figures = report(chosen.reference)
    else:
        path = chosen.reference / "published_throughput.csv"
        print(f"SKIPPED: no {path}; name the folder with --reference or SAILOR_CLOUD_REFERENCE")
        return 0
    print(text)
    if chosen.json:
        chosen.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    if chosen.results:
        chosen.results.write_text(text + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
