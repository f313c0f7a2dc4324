"""A plan as an artefact for the nodes of one job: node groups, and a run spec without the nodes' addresses."""

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
    """Return the artefact's JSON. `master` is the node of rank 0; agents authenticate each other with `token`."""
    content = {
        "token": token,
        "artefact_version": ARTEFACT_VERSION,
        "groups": [
            {"name": group.name, "accelerator": group.accelerator, "devices": group.devices, "nodes": group.nodes}
            for group in groups
        ],
        "master": master,
        "spec": asdict(spec),
    }
    return json.dumps(content, indent=1, sort_keys=True) + "\n"


def node_paths(spec: RunSpec | CommandSpec) -> tuple[str, ...]:
    """Return the paths on nodes that a spec names. A command's own files are unknown."""
    named: list[str | None] = [spec.checkpoint.directory]
    if isinstance(spec, RunSpec):
        named += [spec.data.source, spec.data.tokenizer, spec.model.weights]
    return tuple(sorted({path for path in named if path is not None and path.startswith("/")}))


def master_of(document: PlanDocument) -> str:
    assert document.plan is not None
    return document.plan.pipelines[0].stages[0].node


def without_address(document: PlanDocument, *, workdir: str = "", now: datetime) -> dict[str, ReachableNode]:
    """Return a plan's nodes by id, without addresses; the scheduler chooses their machines."""
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
    """A plan for a job without a controller: it trains once from the newest checkpoint, for at most `seconds`.

    `checkpoints` is the place of checkpoints; `paths` are those on nodes that the job names. `variables` must be set in
    the environment of its nodes; their values are not part of it.
    """

    run_id: str
    groups: tuple[JobGroup, ...]
    artefact: str
    seconds: float
    checkpoints: str
    paths: tuple[str, ...]
    variables: tuple[str, ...]


def exported(
    document: PlanDocument, place: str | None, *, token: str, base: Path | None, ships: bool = False
) -> Exported:
    """Return a plan in the form that agents read; `place` holds checkpoints if the job names no place.

    Agents authenticate each other with `token`; without one, with a variable of the job. Relative paths start from
    `base`. With `ships`, the job's own code reaches nodes separately, as with `up`. Raises RequestError for a plan that
    can't run without a controller.
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
    options: dict[str, Any] = {"code_sha256": None if packed is None else packed.sha256}
    to = job.checkpoint.to or (f"{place}/{job.name}" if place else None)
    if to is None:
        raise RequestError("the job names no place for checkpoints; give checkpoint.to")
    nodes = without_address(document, now=datetime.now(UTC))
    # A script may be submitted days later, so the scheduler or the script itself limits its nodes' time.
    options |= {"run_id": job.name, "generation": 1, "master_port": 0, "checkpoint_directory": to}
    options["expires_at"] = datetime(9999, 1, 1, tzinfo=UTC)
    spec: RunSpec | CommandSpec
    if job.run is not None:
        spec = build_command_spec(document, nodes, secrets=False, **options)
    else:
        spec = build_spec(document, workload.job_decoder(job, base=base), nodes, **options)
    groups = groups_of(document)
    text = artefact(spec, groups, master_of(document), token)
    variables = tuple(sorted(name for name, value in job.env.items() if value is None))
    return Exported(
        run_id=job.name,
        groups=groups,
        artefact=text,
        seconds=life_s(document),
        checkpoints=to,
        paths=node_paths(spec),
        variables=variables,
    )


def exported_job(document: PlanDocument, *, base: Path | None = None, ships: bool = False) -> ClusterJob:
    """Return a plan as a job of its inventory's scheduler; arguments and errors as in `exported`."""
    inventory = document.job.cloud.inventory
    if inventory is None or inventory.scheduler != document.home.provider:
        raise RequestError(
            "the plan's nodes are not from an inventory; plan with --on slurm or --on kubernetes and --cluster FILE"
        )
    check_job(document)
    scheduler = providers.of(inventory.scheduler).scheduler
    # Slurm's script generates one when it runs; Kubernetes needs one in a Secret.
    token = "" if scheduler is not None and scheduler.shares_folders else secrets.token_hex(16)
    export = exported(document, inventory.checkpoints, token=token, base=base, ships=ships)
    folder = inventory.checkpoints if inventory.checkpoints.startswith("/") else "/tmp/sailor-cloud"
    return ClusterJob(
        run_id=export.run_id,
        generation=1,
        owner=document.job.cloud.owner or "unknown",
        seconds=export.seconds,
        expires_at=None,
        inventory=inventory,
        groups=export.groups,
        artefact=export.artefact,
        home=f"{folder}/{export.run_id}.nodes",
        checkpoints=export.checkpoints,
        paths=export.paths,
        variables=export.variables,
        variant=export.artefact,
    )


def job_text(document: PlanDocument, *, base: Path | None = None) -> str | None:
    """Return the job that `up` would submit for a plan; None if its nodes are bought or local."""
    scheduler = providers.of(document.home.provider).scheduler
    return None if scheduler is None else scheduler.text(exported_job(document, base=base, ships=True))
