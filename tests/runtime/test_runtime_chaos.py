"""Kills at random moments: each ends in a correct continuation, and the end is that of an uninterrupted run."""

from __future__ import annotations

import os
import random
import signal
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from factories.run_specs import SHORT_TRAINING, TINY
from factories.running_agent import RunningAgent, is_gone, wait_until
from sailor_runtime.spec import ModelSpec, TrainingSpec
from sailor_runtime.training import reference
from sailor_runtime.training.data import SyntheticSamples
from sailor_runtime.training.parameters import range_parameters

# `make chaos` asks for more.
KILLS = int(os.environ.get("SAILOR_CHAOS_KILLS", "3"))
SEED = int(os.environ.get("SAILOR_CHAOS_SEED", "0"))
STEPS = 40 * KILLS
VICTIMS = ("rank while saving", "hung rank", "agent", "rank")
PLANS = (
    [(6, 2, [(0, 3, 1), (3, 6, 1)])],
    [(4, 2, [(0, 6, 1)]), (2, 2, [(0, 6, 1)])],
    [(3, 4, [(0, 6, 2)])],
)
TRAINING = {"steps": STEPS, "dropout": 0.1, "gradient_clipping": 0.5, "learning_rate": 1e-3}

pytestmark = [pytest.mark.timeout(400 + 100 * KILLS), pytest.mark.slow]


def _begin(home: Path) -> RunningAgent:
    # Short enough to wait for, long enough for a step of ranks that share two cores with others.
    options = ("--hung-training-s", "10", "--hung-iterations", "1", "--hung-phase-s", "120")
    return RunningAgent(home, "", *options, rank_module="sailor_runtime.training")


def _harm(agent: RunningAgent, victim: str, chance: random.Random) -> None:
    """Do harm at a random moment of training, or of the first save."""
    checkpoints = agent.home / "checkpoints"
    if victim == "rank while saving":
        wait_until(lambda: any(checkpoints.glob(".step-*.partial")), "a save that runs", timeout_s=30)
    else:
        # Without a checkpoint there would be nothing to go on from, and nothing to check.
        wait_until(lambda: (checkpoints / "latest").exists(), "a first checkpoint", timeout_s=60)
        time.sleep(chance.uniform(0.0, 1.0))
    ranks = agent.rank_pids()
    if victim == "agent" or not ranks:
        agent.process.kill()
        agent.process.wait()
    else:
        os.kill(chance.choice(ranks), signal.SIGSTOP if victim == "hung rank" else signal.SIGKILL)
    wait_until(lambda: all(is_gone(pid) for pid in ranks), f"all ranks to be gone after {victim}", timeout_s=150)


def _saved_weights(checkpoint: Path, model: ModelSpec) -> dict[str, torch.Tensor]:
    specs = range_parameters(model, range(model.layers))
    state = {f"model.{name}": torch.empty(spec.shape, dtype=torch.float64) for name, spec in specs.items()}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled", category=UserWarning)
        dcp.load(state, checkpoint_id=checkpoint, no_dist=True)
    return {name: state[f"model.{name}"] for name in specs}


def test_kills_leave_neither_orphans_nor_wrong_weights(tmp_path):
    chance = random.Random(SEED)
    home = tmp_path / "node-0"
    agent = _begin(home)
    pids: set[int] = set()
    try:
        for generation in range(1, KILLS + 2):
            if agent.process.poll() is not None:
                greeted = len(agent.events("hello"))
                agent = _begin(home)
                agent.wait_for("hello", greeted + 1)
            plan = PLANS[generation % len(PLANS)]
            begun = len(agent.events("training"))
            agent.start(generation, pipelines=plan, training=TRAINING, checkpoint_every_s=0.1)
            agent.wait_for("training", begun + 1, timeout_s=150)
            pids |= set(agent.rank_pids())
            if generation <= KILLS:
                _harm(agent, VICTIMS[(generation - 1) % len(VICTIMS)], chance)
        wait_until(lambda: agent.events("stopped")[-1]["reason"] == "finished", "the end", timeout_s=300)
    finally:
        agent.process.kill()
        agent.process.wait()
    wait_until(lambda: all(is_gone(pid) for pid in pids), "all ranks to be gone")
    first_steps = [event["first_step"] for event in agent.events("training")]
    assert first_steps == sorted(first_steps)
    assert first_steps[-1] > 0
    model, training = ModelSpec(**TINY), TrainingSpec(**{**SHORT_TRAINING, **TRAINING})
    samples = SyntheticSamples(model.vocab_size, training.sequence_length, training.seed)
    expected = reference.train(model, training, samples.read, steps=STEPS).weights
    for name, value in _saved_weights(home / "checkpoints" / f"step-{STEPS}", model).items():
        assert (value - expected[name]).abs().max() <= 1e-10, name
