"""Fits what layers take as modules of torch on iterations that our own runtime measured, with whole models left out.

python benchmarks/simulator_accuracy/fit_modules.py [--measured FILE]

Every prediction is the product's. The common constants of kernels stay as they are; see fit_kernels.py. Gradients are
added up as 12 bytes per parameter and microbatch: a sum is read and written, a gradient read.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

import numpy as np
from published import read_published
from published_time import Case, cases_of, in_bars, predict
from scipy.optimize import least_squares

from sailor_cloud.simulator import engine_named
from sailor_cloud.workload import TorchModules, profiles

MEASURED = Path(__file__).resolve().parents[1] / "results" / "gpu_h100.csv"
# Where a constant is expected, and how far off in its logarithm. A large product reached 0.81 of the peak there, and
# 0.605 in published runs; published figures of attention kernels on H100 are at 0.35 of it. An optimizer step reads
# and writes five values of four bytes and one of two; its norm, clipping and zeroing come on top.
PRIORS = {
    "launch_factor": (1.5, 0.5),
    "layer_norm_passes": (6.0, 0.4),
    "rms_norm_passes": (18.0, 0.4),
    "logit_bytes": (60.0, 0.5),
    "update_bytes": (60.0, 0.3),
    "sum_bytes": (12.0, 0.05),
    "product_factor": (0.75, 0.1),
    "attention_factor": (0.5, 0.3),
}
# A typical error of a prediction, and the weight of the priors.
_TYPICAL, _PRIOR_WEIGHT = 0.05, 0.5


def logarithms(cases: list[Case], found: np.ndarray) -> np.ndarray:
    """Return the logarithms of predicted tokens/s under other constants."""
    modules = TorchModules(**dict(zip(PRIORS, np.exp(found).tolist(), strict=True)))
    engine = dataclasses.replace(engine_named("sailor"), modules=modules)
    own = [dataclasses.replace(engine, attention=case.scenario.engine.attention) for case in cases]
    return np.log([predict(case, engine=each).tokens_per_s for case, each in zip(cases, own, strict=True)])


def fit(cases: list[Case]) -> np.ndarray:
    """Return the logarithms of the constants that fit best, by robust errors and priors."""
    measured = np.log([case.run.tokens_per_s_per_device for case in cases])
    expected = np.log([value for value, _ in PRIORS.values()])
    deviation = np.array([deviation for _, deviation in PRIORS.values()])

    def errors(found: np.ndarray) -> np.ndarray:
        raw = (logarithms(cases, found) - measured) / _TYPICAL
        robust = np.sign(raw) * np.sqrt(2.0 * (np.sqrt(1.0 + raw**2) - 1.0))
        return np.concatenate([robust, _PRIOR_WEIGHT * (found - expected) / deviation])

    return np.asarray(least_squares(errors, expected, diff_step=1e-3).x)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, default=MEASURED)
    runs = [run for run in read_published(parser.parse_args().measured)[0] if in_bars(run)]
    cases = list(cases_of(runs, profiles.load())[0])
    measured = np.array([case.run.tokens_per_s_per_device for case in cases], dtype=float)
    shipped = np.array([predict(case).tokens_per_s for case in cases]) / measured - 1.0
    found = fit(cases)
    print("fitted:", {name: float(f"{value:.3g}") for name, value in zip(PRIORS, np.exp(found), strict=True)})
    inside = np.exp(logarithms(cases, found)) / measured - 1.0
    outside = np.zeros(len(cases))
    for model in {case.run.decoder.name for case in cases}:
        left = [number for number, case in enumerate(cases) if case.run.decoder.name == model]
        others = fit([case for case in cases if case.run.decoder.name != model])
        outside[left] = np.exp(logarithms([cases[number] for number in left], others)) / measured[left] - 1.0
    print("| run | measured tokens/s | shipped | fitted | model left out |\n|---|---|---|---|---|")
    for case, tokens, *off in zip(cases, measured, shipped, inside, outside, strict=True):
        print(f"| {case.run.id} | {tokens:,.0f} | " + " | ".join(f"{each:+.1%}" for each in off) + " |")
    means = " | ".join(f"{np.abs(each).mean():.1%}" for each in (shipped, inside, outside))
    medians = " | ".join(f"{np.median(np.abs(each)):.1%}" for each in (shipped, inside, outside))
    print(f"| mean error | | {means} |\n| median error | | {medians} |")


if __name__ == "__main__":
    main()
