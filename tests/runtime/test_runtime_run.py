"""An agent with real ranks: check, calibrate, train, checkpoint, die, go on."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from factories.running_agent import RunningAgent, is_gone, wait_until
from sailor_runtime.spec import CheckpointSpec

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]

ENDLESS = {"steps": 100_000, "schedule": "constant", "precision": "fp32"}


@pytest.fixture
def agent(tmp_path) -> Iterator[RunningAgent]:
    running = RunningAgent(tmp_path / "node-0", "", rank_module="sailor_runtime.training")
    yield running
    running.process.kill()
    running.process.wait()


def test_a_generation_is_verified_calibrated_trained_and_checkpointed(agent):
    text = {"vocab_size": 256}
    agent.start(verify_steps=3, calibrate=True, model=text, training={"steps": 4, "precision": "fp32"})
    [stopped] = agent.wait_for("stopped", timeout_s=150)
    assert (stopped["reason"], stopped["step"]) == ("finished", 4), agent.events()
    [verified], [calibrated] = agent.events("verified"), agent.events("calibrated")
    assert verified["steps"] == 3
    assert 0 < verified["max_abs_difference"] <= verified["tolerance"] == 1e-10
    assert [rank["rank"] for rank in calibrated["ranks"]] == [0, 1]
    assert [len(rank["forward_s"]) for rank in calibrated["ranks"]] == [3, 3]
    assert all(seconds > 0 for rank in calibrated["ranks"] for seconds in rank["forward_s"] + rank["backward_s"])
    # Training begins anew after the check: its first loss is that of the first values.
    steps = agent.events("step")
    assert [step["step"] for step in steps] == [1, 2, 3, 4]
    assert steps[0]["loss"] == pytest.approx(5.545, abs=0.05)
    assert {"grad_norm", "tokens", "iteration_s", "compute_s", "transfer_s", "sync_s", "learning_rate"} <= set(steps[0])
    assert agent.events("checkpoint")[0]["path"].endswith("checkpoints/step-4")
    told = [json.loads(line) for line in (agent.home / "metrics" / "g1.jsonl").read_text().splitlines()]
    assert [line["step"] for line in told] == [1, 2, 3, 4]
    assert [line["loss"] for line in told] == [step["loss"] for step in steps]
    for rank in (rank for line in told for rank in line["ranks"]):
        assert all(rank[f"{part}_s"] >= 0 for part in ("compute", "transfer", "bubble", "sync"))
        assert rank["compute_s"] > 0
        assert rank["memory_peak_bytes"] > 0
    assert "sailor_step{" in (agent.home / "metrics" / "metrics.prom").read_text()
    trace = json.loads((agent.home / "metrics" / "trace-g1-step3.json").read_text())
    passes = [event for event in trace["traceEvents"] if event["name"] in ("forward", "backward")]
    # Two ranks, two microbatches, there and back.
    assert len(passes) == 2 * 2 * 2
    told = [json.loads(line) for line in (agent.home / "metrics" / "g1.jsonl").read_text().splitlines()]
    assert [line["step"] for line in told] == [1, 2, 3, 4]
    assert [line["loss"] for line in told] == [step["loss"] for step in steps]
    for rank in (rank for line in told for rank in line["ranks"]):
        assert all(rank[f"{part}_s"] >= 0 for part in ("compute", "transfer", "bubble", "sync"))
        assert rank["compute_s"] > 0
        assert rank["memory_peak_bytes"] > 0
    assert "sailor_step{" in (agent.home / "metrics" / "metrics.prom").read_text()
    trace = json.loads((agent.home / "metrics" / "trace-g1-step3.json").read_text())
    passes = [event for event in trace["traceEvents"] if event["name"] in ("forward", "backward")]
    # Two ranks, two microbatches, there and back.
    assert len(passes) == 2 * 2 * 2
    order = [event["event"] for event in agent.events()]
    assert order.index("data") < order.index("verified") < order.index("calibrated") < order.index("step")


def test_after_a_killed_rank_the_next_generation_goes_on_from_the_checkpoint(agent):
    agent.start(training=ENDLESS)
    agent.wait_for("step", 3, timeout_s=150)
    agent.command("checkpoint")
    [saved] = agent.wait_for("checkpoint")
    ranks = agent.rank_pids()
    os.kill(ranks[1], signal.SIGKILL)
    [stopped] = agent.wait_for("stopped")
    assert stopped["reason"] == "failed"
    # Its neighbour may have died of the broken connection by then, and be told of first.
    assert 9 in [event.get("signal") for event in agent.events("rank_dead")]
    wait_until(lambda: all(is_gone(pid) for pid in ranks), "the ranks to be gone")
    one_pipeline = [(6, 2, [(0, 6, 1)])]
    agent.start(generation=2, pipelines=one_pipeline, training=ENDLESS)
    wait_until(lambda: len(agent.events("training")) == 2, "a second start of training", timeout_s=150)
    assert agent.events("training")[1]["first_step"] == saved["step"]
    agent.wait_for("step", len(agent.events("step")) + 1)
    agent.command("stop", generation=2, plan_hash="hash-2")
    stopped = agent.wait_for("stopped", 2)[1]
    assert stopped["reason"] == "requested"
    assert agent.events("checkpoint")[-1]["step"] == stopped["step"] > saved["step"]
    assert agent.rank_pids() == []


def test_a_loss_that_is_not_finite_stops_training_with_a_clear_message(agent):
    agent.start(training={**ENDLESS, "optimizer": "sgd", "learning_rate": 1e12, "warmup_steps": 0})
    [stopped] = agent.wait_for("stopped", timeout_s=150)
    assert stopped["reason"] == "failed"
    reason = agent.events("refused")[0]["reason"]
    assert "there is no checkpoint yet; lower the learning rate" in reason


def test_training_does_not_begin_anew_where_what_was_saved_has_gone(agent):
    checkpoint = CheckpointSpec(directory=str(agent.home / "checkpoints"), every_s=3600.0, keep=2, saved_step=40)
    agent.start(pipelines=[(12, 1, [(0, 6, 1)])], training=ENDLESS, checkpoint=checkpoint)
    agent.wait_for("stopped", timeout_s=150)
    assert "step 40 was saved in" in agent.events("refused")[0]["reason"]
    assert agent.events("rank_dead")[0]["exit_code"] == 2


def test_a_spec_that_cannot_be_trained_ends_the_generation_with_the_reason(agent):
    agent.start(training={"precision": "fp8"})
    agent.wait_for("stopped", timeout_s=150)
    assert "precision 'fp8' is not supported" in agent.events("rank_dead")[0]["tail"]
    assert agent.events("rank_dead")[0]["exit_code"] == 2
