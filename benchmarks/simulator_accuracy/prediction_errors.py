"""Calibrates the distribution of errors of predictions on published runs, and checks how many fall inside it.

python benchmarks/simulator_accuracy/prediction_errors.py [--reference DIR] [--write] [--results FILE]

Constants of kernels are fitted with whole sources and whole models left out; what is predicted of the runs left out is
held against the p50 and p90 that the product states. Ends with 1 where fewer or more runs fall inside than LIMITS
allow, and prints SKIPPED without published_throughput.csv. --write calibrates compute_profiles/prediction_errors.csv
first: the parts by maximum likelihood, then all of them by one factor, and the tail, so that half and nine in ten of
all rows fall inside. What is unknown of a generation that nobody measured is how far off each measured one
is under the constants of another; of a precision or another accelerator of a generation, how far off runs on A100 are
where none in that precision, or none on that A100, is fitted; of a program on a generation, how far off the runs of
one are where others have runs on it and its own are left out.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import os
import platform
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import published_memory
from commit import commit
from fit_kernels import Fit, models, shipped
from numpy.typing import NDArray
from published import PublishedRun, read_published
from published_time import Case, Timed, cases_of, in_bars, sources, starved
from scipy.optimize import minimize

from sailor_cloud.simulator.layout import lay_out
from sailor_cloud.simulator.timing.iteration import run_iteration
from sailor_cloud.simulator.timing.uncertainty import uncertainty
from sailor_cloud.workload import ComputeProfiles, kernels, profiles
from sailor_cloud.workload.error_model import FILE, ErrorModel

Floats = NDArray[np.float64]

CHECKOUT = Path(__file__).resolve().parents[2]
TABLE = CHECKOUT / "compute_profiles" / FILE
# Shares of the left-out runs that must fall inside p50 and p90.
LIMITS = ((0.45, 0.55), (0.87, 0.93))
# What likelihood decides, where it is expected, and how far off in the logarithm: links share that of the estimates.
PARTS = {"layers": 0.07, "exchange": 0.2, "network": 0.2, "overlap": 0.2}
_PRIOR_DEVIATION = 0.7
_TAILS = np.arange(-0.6, 0.15, 0.02)
# Two runs of Sailor's 15 jobs differ by 5.0 % mean: half of single runs are within 0.0443 * 0.674 of their mean.
REPEAT = 0.03
# In peak memory they differ by 4.0 % mean.
MEMORY_REPEAT = 0.024
# What the variance of a time is the sum of.
_OF_TIME = [name for name in ErrorModel.__dataclass_fields__ if name not in ("tail", "memory", "memory_repeat")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Logarithms of measured over predicted seconds, shape [runs], of `groups` weighted alike.

    `features[name]`: of the variance of a run, what each part of the model at 1.0 adds; `known`: what links add.
    """

    errors: Floats
    groups: tuple[str, ...]
    features: dict[str, Floats]
    known: Floats

    def halves(self, model: ErrorModel) -> Floats:
        """Return what half of each run's errors should be below."""
        parts = (each * getattr(model, name) ** 2 for name, each in self.features.items())
        return np.sqrt(self.known + sum(parts))

    @property
    def weights(self) -> Floats:
        counts = Counter(self.groups)
        weights = np.array([1.0 / counts[name] for name in self.groups])
        return weights / weights.sum()

    @property
    def mixed_weights(self) -> Floats:
        """Half of the weight is shared by the groups, half by the runs."""
        return 0.5 * (self.weights + 1.0 / len(self.groups))

    def inside(self, model: ErrorModel) -> tuple[Floats, Floats]:
        """Return which runs are inside p50 and p90 as documents state them."""
        error = np.abs(np.expm1(self.errors))
        ranges = [model.of(float(half)) for half in self.halves(model)]
        return error <= [each.p50 for each in ranges], error <= [each.p90 for each in ranges]

    def coverage(self, model: ErrorModel) -> tuple[float, float]:
        """Return the shares of all runs inside p50 and p90."""
        inside = self.inside(model)
        return float(inside[0].mean()), float(inside[1].mean())

    def joined(self, other: Evidence) -> Evidence:
        return Evidence(
            errors=np.concatenate([self.errors, other.errors]),
            groups=(*self.groups, *other.groups),
            features={name: np.concatenate([each, other.features[name]]) for name, each in self.features.items()},
            known=np.concatenate([self.known, other.known]),
        )


