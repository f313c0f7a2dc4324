"""A model of the user's own goes from the job file to its trained weights, checked against one process."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from factories.runs import sailor

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("lifecycle")]

JOB = """
name: mine
model: {module: "mine.model:build_with_adapters", model_type: gpt2, vocab_size: 64, hidden_size: 24,
        num_hidden_layers: 4, num_attention_heads: 6, max_position_embeddings: 16}
setup: test -f mine/model.py && test -n "$VIRTUAL_ENV" && echo set up
data: {source: synthetic}
training: {global_batch_size: 4, sequence_length: 16, steps: 5, precision: fp32}
constraints: {budget_usd: 1.0, deadline: 10m}
resources: [{provider: local, zones: [local-a], markets: [on-demand], accelerators: {CPU-fast: 1}}]
"""


def test_adapters_with_frozen_weights_train_as_in_one_process(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    shutil.copy(Path(__file__).parents[1] / "factories" / "layered_module.py", tmp_path / "mine" / "model.py")
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    done = sailor(tmp_path, "up", str(job), "--yes", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "completed"
    assert "first 5 steps equal one process in float64" in done.stderr
    [log] = tmp_path.glob("**/runs/*/**/g1-rank0.log")
    assert "set up" in log.read_text().splitlines(), "where the code lies, before anything else"

    # The planner asked the module itself, which has other layers than these sizes.
    job.write_text(JOB.replace("num_hidden_layers: 4", "num_hidden_layers: 3"))
    refused = sailor(tmp_path, "up", str(job), "--yes")
    assert refused.returncode == 2
    assert refused.stderr.strip().splitlines()[-1] == (
        f"error: {job}: model.module: mine.model:build_with_adapters has 6 layers, its sizes say 5: embedding, "
        "3 blocks, head"
    )
