"""The calibration of errors, on synthetic ones of a known distribution."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sailor_cloud.workload import profiles
from sailor_cloud.workload.error_model import ErrorModel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks" / "simulator_accuracy"
TRUTH = dataclasses.replace(
    profiles.load().errors, layers=0.06, exchange=0.3, network=0.3, overlap=0.2, repeat=0.03, precision=0.0, tail=-0.1
)


@pytest.fixture(scope="module")
def calibration() -> Any:
    """Return the benchmark's module."""
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import prediction_errors

        yield prediction_errors
    finally:
        sys.path.remove(str(BENCHMARKS))


def synthetic(calibration: Any, model: ErrorModel, *, seed: int, factor: float = 1.0, runs: int = 3000) -> Any:
    """Return runs of random shares of time, whose errors are drawn from a model, `factor` times as large."""
    dice = np.random.default_rng(seed)
    compute, network, overlap = dice.uniform(0.2, 1.0, runs), dice.uniform(0.0, 0.8, runs), dice.uniform(0.0, 0.5, runs)
    exchange = compute * dice.uniform(0.0, 0.7, runs)
    shares = {"layers": compute, "exchange": exchange, "network": network, "overlap": overlap, "repeat": np.ones(runs)}
    evidence = calibration.Evidence(
        errors=np.zeros(runs),
        groups=tuple(f"source {number % 9}" for number in range(runs)),
        features={name: share**2 for name, share in shares.items()},
        known=(0.1 * network) ** 2,
    )
    drawn = [
        model.of(float(half)).ratio(float(probability))
        for half, probability in zip(evidence.halves(model), dice.uniform(1e-6, 1 - 1e-6, runs), strict=True)
    ]
    return dataclasses.replace(evidence, errors=np.log(drawn) * factor)


def test_a_calibrated_model_holds_on_other_runs_of_the_same_distribution(calibration: Any) -> None:
    found = calibration.calibrated(synthetic(calibration, TRUTH, seed=1), TRUTH)
    for name in calibration.PARTS:
        assert getattr(found, name) == pytest.approx(getattr(TRUTH, name), rel=0.3), name
    others = synthetic(calibration, TRUTH, seed=2)
    assert calibration.met(others.coverage(found))
    assert others.coverage(found) == pytest.approx((0.5, 0.9), abs=0.03)


@pytest.mark.parametrize("factor", [0.6, 1.5])
def test_errors_that_are_smaller_or_larger_than_stated_miss_the_limits(calibration: Any, factor: float) -> None:
    evidence = synthetic(calibration, TRUTH, seed=3, factor=factor)
    assert not calibration.met(evidence.coverage(TRUTH))
    lines, kept = calibration.lines_of("Synthetic", evidence, TRUTH)
    assert not kept
    assert any("MISSED" in line for line in lines)


def test_a_part_of_the_time_that_is_less_certain_widens_the_error_of_the_runs_that_spend_it(calibration: Any) -> None:
    evidence = synthetic(calibration, TRUTH, seed=4, runs=500)
    known, guessed = (evidence.halves(dataclasses.replace(TRUTH, network=value)) for value in (0.05, 0.5))
    shares = np.sqrt(evidence.features["network"])
    assert (guessed >= known).all()
    assert (guessed / known)[shares > 0.6].min() > 1.5
    assert (guessed / known)[shares < 0.05].max() < 1.2


def test_runs_of_generations_under_constants_of_another_decide_what_an_unmeasured_one_is_off_by(
    calibration: Any,
) -> None:
    evidence = synthetic(calibration, TRUTH, seed=5)
    evidence = dataclasses.replace(
        evidence, features={**evidence.features, "layers_unmeasured": 0.0 * evidence.features["layers"]}
    )
    generations = np.array([7.0 + number % 3 for number in range(len(evidence.errors))])
    same = calibration.unmeasured(evidence, evidence.errors, generations, TRUTH)
    worse = calibration.unmeasured(evidence, 3.0 * evidence.errors, generations, TRUTH)
    assert TRUTH.layers <= same < 2.5 * TRUTH.layers
    assert worse > 1.5 * same
