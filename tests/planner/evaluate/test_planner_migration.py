"""What it takes to bring the state of a run to the nodes of a plan."""

from __future__ import annotations

import pytest

from factories.planning import data, example, make_space, plan, tiny_job
from sailor_cloud.model.job import Job
from sailor_cloud.planner.evaluate.migration import MigrationCost, migration_cost


def two_a100s(zone: str) -> Job:
    """A job that needs both of two single A100 in a zone."""
    return example(
        "gcp-a100-v100.yaml",
        constraints={},
        training__sequence_length=64,
        training__global_batch_size=2,
        model={
            "vocab_size": 64,
            "max_position_embeddings": 64,
            "model_type": "gpt2",
            "hidden_size": 8192,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
        },
        resources__0__zones=[zone],
        resources__0__accelerators={"A100-40": 2},
        resources__0__instance_types=["a2-highgpu-1g"],
        resources__0__markets=["spot"],
    )


def moved(zone: str) -> MigrationCost:
    job = two_a100s(zone)
    document = plan(job)
    assert document.plan is not None
    assert len(document.plan.nodes) == 2
    return migration_cost(document.plan, make_space(job).scenario, store_zone="us-central1-a")


def test_state_is_moved_from_the_bucket_and_paid_for_between_regions() -> None:
    here, there = moved("us-central1-a"), moved("europe-west4-a")
    # Four blocks of 12 hidden^2 parameters are nearly all there is, at 12 bytes each.
    assert here.nbytes == there.nbytes == pytest.approx(12 * 4 * 12 * 8192**2, rel=1e-2)
    assert here.usd == 0.0 < there.usd
    assert 0.0 < here.seconds < there.seconds
    per_gb = sum(price.usd_per_gb for price in data()[1].egress("us-central1-a", "europe-west4-a"))
    assert there.usd == pytest.approx(there.nbytes / 1e9 * per_gb, rel=1e-6)


def test_a_local_folder_needs_no_network() -> None:
    job = tiny_job(zones=("local-a",), accelerators={"CPU-fast": 1})
    space = make_space(job)
    document = plan(job)
    assert document.plan is not None
    state = migration_cost(document.plan, space.scenario, store_zone=None)
    assert (state.seconds, state.usd) == (0.0, 0.0)
    table = space.table(0, 1, 1)
    assert state.nbytes == 12 * float(table.parameters(0, table.layers))
