"""An agent with real ranks: check, calibrate, train, checkpoint, die, continue."""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from factories.run_specs import PipelineShape
from factories.running_agent import TWO_RANKS, RunningAgent, is_gone, wait_until
from sailor_runtime.spec import CheckpointSpec

# One agent runs all of them, each as generations of its own, since an agent imports torch once for all its ranks.
pytestmark = [pytest.mark.timeout(400), pytest.mark.slow, pytest.mark.xdist_group("runtime run")]

ENDLESS = {"steps": 100_000, "schedule": "constant", "precision": "fp32"}


@dataclass
class Runs:
    """Runs of one agent; `generation` is the newest, and events are those from `first` on."""

    agent: RunningAgent
    folder: Path
    first: int
    generation: int

    def start(self, pipelines: Sequence[PipelineShape] = TWO_RANKS, **fields: Any) -> None:
        self.generation += 1
        checkpoints = str(self.folder / "checkpoints")
        self.agent.start(self.generation, pipelines, **{"checkpoint_directory": checkpoints, **fields})

    def command(self, name: str) -> None:
        self.agent.command(name, generation=self.generation, plan_hash=f"hash-{self.generation}")

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        return [event for event in self.agent.events(kind) if (event["generation"] or 0) >= self.first]

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.events(kind)) >= count, lambda: f"{count} {kind!r}: {self.events()}", 150.0)
        return self.events(kind)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    running = RunningAgent(tmp_path_factory.mktemp("agent") / "node-0", "", rank_module="sailor_runtime.training")
    yield running
    running.process.kill()
    running.process.wait()


@pytest.fixture
def runs(agent: RunningAgent, tmp_path: Path) -> Runs:
    newest = max((event["generation"] or 0 for event in agent.events()), default=0)
    return Runs(agent=agent, folder=tmp_path, first=newest + 1, generation=newest)