def calibrated(evidence: Evidence, start: ErrorModel) -> ErrorModel:
    """Return a model whose p50 and p90 hold half and nine in ten of the runs."""
    expected = np.log(list(PARTS.values()))

    def model_of(logarithms: Floats) -> ErrorModel:
        return dataclasses.replace(start, **dict(zip(PARTS, np.exp(logarithms).tolist(), strict=True)))

    def loss(logarithms: Floats) -> float:
        # Student's t with four degrees of freedom, whose upper quartile is 0.74.
        scale = evidence.halves(model_of(logarithms)) / 0.74
        likelihood = np.log(scale) + 2.5 * np.log1p((evidence.errors / scale) ** 2 / 4.0)
        held = 0.5 * float(np.sum(((logarithms - expected) / _PRIOR_DEVIATION) ** 2))
        # Runs of one source are far from independent: each counts as ten.
        return float(evidence.mixed_weights @ likelihood) * 10.0 * len(set(evidence.groups)) + held

    found = minimize(loss, expected, method="Nelder-Mead", options={"maxiter": 1000}).x
    factor = _least(lambda value: evidence.coverage(model_of(found + np.log(value)))[0] >= 0.5, 0.2, 5.0)
    model = model_of(found + np.log(factor))
    tails = [dataclasses.replace(model, tail=float(tail)) for tail in _TAILS]
    return min(tails, key=lambda each: abs(evidence.coverage(each)[1] - 0.9))


def _least(holds: Callable[[float], bool], low: float, high: float) -> float:
    """Return the least value at which something holds that holds for all larger ones."""
    for _ in range(30):
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def features_of(case: Case, names: Sequence[str]) -> tuple[dict[str, float], float]:
    """Return what each part of the model at 1.0 adds to a run's variance, and what is known of links."""
    nothing = ErrorModel(**{field.name: 0.0 for field in dataclasses.fields(ErrorModel)})
    nothing = dataclasses.replace(nothing, tail=case.scenario.profiles.errors.tail)
    plain = lay_out(case.plan, case.scenario)
    iteration = run_iteration(plain)

    def variance(model: ErrorModel) -> float:
        known = dataclasses.replace(case.scenario.profiles, errors=model)
        layout = lay_out(case.plan, dataclasses.replace(case.scenario, profiles=known))
        return uncertainty(layout, iteration).distribution.half ** 2

    links = variance(nothing)
    return {name: variance(dataclasses.replace(nothing, **{name: 1.0})) - links for name in names}, links


def evidence_of(
    cases: Sequence[Case], timed: Sequence[Timed], parts: Sequence[tuple[dict[str, float], float]]
) -> Evidence:
    return Evidence(
        errors=np.log1p([each.error for each in timed]),
        groups=tuple(sources([case.run for case in cases])),
        features={name: np.array([found[name] for found, _ in parts]) for name in _OF_TIME},
        known=np.array([links for _, links in parts]),
    )


def taken(evidence: Evidence, rows: NDArray[np.bool_]) -> Evidence:
    return Evidence(
        errors=evidence.errors[rows],
        groups=tuple(name for name, kept in zip(evidence.groups, rows, strict=True) if kept),
        features={name: each[rows] for name, each in evidence.features.items()},
        known=evidence.known[rows],
    )


def unmeasured(evidence: Evidence, fitted: Floats, generations: Floats, model: ErrorModel) -> float:
    """Return the error of layers at which half of the runs of any generation are inside, that another one predicts.

    fitted: errors under the constants of another generation. The generation that is furthest off decides.
    """
    layers = evidence.features["layers"] + evidence.features["layers_unmeasured"]
    none = np.zeros(len(layers))
    features = {**evidence.features, "layers": layers, "layers_unmeasured": none}
    moved = dataclasses.replace(evidence, errors=fitted, features=features)
    each = [_half_inside(taken(moved, generations == generation), model) for generation in sorted(set(generations))]
    return max(model.layers, *each)


