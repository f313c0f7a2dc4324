"""The accuracy benchmark away from its reference data."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks" / "simulator_accuracy"


@pytest.mark.parametrize("script", ["run.py", "fit_profiles.py", "prediction_errors.py"])
def test_a_benchmark_without_its_reference_says_that_it_was_skipped(script: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / script, "--reference", tmp_path], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "SKIPPED: no " in done.stdout
    assert "SAILOR_CLOUD_REFERENCE" in done.stdout
