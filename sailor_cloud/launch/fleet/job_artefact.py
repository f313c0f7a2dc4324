"""A plan as what the nodes of one job need: node groups, and a run spec that lacks only the nodes' addresses."""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sailor_cloud import workload
from sailor_cloud.errors import RequestError
from sailor_cloud.launch.fleet import code
from sailor_cloud.launch.fleet.command_spec import build_command_spec
from sailor_cloud.launch.fleet.job_paths import settled
from sailor_cloud.launch.fleet.run_spec import build_spec
from sailor_cloud.launch.spend.lifetime import life_s
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.guards import refuse_what_cannot_run
from sailor_cloud.provision.jobs import ClusterJob, JobGroup, check_job, groups_of
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_runtime.spec import ARTEFACT_VERSION, CommandSpec, RunSpec

_WITHOUT_FOLDER = "put it on the nodes and name it in 'run', or start the job with 'up'"


def artefact(spec: RunSpec | CommandSpec, groups: tuple[JobGroup, ...], master: str, token: str = "") -> str:
    """Return the artefact's JSON; `master` is the node of rank 0, and `token` what its agents know each other by."""
    told = {
        "token": token,
        "artefact_version": ARTEFACT_VERSION,
        "groups": [
            {"name": group.name, "accelerator": group.accelerator, "devices": group.devices, "nodes": group.nodes}
            for group in groups
        ],
        "master": master,
        "spec": asdict(spec),
    }
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def master_of(document: PlanDocument) -> str:
    assert document.plan is not None
    return document.plan.pipelines[0].stages[0].node


def without_address(document: PlanDocument, *, workdir: str = "", now: datetime) -> dict[str, ReachableNode]:
    """Return a plan's nodes by id; where they are, a scheduler decides."""
    return {
        placed.node.id: ReachableNode.of(
            placed,
            address="",
            port=0,
            user="",
            host_public_key="",
            private_address="",
            workdir=f"{workdir}/{placed.node.id}",
            created_at=now,
        )
        for placed in placed_nodes(document)
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A plan for a job that nobody follows: it trains once, from the newest checkpoint on, for `seconds` at most.

    `variables` are those that its nodes' environment must have; their values are nowhere in it.
    """

    run_id: str
    groups: tuple[JobGroup, ...]
    artefact: str
    seconds: float
    variables: tuple[str, ...]


def exported(
    document: PlanDocument, place: str | None, *, token: str, base: Path | None, ships: bool = False
) -> Exported:
    """Return what agents need of a plan; `place` is where checkpoints lie if the job does not say.

    Agents know each other by `token`; without one, by a variable of the job. Relative paths start from `base`. With
    `ships` nodes get the job's own code apart, as those of `up` do. Raises RequestError for a plan that can't run
    without a controller.
    """
    if document.plan is None:
        raise RequestError(f"the document is {document.status} and holds no plan; there is nothing to export")
    refuse_what_cannot_run(document)
    base, job = base or Path(), document.job
    if not ships and job.shipped_folder is not None:
        raise RequestError(f"{job.shipped_code}, which an exported job can't bring along; {_WITHOUT_FOLDER}")
    if job.run is None and job.training.steps is None:
        raise RequestError("training.steps is missing; a run needs the number of steps")
    document = replace(document, job=settled(job, base))
    job, packed = document.job, code.pack(job, base)
    told: dict[str, Any] = {"code_sha256": None if packed is None else packed.sha256}
    to = job.checkpoint.to or (f"{place}/{job.name}" if place else None)
    if to is None:
        raise RequestError("the job names no place for checkpoints; give checkpoint.to")
    nodes = without_address(document, now=datetime.now(UTC))
    # A script may be submitted days after it was written, so its nodes' time is the scheduler's to limit.
    told |= {"run_id": job.name, "generation": 1, "master_port": 0, "checkpoint_directory": to}
    told["expires_at"] = datetime(9999, 1, 1, tzinfo=UTC)
    spec: RunSpec | CommandSpec
    if job.run is not None:
        spec = build_command_spec(document, nodes, secrets=False, **told)
    else:
        spec = build_spec(document, workload.job_decoder(job, base=base), nodes, **told)
    groups = groups_of(document)
    text = artefact(spec, groups, master_of(document), token)
    variables = tuple(sorted(name for name, value in job.env.items() if value is None))
    return Exported(run_id=job.name, groups=groups, artefact=text, seconds=life_s(document), variables=variables)


def exported_job(document: PlanDocument, *, base: Path | None = None, ships: bool = False) -> ClusterJob:
    """Return a plan as a job of its inventory's scheduler; arguments and errors as of `exported`."""
    inventory = document.job.cloud.inventory
    if inventory is None or inventory.scheduler != document.home.provider:
        raise RequestError(
            "the plan's nodes are not from an inventory; plan with --on slurm or --on kubernetes and --cluster FILE"
        )
    check_job(document)
    scheduler = providers.of(inventory.scheduler).scheduler
    # Slurm's script draws one when it runs; a Secret must hold it.
    token = "" if scheduler is not None and scheduler.shares_folders else secrets.token_hex(16)
    told = exported(document, inventory.checkpoints, token=token, base=base, ships=ships)
    folder = inventory.checkpoints if inventory.checkpoints.startswith("/") else "/tmp/sailor-cloud"
    return ClusterJob(
        run_id=told.run_id,
        generation=1,
        owner=document.job.cloud.owner or "unknown",
        seconds=told.seconds,
        expires_at=None,
        inventory=inventory,
        groups=told.groups,
        artefact=told.artefact,
        home=f"{folder}/{told.run_id}.nodes",
        variables=told.variables,
    )


def job_text(document: PlanDocument, *, base: Path | None = None) -> str | None:
    """Return what `up` gives a scheduler for a plan; None where its nodes are bought or of this machine."""
    scheduler = providers.of(document.home.provider).scheduler
    return None if scheduler is None else scheduler.text(exported_job(document, base=base, ships=True))
