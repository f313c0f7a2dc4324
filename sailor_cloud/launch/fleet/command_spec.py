"""Translates the plan of a job that runs a command, and its nodes, into the spec that agents read."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.launch.fleet.run_spec import plan_hash
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.plan import PipelineSchedule, Plan
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_runtime import spec as rt

# From SIGTERM to SIGKILL. Google ends a machine 30 s after its notice. An agent sees the notice within five seconds and
# must pass it to the other nodes; afterwards it must still copy the command's checkpoint.
GRACE_S = 20.0


def check_environment(job: Job) -> None:
    """Raise RequestError for variables that the job takes from the user's environment and that are not set there."""
    missing = [name for name, value in job.env.items() if value is None and name not in os.environ]
    if missing:
        message = f"{', '.join(missing)}: null takes the value from your environment, where it is not set"
        raise RequestError([Problem(path="env", message=message)])


def build_command_spec(
    document: PlanDocument,
    nodes: Mapping[str, ReachableNode],
    *,
    run_id: str,
    generation: int,
    master_port: int,
    checkpoint_directory: str,
    expires_at: datetime,
    code_sha256: str | None,
    secrets: bool = True,
    sockets: bool = False,
) -> rt.CommandSpec:
    """Return the spec of one generation. Ranks are numbered node by node, those of the first pipeline first.

    Without `secrets`, variables that the job takes from its caller stay names; nodes must know their values. `sockets`:
    see `run_spec.must_use_sockets`.
    """
    plan, job = document.plan, document.job
    assert plan is not None
    assert job.run is not None
    order = list(dict.fromkeys(stage.node for pipeline in plan.pipelines for stage in pipeline.stages))
    order += [node for node in sorted(nodes) if node not in order]
    ranks = [stage.node for pipeline in plan.pipelines for stage in pipeline.stages for _ in stage.devices]
    found: list[rt.CommandNode] = []
    for name in order:
        node = nodes[name]
        processes = _processes(plan, name)
        if processes and job.processes_per_node is not None:
            processes = job.processes_per_node
        first = sum(other.processes for other in found)
        part = json.dumps(_part_of_node(document, plan, node, processes=processes, first_rank=first), sort_keys=True)
        found.append(
            rt.CommandNode(
                id=name,
                address=node.private_address,
                processes=processes,
                first_rank=first,
                plan_rank=ranks.index(name) if name in ranks else 0,
                plan=part,
            )
        )
    return rt.CommandSpec(
        spec_version=rt.SPEC_VERSION,
        run=run_id,
        generation=generation,
        plan_hash=plan_hash(plan),
        command=job.run,
        setup=job.setup,
        code=None if code_sha256 is None else f"code/{code_sha256}",
        environment=tuple(
            rt.Variable(name=name, value=os.environ.get(name, "") if value is None and secrets else value)
            for name, value in sorted(job.env.items())
        ),
        checkpoint=rt.CheckpointSpec(
            directory=checkpoint_directory, every_s=job.checkpoint.every, keep=job.checkpoint.keep
        ),
        nodes=tuple(found),
        plan_ranks=plan.world_size,
        master_address=found[0].address,
        master_port=master_port,
        # A job that sets its processes per node, such as one for JAX, may use its own rendezvous.
        meets_at_port=job.processes_per_node is None,
        budget_usd=document.constraints.budget_usd,
        grace_s=GRACE_S,
        stall_s=job.stall,
        expires_at=expires_at.timestamp(),
        sockets=sockets,
    )


def _processes(plan: Plan, node: str) -> int:
    return sum(stage.tp for pipeline in plan.pipelines for stage in pipeline.stages if stage.node == node)


def _part_of_node(
    document: PlanDocument, plan: Plan, node: ReachableNode, *, processes: int, first_rank: int
) -> dict[str, Any]:
    """Return the node's part of the plan, which its command reads as SAILOR_PLAN."""
    job = document.job
    here = [
        (index, pipeline, stage)
        for index, pipeline in enumerate(plan.pipelines)
        for stage in pipeline.stages
        if stage.node == node.id
    ]
    samples = sum(pipeline.samples * stage.tp / _devices(plan, index) for index, pipeline, stage in here)
    stages = [
        {
            "pipeline": index,
            "first_layer": stage.first_layer,
            "end_layer": stage.end_layer,
            **({"later_ranges": stage.later_ranges} if stage.later_ranges else {}),
            "devices": list(stage.devices),
            "microbatch_size": pipeline.microbatch_size,
            "microbatches": pipeline.microbatches,
        }
        for index, pipeline, stage in here
    ]
    part: dict[str, Any] = {
        "node": node.id,
        "accelerator": node.accelerator,
        "devices": node.devices,
        "processes": processes,
        "first_rank": first_rank,
        "global_batch_size": plan.global_batch_size,
        "batch_share": samples / plan.global_batch_size,
    }
    if plan.pipeline_schedule is not PipelineSchedule.ONE_F_ONE_B:
        part["pipeline_schedule"] = plan.pipeline_schedule
    return part if job.model is None else {**part, "stages": stages}


def _devices(plan: Plan, pipeline: int) -> int:
    return sum(stage.tp for stage in plan.pipelines[pipeline].stages)