def _half_inside(evidence: Evidence, model: ErrorModel) -> float:
    """Return the error of layers at which half of the runs are inside p50."""

    def holds(value: float) -> bool:
        inside = evidence.inside(dataclasses.replace(model, layers=value))[0]
        return float(evidence.mixed_weights @ inside) >= 0.5

    return _least(holds, 0.01, 1.0)


def added(kinds: Sequence[Evidence], model: ErrorModel) -> float:
    """Return what runs without others of their kind add to the error of layers, by the kind that is furthest off."""
    return max(float(np.sqrt(max(0.0, _half_inside(each, model) ** 2 - model.layers**2))) for each in kinds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """Published runs, and what is predicted of them by constants that were fitted without them."""

    by_source: Evidence
    by_model: Evidence
    # Of all runs under constants of another generation; of runs on A100 under those of the other precision, and of A100
    # with 40 and 80 GB under those of the other.
    other_generation: Floats
    generations: Floats
    other_precision: tuple[Evidence, ...]
    other_accelerator: tuple[Evidence, ...]
    # Of runs of a program on a generation under constants fitted without them.
    other_program: tuple[Evidence, ...]

    @property
    def together(self) -> Evidence:
        return self.by_source.joined(self.by_model)


def published(path: Path, known: ComputeProfiles) -> Published:
    """Read and predict published runs; those of the playbook under 10 % of the peak are left out."""
    cases, _ = cases_of([run for run in read_published(path)[0] if in_bars(run)], known)
    fit, values = Fit.of(cases, known), shipped(known)
    at = fit.predicted(values)
    slopes = fit.derivatives(values, at)
    runs = [case.run for case in cases]
    counted = np.array([not starved(run) for run in runs])
    every = [case for case, kept in zip(cases, counted, strict=True) if kept]
    parts = [features_of(case, _OF_TIME) for case in every]

    def of(timed: Sequence[Timed]) -> Evidence:
        return evidence_of(every, [each for each, kept in zip(timed, counted, strict=True) if kept], parts)

    by_source = of(fit.left_out(values, at, slopes, sources(runs)))
    generations = np.array([_generation(case) for case in cases])
    other = np.empty(len(cases))
    for generation in sorted(set(generations.tolist())):
        rows = np.flatnonzero(generations == generation)
        borrowed = _borrowed(fit.step(values, at, slopes, generations != generation), generation)
        other[rows] = np.log1p([each.error for each in fit.timed(borrowed, rows.tolist())])

    def without(kind: NDArray[np.bool_]) -> Evidence:
        kept = counted & kind
        rows, errors = np.flatnonzero(kept).tolist(), np.zeros(len(cases))
        errors[rows] = np.log1p([each.error for each in fit.timed(fit.step(values, at, slopes, ~kept), rows)])
        return taken(dataclasses.replace(by_source, errors=errors[counted]), kept[counted])

    precisions = [np.array([run.precision is each for run in runs]) & (generations == 8) for each in kernels.PRECISIONS]
    engines = np.array([run.engine.name for run in runs])
    # V100 has runs of one program: without them, its constants are those of another generation.
    programs = [
        (generations == each.compute_capability) & (engines == name)
        for each in known.generations
        for name in each.programs
        if len(each.programs) > 1
    ]
    accelerators = [np.array([run.accelerator == name for run in runs]) for name in ("A100-40", "A100-80")]
    return Published(
        by_source=by_source,
        by_model=of(fit.left_out(values, at, slopes, models(runs))),
        other_generation=other[counted],
        generations=generations[counted],
        other_precision=tuple(map(without, precisions)),
        other_accelerator=tuple(map(without, accelerators)),
        other_program=tuple(map(without, programs)),
    )


def _generation(case: Case) -> float:
    capability = case.scenario.catalog.accelerator(case.run.accelerator).compute_capability or 8.0
    return float(min((7.0, 8.0, 9.0), key=lambda known: abs(known - capability)))


def _borrowed(values: dict[str, float], generation: float) -> dict[str, float]:
    """Return constants where a generation has those of the one before, the first those of the second."""
    like = {7.0: 8, 8.0: 9, 9.0: 8}[generation]
    own = {name: f"{name.partition('@')[0]}@{like}" for name in values if name.endswith(f"@{generation:g}")}
    return {**values, **{name: values[other] for name, other in own.items() if other in values}}


def calibrated_on(runs: Published, start: ErrorModel) -> ErrorModel:
    model = calibrated(
        runs.together, dataclasses.replace(start, repeat=REPEAT, precision=0.0, accelerator=0.0, program=0.0)
    )
    model = dataclasses.replace(
        model, layers_unmeasured=unmeasured(runs.by_source, runs.other_generation, runs.generations, model)
    )
    return dataclasses.replace(
        model,
        precision=added(runs.other_precision, model),
        accelerator=added(runs.other_accelerator, model),
        program=added(runs.other_program, model),
    )


def memory_error(runs: Sequence[PublishedRun], reference: Path) -> float:
    """Return what half of the errors of peak memory are below, where constants are fitted without the source."""
    rows, _ = published_memory.published_rows([run for run in runs if published_memory.in_bars(run)])
    everything = [*rows, *published_memory.measured_rows(reference)]
    errors = published_memory.left_out_errors(everything, lambda row: row.source)[: len(rows)]
    evidence = Evidence(
        errors=np.abs(np.log1p(errors)), groups=tuple(row.source for row in rows), features={}, known=np.zeros(0)
    )
    order = np.argsort(evidence.errors)
    return float(evidence.errors[order][np.searchsorted(np.cumsum(evidence.mixed_weights[order]), 0.5)])


def met(shares: tuple[float, float]) -> bool:
    return all(low <= share <= high for share, (low, high) in zip(shares, LIMITS, strict=True))


def lines_of(title: str, evidence: Evidence, model: ErrorModel) -> tuple[list[str], bool]:
    """Return a table of shares inside p50 and p90, and whether those of all runs keep to the limits."""
    inside, halves = evidence.inside(model), evidence.halves(model)
    every = (float(inside[0].mean()), float(inside[1].mean()))
    lines = [f"## {title}", "", "| runs | rows | p50 stated | inside p50 | inside p90 |", "|---|---|---|---|---|"]
    labels = np.array(evidence.groups)
    for name, count in sorted(Counter(evidence.groups).items(), key=lambda item: (-item[1], item[0])):
        rows = labels == name
        stated = model.of(float(np.median(halves[rows]))).p50
        lines.append(
            f"| {name} | {count} | {stated:.1%} | {inside[0][rows].mean():.0%} | {inside[1][rows].mean():.0%} |"
        )
    grouped = [float(evidence.weights @ each) for each in inside]
    verdict = "met" if met(every) else "MISSED"
    return [
        *lines,
        "",
        f"All runs: {every[0]:.1%} inside p50, {every[1]:.1%} inside p90: {verdict} (45 to 55 and 87 to 93 %). "
        f"Mean of the sources: {grouped[0]:.1%} and {grouped[1]:.1%}.",
        "",
    ], met(every)


_SOURCES = {
    "layers": "layers of an accelerator with runs of it, in their precision",
    "layers_unmeasured": "the generation of V100, A100 and H100 that is predicted worst by constants of another one",
    "precision": "the worse of fp16 and bf16 runs on A100, predicted without runs of theirs; beside layers",
    "accelerator": "the worse of A100-40 and A100-80, predicted without runs of theirs; beside layers",
    "program": "the worst of programs on A100 and H100, predicted without their runs on it; beside layers",
    "modules": "layers as modules of torch; beside layers: mean error of five models on an H100, each left out, "
    "simulator_accuracy/fit_modules.py",
    "exchange": "all-reduces of tensor parallelism; beside layers",
    "network": "transfers and gradient all-reduces; beside the link's own error",
    "overlap": "what of the exchange hides behind passes",
    "repeat": "two runs of the 15 jobs of Sailor's artifact differ by 5.0 % mean",
    "memory": "peak memory of published runs, whole sources left out",
    "memory_repeat": "two runs of the 15 jobs of Sailor's artifact differ by 4.0 % mean in peak memory",
    "tail": "lambda of Tukey's distribution",
}


def write(model: ErrorModel, runs: int) -> None:
    """Replace the table of calibrated errors."""
    out = io.StringIO()
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["name", "value", "source", "as_of"])
    for name, what in _SOURCES.items():
        source = (
            what
            if "repeat" in name or name in ("memory", "modules")
            else f"{what}: {runs} published runs, simulator_accuracy/prediction_errors.py"
        )
        rows.writerow([name, f"{getattr(model, name):.3g}", source, date.today().isoformat()])
    TABLE.write_text(out.getvalue(), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAILOR_CLOUD_REFERENCE") or CHECKOUT.parent / "shared" / "reference"
    parser.add_argument("--reference", type=Path, default=Path(default))
    parser.add_argument("--write", action="store_true", help="calibrate, and write the table of errors")
    parser.add_argument("--results", type=Path, help="write the report to this file as well")
    chosen = parser.parse_args()
    path = chosen.reference / "published_throughput.csv"
    if not path.is_file():
        print(f"SKIPPED: no {path}; name the folder with --reference or SAILOR_CLOUD_REFERENCE")
        return 0
    started = time.process_time()
    known = profiles.load()
    runs, model = published(path, known), known.errors
    if chosen.write:
        memory = memory_error(read_published(path)[0], chosen.reference)
        found = dataclasses.replace(calibrated_on(runs, model), memory=memory, memory_repeat=MEMORY_REPEAT)
        write(found, len(runs.by_source.groups))
        model = profiles.load().errors
    lines, kept = judged(runs, model)
    spent = f"{time.process_time() - started:.0f} s of CPU time"
    where = f"commit {commit()}, {os.cpu_count()} cores {platform.machine()}"
    lines.append(f"`python benchmarks/simulator_accuracy/prediction_errors.py`, {spent}, {where}.")
    print("\n".join(lines))
    if chosen.results:
        chosen.results.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if kept else 1


def judged(runs: Published, model: ErrorModel) -> tuple[list[str], bool]:
    """Return the report on a model, and whether both kinds of left-out runs keep to the limits."""
    lines, verdicts = ["# Errors of predictions", ""], []
    lines += [
        "Half of the published runs of other programs should fall inside the first ± that the product states, nine in",
        "ten inside the second. This counts runs whose source or model was left out of the fit of the simulator's",
        "constants. The ± is calibrated on all of these rows; the last line shows a calibration without each source.",
        "",
    ]
    lines += [f"- {name} {getattr(model, name):.3g}: {what}" for name, what in _SOURCES.items()] + [""]
    for title, evidence in (("Whole sources left out", runs.by_source), ("Whole models left out", runs.by_model)):
        table, kept = lines_of(title, evidence, model)
        lines += table
        verdicts.append(kept)
    shares = [float(each.mean()) for each in _calibrated_without(runs, model)]
    lines += [
        f"Each source under a model calibrated on the other sources: {shares[0]:.1%} of all runs inside p50, "
        f"{shares[1]:.1%} inside p90.",
        "",
    ]
    return lines, all(verdicts)


def _calibrated_without(runs: Published, model: ErrorModel) -> tuple[Floats, Floats]:
    """Return which runs are inside p50 and p90 of a model that was calibrated without their source."""
    found = np.zeros((2, len(runs.by_source.errors)))
    names = np.array(runs.by_source.groups)
    for name in sorted(set(runs.by_source.groups)):
        rows = names == name
        others = taken(runs.by_source, ~rows).joined(taken(runs.by_model, ~rows))
        found[:, rows] = taken(runs.by_source, rows).inside(calibrated(others, model))
    return found[0], found[1]


if __name__ == "__main__":
    sys.exit(main())
