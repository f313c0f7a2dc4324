"""What a command reads of its plan."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from factories.planning import AS_OF, example
from sailor_cloud import api
from sailor_cloud.clock import FixedClock
from sailor_cloud.launch.fleet.command_spec import build_command_spec
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.nodes import ReachableNode


@pytest.mark.parametrize(
    ("layout", "schedule"), [("pp=4", None), ("pp=4 schedule=interleaved", "interleaved")], ids=["1f1b", "interleaved"]
)
def test_a_command_gets_the_schedule_of_its_stages(layout: str, schedule: str | None) -> None:
    job = example(
        "gcp-a100-v100.yaml",
        run="true",
        model={"preset": "opt-1.3b"},
        training={"global_batch_size": 32, "sequence_length": 1024, "precision": "fp16", "steps": 10},
        constraints={},
    )
    nodes = "1 x n1-standard-32:4xV100-16@us-central1-a"
    document = api.simulate_layout(job, layout=layout, nodes=[nodes], clock=FixedClock(AS_OF)).document
    assert document.plan is not None
    [node] = document.plan.nodes
    reachable = ReachableNode(
        id=node.id,
        provider=Provider("gcp"),
        region="us-central1",
        zone="us-central1-a",
        instance_type="n1-standard-32",
        accelerator="V100-16",
        devices=4,
        address="10.0.0.1",
        port=22,
        user="u",
        private_address="10.0.0.1",
        host_public_key="k",
        workdir="w",
        created_at=AS_OF,
    )
    spec = build_command_spec(
        document,
        {node.id: reachable},
        run_id="r",
        generation=0,
        master_port=29500,
        checkpoint_directory="c",
        expires_at=AS_OF + timedelta(hours=1),
        code_sha256=None,
    )
    told = json.loads(spec.nodes[0].plan)
    assert told.get("pipeline_schedule") == schedule
    assert ("later_ranges" in told["stages"][0]) == (schedule is not None)
