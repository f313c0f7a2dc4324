"""What ships is fitted here: no file holds tables of Sailor's artifact."""

from __future__ import annotations

import json
import os
import re
from datetime import date
from pathlib import Path

import pytest

from factories.sailor_artifact import write_artifact
from sailor_cloud import resources
from sailor_cloud.interchange import import_artifact
from sailor_cloud.model.offer import Precision

SHIPPED = resources.data_root() / "compute_profiles"
CHECKOUT = Path(__file__).parents[2]
# A figure with this many digits is some measurement's own; rounder ones (sizes, counts) occur anywhere.
DIGITS = 4


def figures(folder: Path) -> set[str]:
    """Every long number in the text files of a folder, to five significant digits."""
    found = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".json", ".csv"}:
            for text in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", path.read_text(encoding="utf-8")):
                value = f"{float(text):.5g}"
                if len(value.split("e")[0].replace(".", "").strip("-0")) >= DIGITS:
                    found.add(value)
    return found


def layer_tables(artifact: Path) -> list[set[str]]:
    """The long figures of each [model][gpu][microbatch size][tp] table of layer times, layers 0 and 1."""
    times = json.loads((artifact / "simulator_profiles.json").read_text(encoding="utf-8"))
    tables = []
    for by_gpu in times.values():
        for by_size in by_gpu.values():
            for by_tp in by_size.values():
                for layers in by_tp.values():
                    values = [f"{float(value):.5g}" for layer in ("0", "1") for value in layers[layer][:2]]
                    tables.append({v for v in values if len(v.split("e")[0].replace(".", "").strip("-0")) >= DIGITS})
    return [table for table in tables if table]


def test_the_check_notices_tables_that_were_carried_over(tmp_path: Path) -> None:
    source = write_artifact(tmp_path / "artifact")
    import_artifact(source, tmp_path / "out", precision=Precision.FP32, as_of=date(2026, 1, 2))
    ours = figures(tmp_path / "out" / "compute_profiles")
    assert any(table <= ours for table in layer_tables(source))


def test_shipped_tables_of_measured_layers_are_of_our_own_measurements() -> None:
    for path in SHIPPED.glob("*.csv"):
        assert "sailor-" not in path.read_text(encoding="utf-8").split("\n", 1)[0]
        if path.name not in {"stacks.csv", "local_machine.csv", "kernels.csv", "prediction_errors.csv"}:
            assert "timed on one core" in path.with_suffix(".json").read_text(encoding="utf-8")
            models = {line.split(",")[0] for line in path.read_text(encoding="utf-8").splitlines()[1:]}
            assert not [model for model in models if model.startswith("sailor-")]


def test_no_table_of_the_artifact_is_among_the_shipped_figures() -> None:
    default = CHECKOUT.parent / "shared" / "reference"
    artifact = Path(os.environ.get("SAILOR_CLOUD_REFERENCE") or default) / "sailor-artifact"
    if not artifact.is_dir():
        pytest.skip("needs Sailor's artifact; name its folder with SAILOR_CLOUD_REFERENCE")
    ours = figures(SHIPPED)
    assert [table for table in layer_tables(artifact) if table <= ours] == []
