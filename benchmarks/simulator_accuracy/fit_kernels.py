"""Fits the constants of kernels and of engines on published runs, with whole sources and whole models left out.

python benchmarks/simulator_accuracy/fit_kernels.py [--reference DIR] [--steps N] [--write] [--results FILE]

Every prediction is the product's: layout, stages, links, replay. Fits are Gauss-Newton steps on the logarithms of the
constants, with robust errors, each source weighted alike, and constants held weakly to priors from data sheets and
link tests. A group left out is fitted on the others with the derivatives found for all of them. Ends with 1 where a bar
is missed, and prints SKIPPED without published_throughput.csv.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import io
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from published import PublishedRun, read_published
from published_time import Case, Timed, cases_of, in_bars, predict, report, sources, starved, table
from scipy.optimize import least_squares

from sailor_cloud.simulator import Engine, engine_named
from sailor_cloud.workload import ComputeProfiles, kernels, profiles
from sailor_cloud.workload.kernels import Constants, Generation

CHECKOUT = Path(__file__).resolve().parents[2]
FILE = CHECKOUT / "compute_profiles" / kernels.FILE
AS_OF = "2026-11-23"
SOURCES, MODELS = "Whole sources left out", "Whole models left out"
GENERAL = "Whole sources left out, engines that only they show with general constants"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Where a constant is expected, how far off in its logarithm, and its limits."""

    value: float
    deviation: float
    least: float
    most: float


def _prior(value: float, deviation: float, least: float, most: float) -> Prior:
    return Prior(value=value, deviation=deviation, least=least, most=most)


# A name with @ is a constant of one compute capability, one with a dot of an engine. The collective's priors are
# published_collectives.csv: 14 steps of 8 A100 take 100 us and 76 % of NVLink.
PRIORS: dict[str, Prior] = {
    "matmul_share@7": _prior(0.6, 0.05, 0.3, 0.95),
    "matmul_share@8": _prior(0.7, 0.15, 0.3, 0.95),
    "matmul_share@9": _prior(0.66, 0.15, 0.3, 0.95),
    "flash_share@8": _prior(0.42, 0.25, 0.1, 0.9),
    "flash_share@9": _prior(0.3, 0.25, 0.1, 0.9),
    "partial_wave": _prior(0.5, 0.3, 0.05, 1.0),
    "matmul_passes": _prior(1.5, 0.5, 0.2, 12),
    "score_passes": _prior(10, 0.15, 2, 60),
    "eager_passes": _prior(8.3, 0.5, 2.5, 60),
    "fused_passes": _prior(1.8, 0.15, 0.5, 2.2),
    "logit_bytes": _prior(6, 0.5, 1, 80),
    "update_bytes": _prior(30, 0.3, 6, 120),
    "launch_s": _prior(1.1e-3, 0.5, 1e-4, 6e-3),
    "launch_tensor_parallel_s": _prior(1e-3, 0.5, 5e-5, 6e-3),
    "link_share": _prior(0.76, 0.1, 0.2, 1.0),
    "step_s": _prior(7e-6, 0.3, 1e-6, 1e-4),
    "nanotron.launch_factor": _prior(2.0, 0.4, 0.5, 8),
    "nanotron.spread_launch_s": _prior(2.3e-3, 0.5, 1e-4, 2e-2),
    "nanotron.exposed": _prior(0.8, 0.4, 0.1, 1.2),
    "nanotron.idle_s": _prior(0.05, 0.5, 1e-3, 0.3),
    "deepspeed.collective_s": _prior(1e-3, 0.5, 1e-4, 5e-3),
    "fsdp.shard_exposed": _prior(0.1, 0.5, 0.01, 1.0),
}
NAMES = tuple(PRIORS)
# Errors beyond this count linearly; a typical error; the weight of the priors and of the starved rows.
_ROBUST, _TYPICAL, _PRIOR_WEIGHT, _STARVED_WEIGHT = 0.1, 0.03, 0.25, 0.5
# No step changes a constant by more than this in its logarithm.
_STEP = 0.5

Values = Mapping[str, float]


# Blackwell runs the attention kernels of Hopper, at their rate (989.4 of 2250 TFLOP/s).
_SAME_KERNEL = {10.0: 989.4 / 2250.0}


def shipped(known: ComputeProfiles) -> dict[str, float]:
    """Return the constants as they are now."""
    values = {}
    for name in NAMES:
        if "." in name:
            engine, field = name.split(".")
            values[name] = float(getattr(engine_named(engine), field))
        else:
            field, _, capability = name.partition("@")
            of = next(
                each for each in known.generations if not capability or each.compute_capability == int(capability)
            )
            values[name] = float(getattr(of.constants, field))
    return values


def with_values(known: ComputeProfiles, values: Values) -> ComputeProfiles:
    """Return profiles with other constants of kernels."""
    generations = []
    for each in known.generations:
        changes = {field.name: _of_generation(field.name, each, values) for field in dataclasses.fields(Constants)}
        generations.append(dataclasses.replace(each, constants=Constants(**changes)))
    return dataclasses.replace(known, generations=tuple(generations))