def test_a_generation_is_verified_calibrated_trained_and_checkpointed(runs):
    text = {"vocab_size": 256}
    runs.start(verify_steps=3, calibrate=True, model=text, training={"steps": 4, "precision": "fp32"})
    [stopped] = runs.wait_for("stopped")
    assert (stopped["reason"], stopped["step"]) == ("finished", 4), runs.events()
    [verified], [calibrated] = runs.events("verified"), runs.events("calibrated")
    assert verified["steps"] == 3
    assert 0 < verified["max_abs_difference"] <= verified["tolerance"] == 1e-10
    assert [rank["rank"] for rank in calibrated["ranks"]] == [0, 1]
    assert [len(rank["forward_s"]) for rank in calibrated["ranks"]] == [3, 3]
    assert all(seconds > 0 for rank in calibrated["ranks"] for seconds in rank["forward_s"] + rank["backward_s"])
    # Training begins again after the check: its first loss is that of the first values.
    steps = runs.events("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert steps[0]["loss"] == pytest.approx(5.545, abs=0.05)
    assert {"grad_norm", "tokens", "iteration_s", "compute_s", "transfer_s", "sync_s", "learning_rate"} <= set(steps[0])
    assert runs.events("checkpoint")[0]["path"].endswith("checkpoints/step-4")
    told = [
        json.loads(line)
        for line in (runs.agent.home / "metrics" / f"g{runs.generation}.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in told] == [1, 2, 3, 4]
    assert [line["loss"] for line in told] == [step["loss"] for step in steps]
    for rank in (rank for line in told for rank in line["ranks"]):
        assert all(rank[f"{part}_s"] >= 0 for part in ("compute", "transfer", "bubble", "sync"))
        assert rank["compute_s"] > 0
        assert rank["memory_peak_bytes"] > 0
    assert "sailor_step{" in (runs.agent.home / "metrics" / "metrics.prom").read_text()
    trace = json.loads((runs.agent.home / "metrics" / f"trace-g{runs.generation}-step3.json").read_text())
    passes = [event for event in trace["traceEvents"] if event["name"] in ("forward", "backward")]
    # Two ranks, two microbatches, there and back.
    assert len(passes) == 2 * 2 * 2
    order = [event["event"] for event in runs.events()]
    assert order.index("data") < order.index("verified") < order.index("calibrated") < order.index("step")


def test_a_large_models_plan_is_verified_with_a_narrow_copy(runs):
    wide = {"vocab_size": 2048, "hidden_size": 96, "ffn_size": 384}
    runs.start(verify_steps=2, verify_narrow=True, model=wide, training={"steps": 1, "precision": "fp32"})
    [stopped] = runs.wait_for("stopped")
    assert (stopped["reason"], stopped["step"]) == ("finished", 1), runs.events()
    [verified] = runs.events("verified")
    assert (verified["narrow"], verified["steps"]) == (True, 2)
    assert 0 < verified["max_abs_difference"] <= verified["tolerance"]
    # What is trained afterwards is the model itself.
    assert runs.events("step")[0]["loss"] == pytest.approx(math.log(2048), abs=0.1)


def test_after_a_killed_rank_the_next_generation_continues_from_the_checkpoint(runs):
    runs.start(training=ENDLESS)
    runs.wait_for("step", 3)
    # As a system that shuts down does; when to end is the agent's to say.
    for pid in runs.agent.all_pids():
        os.kill(pid, signal.SIGTERM)
    runs.wait_for("step", len(runs.events("step")) + 3)
    runs.command("checkpoint")
    [saved] = runs.wait_for("checkpoint")
    ranks = runs.agent.rank_pids()
    os.kill(ranks[1], signal.SIGKILL)
    [stopped] = runs.wait_for("stopped")
    assert stopped["reason"] == "failed"
    # Its neighbour may have died of the broken connection by then, and be told of first.
    assert 9 in [event.get("signal") for event in runs.events("rank_dead")]
    wait_until(lambda: all(is_gone(pid) for pid in ranks), "the ranks to be gone")
    one_pipeline = [(6, 2, [(0, 6, 1)])]
    runs.start(one_pipeline, training=ENDLESS)
    runs.wait_for("training", 2)
    assert runs.events("training")[1]["first_step"] == saved["step"]
    runs.wait_for("step", len(runs.events("step")) + 1)
    runs.command("stop")
    stopped = runs.wait_for("stopped", 2)[1]
    assert stopped["reason"] == "requested"
    assert runs.events("checkpoint")[-1]["step"] == stopped["step"] > saved["step"]
    assert runs.agent.rank_pids() == []


def test_a_loss_that_is_not_finite_stops_training_with_a_clear_message(runs):
    runs.start(training={**ENDLESS, "optimizer": "sgd", "learning_rate": 1e12, "warmup_steps": 0})
    [stopped] = runs.wait_for("stopped")
    assert stopped["reason"] == "failed"
    reason = runs.events("refused")[0]["reason"]
    assert "there is no checkpoint yet; lower the learning rate" in reason


def test_training_does_not_start_over_if_its_checkpoints_are_gone(runs):
    checkpoint = CheckpointSpec(directory=str(runs.folder / "checkpoints"), every_s=3600.0, keep=2, saved_step=40)
    runs.start([(12, 1, [(0, 6, 1)])], training=ENDLESS, checkpoint=checkpoint)
    runs.wait_for("stopped")
    assert "step 40 was saved in" in runs.events("refused")[0]["reason"]
    assert runs.events("rank_dead")[0]["exit_code"] == 2


def test_training_does_not_start_over_if_its_only_checkpoint_is_damaged(runs):
    folder = runs.folder / "checkpoints"
    (folder / "step-40").mkdir(parents=True)
    (folder / "latest").write_text("step-40")
    checkpoint = CheckpointSpec(directory=str(folder), every_s=3600.0, keep=2, saved_step=40)
    runs.start([(12, 1, [(0, 6, 1)])], training=ENDLESS, checkpoint=checkpoint)
    runs.wait_for("stopped")
    [refused] = runs.events("refused")
    assert f"no checkpoint in {folder} can be read: {folder}/step-40: " in refused["reason"]
    assert "restore these files and start the job with this place as checkpoint.to" in refused["reason"]
    assert runs.events("checkpoint_damaged") == []


@pytest.mark.parametrize("content", [None, "", "foo", "step-1"])
def test_training_does_not_start_over_if_latest_does_not_name_what_was_saved(runs, content):
    shape, folder = [(12, 1, [(0, 6, 1)])], runs.folder / "checkpoints"
    runs.start(shape, training={"steps": 2, "precision": "fp32"})
    runs.wait_for("stopped")
    if content is None:
        (folder / "latest").unlink()
    else:
        (folder / "latest").write_text(content)
    runs.start(shape, training={"steps": 3, "precision": "fp32"})
    runs.wait_for("stopped", 2)
    [damaged] = runs.events("checkpoint_damaged")
    assert damaged["reason"].startswith(f"{folder}/latest ")
    assert [event["first_step"] for event in runs.events("training")] == [0, 2]
    assert (folder / "latest").read_text() == "step-3"


def test_training_stops_if_nothing_of_what_latest_tells_of_is_there(runs):
    folder = runs.folder / "checkpoints"
    folder.mkdir()
    (folder / "latest").write_text("step-40")
    runs.start([(12, 1, [(0, 6, 1)])], training=ENDLESS)
    runs.wait_for("stopped")
    [refused] = runs.events("refused")
    assert f"no checkpoint in {folder} can be read: {folder}/latest names step-40, which is miss" in refused["reason"]


def test_a_spec_that_cannot_be_trained_ends_the_generation_with_the_reason(runs):
    runs.start(training={"precision": "fp8"})
    runs.wait_for("stopped")
    assert "precision 'fp8' is not supported" in runs.events("rank_dead")[0]["tail"]
    assert runs.events("rank_dead")[0]["exit_code"] == 2
