from __future__ import annotations

import json
from pathlib import Path

import pytest

from factories.called import called

JOB = """
name: tiny
model: {preset: sailor-opt-350}
training: {global_batch_size: 8, sequence_length: 512, steps: 400}
goal: minimize-cost
constraints: {budget_usd: 500}
resources:
  - {provider: gcp, zones: [us-central1-a], markets: [spot, on-demand], accelerators: {V100-16: 1}}
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    (tmp_path / "job.yaml").write_text(JOB)
    for zone, data in (("a", [1, 1, 0, 1] * 40), ("b", [0, 1, 1, 0] * 40)):
        (tmp_path / f"{zone}.json").write_text(json.dumps({"metadata": {"gap_seconds": 600}, "data": data}))
    return ["replay", str(tmp_path), str(tmp_path / "job.yaml"), "--as-of", "2026-08-10"]


def test_policies_on_recorded_availability_are_printed_as_json(files: list[str]) -> None:
    answer = called(*files, "--deadline", "6h", "--json")
    assert answer.returncode == 0, answer.stderr
    rows = json.loads(answer.stdout)
    assert {row["policy"] for row in rows} >= {"bounded-wait", "uniform-progress", "greedy", "offline optimum"}
    assert all(row["missed"] == 0 and row["share"] >= rows[-1]["share"] for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "has no deadline"),
        (["--deadline", "soon"], "is not a duration"),
        (["--every", "0h"], "must be more than 0"),
    ],
)
def test_missing_and_wrong_parts_are_reported(files: list[str], options: list[str], message: str) -> None:
    answer = called(*files, *options)
    assert answer.returncode == 2
    assert message in answer.stderr