def _of_generation(field: str, generation: Generation, values: Values) -> float:
    """Return a constant: the common one, else that of the newest generation that has one and is not newer."""
    if field in values:
        return values[field]
    own = {float(name.partition("@")[2]): value for name, value in values.items() if name.startswith(f"{field}@")}
    older = [capability for capability in own if capability <= generation.compute_capability]
    factor = _SAME_KERNEL.get(generation.compute_capability, 1.0) if field == "flash_share" else 1.0
    if not own:
        return float(getattr(generation.constants, field))
    return own[max(older, default=min(own))] * factor


def with_engine(engine: Engine, values: Values) -> Engine:
    """Return an engine with other constants."""
    changes = {name.split(".")[1]: value for name, value in values.items() if name.startswith(f"{engine.name}.")}
    return dataclasses.replace(engine, **changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Cases, the logarithms of what was measured, weights, and profiles to change the constants of."""

    cases: tuple[Case, ...]
    measured: np.ndarray
    weights: np.ndarray
    known: ComputeProfiles

    @classmethod
    def of(cls, cases: Sequence[Case], known: ComputeProfiles) -> Fit:
        names = [
            "starved" if starved(case.run) else name
            for case, name in zip(cases, sources([case.run for case in cases]), strict=True)
        ]
        counts = Counter(names)
        weights = [counts[name] ** -0.5 * (_STARVED_WEIGHT if name == "starved" else 1.0) for name in names]
        measured = [case.run.tokens_per_s_per_device or 0.0 for case in cases]
        return cls(cases=tuple(cases), measured=np.log(measured), weights=np.array(weights), known=known)

    def timed(self, values: Values, rows: Sequence[int]) -> list[Timed]:
        changed = with_values(self.known, values)
        return [
            predict(self.cases[row], profiles=changed, engine=with_engine(self.cases[row].scenario.engine, values))
            for row in rows
        ]

    def predicted(self, values: Values) -> np.ndarray:
        """Return the logarithms of all predictions."""
        return np.log([each.tokens_per_s for each in self.timed(values, range(len(self.cases)))])

    def derivatives(self, values: Values, at: np.ndarray) -> np.ndarray:
        """Return the derivatives of predictions by the logarithms of the constants, shape [cases, constants]."""
        slopes = np.zeros((len(at), len(NAMES)))
        for column, name in enumerate(NAMES):
            changed = {**values, name: values[name] * 1.02}
            rows = self._changed_rows(values, changed)
            found = np.log([each.tokens_per_s for each in self.timed(changed, rows)])
            slopes[rows, column] = (found - at[rows]) / np.log(1.02)
        return slopes

    def _changed_rows(self, values: Values, changed: Values) -> list[int]:
        """Return the rows whose accelerator or engine has other constants after a change."""
        before, after = with_values(self.known, values).generations, with_values(self.known, changed).generations
        rows = []
        for row, case in enumerate(self.cases):
            engine = case.scenario.engine
            part = case.scenario.catalog.accelerator(case.run.accelerator)
            same = kernels.generation_of(part, before) == kernels.generation_of(part, after)
            if not same or with_engine(engine, values) != with_engine(engine, changed):
                rows.append(row)
        return rows

    def step(self, values: Values, at: np.ndarray, slopes: np.ndarray, rows: np.ndarray) -> dict[str, float]:
        """Return better constants by one step on some rows."""
        start = np.log([values[name] for name in NAMES])
        expected = np.log([PRIORS[name].value for name in NAMES])
        deviation = np.array([PRIORS[name].deviation for name in NAMES])
        least = np.maximum(np.log([PRIORS[name].least for name in NAMES]), start - _STEP)
        most = np.maximum(np.minimum(np.log([PRIORS[name].most for name in NAMES]), start + _STEP), least + 1e-6)
        rest, slope, weight = (at - self.measured)[rows], slopes[rows], self.weights[rows] / _TYPICAL

        def errors(found: np.ndarray) -> np.ndarray:
            raw = rest + slope @ (found - start)
            robust = _ROBUST * np.sign(raw) * np.sqrt(2.0 * (np.sqrt(1.0 + (raw / _ROBUST) ** 2) - 1.0))
            return np.concatenate([weight * robust, _PRIOR_WEIGHT * (found - expected) / deviation])

        solved = least_squares(errors, np.clip(start, least, most), bounds=(least, most))
        return dict(zip(NAMES, np.exp(solved.x).tolist(), strict=True))

    def left_out(
        self, values: Values, at: np.ndarray, slopes: np.ndarray, groups: Sequence[str], *, general: bool = False
    ) -> list[Timed]:
        """Predict each group by constants fitted on the others; `general`: engines of its own take common constants."""
        found: dict[int, Timed] = {}
        labels = np.array(groups)
        for group in sorted(set(groups)):
            kept = labels != group
            fitted = self.step(values, at, slopes, kept)
            rows = np.flatnonzero(~kept)
            if general:
                fitted = _general(fitted, {self.cases[row].scenario.engine.name for row in np.flatnonzero(kept)})
            found.update(zip(rows.tolist(), self.timed(fitted, rows.tolist()), strict=True))
        return [found[row] for row in range(len(self.cases))]


def _general(values: Values, seen: set[str]) -> dict[str, float]:
    """Return constants where engines that were not seen have those of an engine that nobody describes."""
    plain = Engine()
    return {
        name: value if "." not in name or name.split(".")[0] in seen else float(getattr(plain, name.split(".")[1]))
        for name, value in values.items()
    }


def models(runs: Sequence[PublishedRun]) -> list[str]:
    return [run.decoder.name for run in runs]


def tables(fit: Fit, values: Values) -> list[tuple[str, dict[str, Any]]]:
    """Return the figures in sample and with sources and models left out."""
    at = fit.predicted(values)
    slopes = fit.derivatives(values, at)
    runs = [case.run for case in fit.cases]
    every = range(len(runs))
    return [
        ("In sample", table(fit.timed(values, every))),
        (SOURCES, table(fit.left_out(values, at, slopes, sources(runs)))),
        (MODELS, table(fit.left_out(values, at, slopes, models(runs)))),
        (
            GENERAL,
            table(fit.left_out(values, at, slopes, sources(runs), general=True)),
        ),
    ]


# Of which table, which figure, and its limit; Spearman's correlation is a least value, the others most ones.
BARS = (
    (SOURCES, "mean_of_means", 0.10),
    (MODELS, "mean_of_means", 0.09),
    (GENERAL, "mean_of_means", 0.12),
    *(
        (title, name, limit)
        for title in (SOURCES, MODELS)
        for name, limit in (
            ("mean_bias", 0.04),
            ("mean_absolute_bias", 0.06),
            ("spearman", 0.78),
            ("spearman_large", 0.84),
        )
    ),
)


def bars(found: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[list[str], bool]:
    """Return a table of the bars, and whether all are met; the median of the starved rows is one of them.

    A table may lack the rows that a bar is about.
    """
    by_title = dict(found)
    rows = [(title, name, by_title[title][name], limit) for title, name, limit in BARS]
    rows += [(SOURCES, "starved, median", (by_title[SOURCES]["starved"] or {}).get("median"), 0.25)]
    lines, all_met = ["| bar | figure | limit | |", "|---|---|---|---|"], True
    for title, name, value, limit in rows:
        if value is None:
            lines.append(f"| {title}: {name} | no rows | {limit} | |")
            continue
        met = value >= limit if "spearman" in name else abs(value) <= limit
        all_met = all_met and met
        lines.append(f"| {title}: {name} | {value:.3f} | {limit} | {'met' if met else 'MISSED'} |")
    return [*lines, ""], all_met


def write(values: Values, known: ComputeProfiles) -> None:
    """Replace the table of generations."""
    out = io.StringIO()
    names = [field.name for field in dataclasses.fields(Constants)]
    rows = csv.writer(out, lineterminator="\n")
    rows.writerow(["compute_capability", *names, "accelerators", "precisions", "programs", "source", "as_of"])
    for each in with_values(known, values).generations:
        constants = [f"{getattr(each.constants, name):.3g}" for name in names]
        seen = (" ".join(each.accelerators), " ".join(each.precisions), " ".join(each.programs))
        rows.writerow([f"{each.compute_capability:g}", *constants, *seen, each.source, AS_OF])
    FILE.write_text(out.getvalue(), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAILOR_CLOUD_REFERENCE") or CHECKOUT.parent / "shared" / "reference"
    parser.add_argument("--reference", type=Path, default=Path(default))
    parser.add_argument("--steps", type=int, default=0, help="steps to take from the constants as they are")
    parser.add_argument("--write", action="store_true", help="write the constants of kernels; engines' are printed")
    parser.add_argument("--results", type=Path, help="write the report to this file as well")
    chosen = parser.parse_args()
    path = chosen.reference / "published_throughput.csv"
    if not path.is_file():
        print(f"SKIPPED: no {path}; name the folder with --reference or SAILOR_CLOUD_REFERENCE")
        return 0
    started = time.monotonic()
    known = profiles.load()
    cases, _ = cases_of([run for run in read_published(path)[0] if in_bars(run)], known)
    fit, values = Fit.of(cases, known), shipped(known)
    for _ in range(chosen.steps):
        at = fit.predicted(values)
        values = fit.step(values, at, fit.derivatives(values, at), np.ones(len(cases), dtype=bool))
        print({name: float(f"{value:.3g}") for name, value in values.items()}, file=sys.stderr, flush=True)
    if chosen.write:
        write(values, known)
    lines = ["# Constants of kernels", ""]
    lines += [f"- {name}: {value:.3g}" for name, value in values.items()] + [""]
    found = tables(fit, values)
    verdicts, met = bars(found)
    lines += verdicts
    for title, figures in found:
        lines += report(title, figures)
    lines.append(f"`python benchmarks/simulator_accuracy/fit_kernels.py`, {time.monotonic() - started:.0f} s.")
    print("\n".join(lines))
    if chosen.results:
        chosen.results.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
