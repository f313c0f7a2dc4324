"""`sailor-cloud profile`: what it measures, what it writes, and what it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from factories.called import called
from factories.commands import sailor

JOB = """
name: small
model: {model_type: gpt2, vocab_size: 64, hidden_size: 24, num_hidden_layers: 4, num_attention_heads: 6,
        max_position_embeddings: 16}
training: {global_batch_size: 4, sequence_length: 16, steps: 10}
resources:
  - {provider: local, zones: [local-a], accelerators: {CPU-fast: 2, CPU-slow: 1}}
"""


@pytest.fixture
def job(tmp_path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--accelerator", "A100-40"], "the job does not use A100-40; it uses CPU-fast, CPU-slow"),
        (["--microbatch-sizes", "8"], "microbatch size 8 is larger than the job's global batch of 4"),
        (["--microbatch-sizes", "2,x"], "'2,x' is not a list of positive numbers"),
        (["--tp", "5"], "tp 5 does not divide the 6 attention heads"),
        (["--link-to", "10.0.0.1:29500"], "--link-to, --link-end and --link-zones go together"),
        (["--link-to", "10.0.0.1", "--link-end", "0", "--link-zones", "a,b"], "is not ADDRESS:PORT"),
    ],
)
def test_an_impossible_measurement_is_refused_with_the_reason(job, options, message):
    done = called("profile", str(job), *options)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_profile_is_measured_once_and_read_by_plan_and_simulate(job, tmp_path):
    folder = tmp_path / "measured"
    first = sailor("profile", str(job), "-o", str(folder), "--microbatch-sizes", "2", "--as-of", "2026-11-21")
    assert first.returncode == 0, first.stderr
    assert first.stderr.splitlines()[-1] == "3/3 link"
    assert "sailor-cloud plan" in first.stdout
    # Counted while the layers ran, beside what the planner's formula says of them.
    assert first.stdout.count(" against the formula, ") == 2
    rows, slow = _table(folder / "CPU-fast.csv"), _table(folder / "CPU-slow.csv")
    assert [(row["layer_kind"], row["microbatch_size"], row["tp"]) for row in rows] == [
        ("block", "2", "1"),
        ("embedding", "2", "1"),
        ("head", "2", "1"),
    ]
    for row, twice in zip(rows, slow, strict=True):
        assert float(row["forward_s"]) > 0
        assert float(twice["backward_s"]) == pytest.approx(2 * float(row["backward_s"]), rel=1e-6)
        assert int(row["activation_bytes"]) > 0
    [peak] = _table(folder / "memory.csv")
    assert int(peak["peak_bytes"]) > 16 * 4 * 7 * 24**2

    again = called("profile", str(job), "-o", str(folder), "--microbatch-sizes", "2", "--as-of", "2026-11-21", "--json")
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    measured = {layer["layer_kind"]: layer["forward_s"] for layer in json.loads(again.stdout)["layers"]}
    assert measured == pytest.approx({row["layer_kind"]: float(row["forward_s"]) for row in rows})

    plan = tmp_path / "plan.json"
    data = ["--profiles", str(folder), "--network", str(folder)]
    assert called("plan", str(job), *data, "--as-of", "2026-11-21", "-o", str(plan)).returncode == 0
    with_profile = json.loads(called("simulate", str(plan), *data, "--json").stdout)
    without = json.loads(called("simulate", str(plan), "--json").stdout)
    assert {profile["sha256"] for profile in with_profile["compute_profiles"]}.isdisjoint(
        profile["sha256"] for profile in without["compute_profiles"]
    )
    assert with_profile["prediction"]["iteration_s_replay"] != without["prediction"]["iteration_s_replay"]


def _table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
