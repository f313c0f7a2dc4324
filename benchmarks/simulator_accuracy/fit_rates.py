"""Fits how fast Megatron-LM's products are on A100, on published runs of Megatron-LM, with whole sources left out.

python benchmarks/simulator_accuracy/fit_rates.py [--reference DIR]

megatron_runs.csv has the columns of unseen_runs.csv. Where the reference folder is there (default:
$SAILOR_CLOUD_REFERENCE, else ../shared/reference beside the checkout), Megatron-LM's runs of published_throughput.csv
count, too. A source counts as one, by its median, and all other constants stay as they are: the factor is the one at
which the mean of the sources' logarithms is 0.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from published import read_published
from published_time import Case, cases_of, in_bars, predict

from sailor_cloud.workload import profiles

CHECKOUT = Path(__file__).resolve().parents[2]
RUNS = Path(__file__).with_name("megatron_runs.csv")
FACTORS = (1.0, 0.95, 0.9, 0.85, 0.8)
_CAPABILITY = 8.0


def logarithm(case: Case, factor: float) -> float:
    """Return the logarithm of predicted over measured seconds with another factor of products."""
    engine = case.scenario.engine
    rates = tuple(
        dataclasses.replace(each, product_factor=factor) if each.compute_capability == _CAPABILITY else each
        for each in engine.rates
    )
    tokens = predict(case, engine=dataclasses.replace(engine, rates=rates)).tokens_per_s
    return float(np.log((case.run.tokens_per_s_per_device or 0.0) / tokens))


def zero(medians: Sequence[Sequence[float]]) -> float:
    """Return the factor at which the mean over sources is 0; each has one figure per factor."""
    means = np.mean(np.array(medians), axis=0)
    order = np.argsort(means)
    return float(np.interp(0.0, means[order], np.array(FACTORS)[order]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("SAILOR_CLOUD_REFERENCE") or CHECKOUT.parent / "shared" / "reference"
    parser.add_argument("--reference", type=Path, default=Path(default))
    more = parser.parse_args().reference / "published_throughput.csv"
    runs = [run for path in (RUNS, more) if path.is_file() for run in read_published(path)[0] if in_bars(run)]
    own = [run for run in runs if run.engine.rates and run.accelerator.startswith(("A100", "A800"))]
    by_source: dict[str, list[Case]] = defaultdict(list)
    for case in cases_of(own, profiles.load())[0]:
        by_source[case.run.source_name].append(case)
    medians = {
        name: [float(np.median([logarithm(case, factor) for case in cases])) for factor in FACTORS]
        for name, cases in by_source.items()
    }
    print("| source | rows | " + " | ".join(f"seconds at {factor:g}" for factor in FACTORS) + " | left out |")
    print("|" + "---|" * (len(FACTORS) + 3))
    for name, found in medians.items():
        others = [each for other, each in medians.items() if other != name]
        factor = zero(others)
        off = np.interp(factor, FACTORS[::-1], found[::-1])
        print(
            f"| {name} | {len(by_source[name])} | "
            + " | ".join(f"{np.expm1(each):+.1%}" for each in found)
            + f" | {factor:.3f}: {np.expm1(off):+.1%} |"
        )
    print(f"\nfitted on all: {zero(list(medians.values())):.3f}")


if __name__ == "__main__":
    main()
