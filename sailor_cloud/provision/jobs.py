"""A plan as one job of a scheduler: node groups, and one command for each node that starts its agent.

The plan says which rank runs where. A scheduler's own numbering is used only for a node's place in its group.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from sailor_cloud.errors import ProvisionError, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.inventory import Inventory
from sailor_cloud.provision.live_resources import (
    EXPIRES_FORM,
    EXPIRES_LABEL,
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
)
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, read

# Where the agents of a job meet; ranks use the ports from 29500 to 29599.
RENDEZVOUS_PORT = 29400
# The variable with what they know each other by, where the plan does not hold it; see `sailor_runtime.spec`.
JOB_TOKEN = "SAILOR_JOB_TOKEN"
# The kind of place that a cluster is; it has its inventory's name.
CLUSTER = "cluster"
# Which cluster that is, by its own word, as NAME/IDENTITY: a name on PATH or in kubeconfig may be another one tomorrow.
CLUSTER_ID = "cluster_id"
# What a look finds.
JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """The nodes of a job that are of one group of the inventory; `devices` are those of one node."""

    name: str
    accelerator: str
    devices: int
    nodes: tuple[str, ...]


def agent_command(group: JobGroup, *, python: str, index: str, meeting: str, plan: str, home: str) -> list[str]:
    """Return the command that every node of a group runs; `index` and `meeting` may be a shell's variables."""
    agent = [python, "-m", "sailor_runtime.agent", "--home", home, "--plan", plan]
    return [*agent, "--group", group.name, "--index", index, "--rendezvous", meeting]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """What is given to a scheduler.

    `artefact` is the JSON that agents read: the plan, its groups, and a run spec without addresses. `home` is the
    folder under which each node has one of its own, and `runtime` one with the package `sailor_runtime`; None where
    nodes have that installed. `avoid` are hosts that were lost. `variables` are those of the command that are not in
    the artefact, but taken from the environment of its agents.
    """

    run_id: str
    generation: int
    owner: str
    seconds: float
    expires_at: datetime | None
    inventory: Inventory
    groups: tuple[JobGroup, ...]
    artefact: str
    home: str
    runtime: str | None = None
    avoid: frozenset[str] = frozenset()
    variables: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"sailor-{self.run_id}-g{self.generation}"

    def labels(self, nodes: Sequence[str] = ()) -> dict[str, str]:
        """Return what the job carries so that it is found again, as resources on clouds do."""
        found = {RUN_LABEL: self.run_id, OWNER_LABEL: re.sub(r"[^\w.@+-]", "-", self.owner)}
        if self.expires_at is not None:
            found[EXPIRES_LABEL] = self.expires_at.strftime(EXPIRES_FORM)
        return found | ({NODE_LABEL: ",".join(nodes)} if nodes else {})

    def command(self, group: JobGroup, *, index: str, meeting: str, plan: str, home: str) -> list[str]:
        """Return the command that every node of a group runs; see `agent_command`."""
        return agent_command(
            group, python=self.inventory.runtime.python, index=index, meeting=meeting, plan=plan, home=home
        )


class JobPhase(StrEnum):
    """Whether a job waits for machines, has them, or is over."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """Where a job stands. `why` is the scheduler's word, `hosts` the machine of each node, `down` those that are gone.

    `taken`: the scheduler gave the job's machines to somebody else. `cancelled`: somebody ended it. `ending`: its last
    processes go. `hopeless`: it will never start. `missing`: the scheduler knows no such job: somebody ended it, or it
    ended by itself a while ago.
    """

    phase: JobPhase
    why: str = ""
    hosts: Mapping[str, str] = field(default_factory=dict)
    down: frozenset[str] = frozenset()
    taken: bool = False
    cancelled: bool = False
    ending: bool = False
    hopeless: bool = False
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedCluster:
    """An inventory, and what in it is a guess or was left out."""

    inventory: Inventory
    notes: tuple[str, ...]


class Scheduler(Protocol):
    """What starts the nodes of a plan together. Each call may raise ProvisionError."""

    form: str
    """The format of `export` that is this scheduler's."""

    shares_folders: bool
    """Whether nodes see the run's folder under the same path, so that files are how agents are talked to."""

    def identity(self) -> str:
        """Return what tells the cluster that answers from every other one."""

    def check(self, inventory: Inventory) -> None:
        """Raise ProvisionError, with the next step, where nothing can be submitted from here."""

    def inventory(
        self, *, accelerators: Collection[str], checkpoints: str, python: str, as_of: date
    ) -> ImportedCluster:
        """Return what the scheduler says of its nodes; `accelerators` are the names that have profiles."""

    def text(self, job: ClusterJob) -> str:
        """Return a job that brings its plan along, as what the scheduler's own command takes. Raises RequestError."""

    def submit(self, job: ClusterJob, folder: Path) -> str:
        """Hand a job over and return its id; files that it needs lie in `folder`."""

    def find(self, job: ClusterJob) -> str | None:
        """Return the id of a job that was submitted, by its run and generation; None where there is none."""

    def state(self, job_id: str, job: ClusterJob) -> JobState:
        """Return where a job stands, and the machines that its nodes have."""
        ...

    def cancel(self, job_id: str, inventory: Inventory) -> None:
        """End a job; one that has ended already is no error. The agents get a signal, and have time to save."""

    def free(self, group: str, inventory: Inventory, avoid: frozenset[str]) -> tuple[str, ...]:
        """Return the machines of a group that could start now."""

    def silent(self, machines: Collection[str]) -> frozenset[str]:
        """Return which machines of the cluster don't answer; one that the cluster has no longer is not among them."""

    def events(self, job_id: str, job: ClusterJob, node: str, offset: int) -> tuple[bytes, int]:
        """Return what an agent has said since an offset, and the next offset, where folders are not shared."""


def check_identity(scheduler: Scheduler, folder: RunFolder) -> None:
    """Raise ProvisionError where another cluster answers than the one that was given the run's jobs."""
    started = [entry.data for entry in read(folder.journal_file) if entry.event is Event.PROVISION_STARTED]
    names = (name for data in started for key in data if key.endswith(f"_{CLUSTER_ID}s") for name in data[key])
    known = {str(name).rpartition("/")[2] for name in names}
    if known and (there := scheduler.identity()) not in known:
        raise ProvisionError(other_cluster(there, *sorted(known)))


def other_cluster(there: str, *wanted: str) -> str:
    return (
        f"the cluster that answers is {there}, and the run's jobs are on {', '.join(wanted)}, which was not asked; "
        "select that one (kubectl's context, or a login node of it) and try again"
    )


def unanswered(machines: Collection[str]) -> str:
    """Say what is not known of jobs on machines that don't answer."""
    many = len(machines) > 1
    return (
        f"{'machines' if many else 'machine'} {', '.join(sorted(machines))} {'do' if many else 'does'} not answer, and "
        f"what runs there may run on; 'down' confirms it once {'they answer or have' if many else 'it answers or has'} "
        "left the cluster"
    )


def groups_of(document: PlanDocument) -> tuple[JobGroup, ...]:
    """Return the node groups of a plan, in the order of its nodes."""
    found: dict[str, list[str]] = {}
    placed = placed_nodes(document)
    for one in placed:
        found.setdefault(one.offer.zone, []).append(one.node.id)
    offers = {one.offer.zone: one.offer for one in placed}
    return tuple(
        JobGroup(
            name=zone,
            accelerator=offers[zone].accelerator,
            devices=offers[zone].accelerator_count,
            nodes=tuple(nodes),
        )
        for zone, nodes in found.items()
    )


def check_job(document: PlanDocument) -> None:
    """Raise RequestError where a scheduler's nodes can't be given what the job needs."""
    from sailor_cloud.provision import providers

    scheduler, inventory = providers.of(document.home.provider).scheduler, document.job.cloud.inventory
    if scheduler is None or inventory is None or scheduler.shares_folders:
        return
    if inventory.runtime.image is None:
        raise RequestError(
            f"the inventory {inventory.name} names no runtime.image, and pods need one; "
            "examples/clusters/Dockerfile makes one"
        )
    if document.job.shipped_folder is not None:
        raise RequestError(
            f"{document.job.shipped_code}, and pods get no copy of it; put it into the image "
            f"{inventory.runtime.image} and name it in 'run', without workdir or model.module"
        )


def check_scheduler(document: PlanDocument) -> None:
    """Raise as `check_job` does, and ProvisionError where a plan's scheduler can't be reached from here."""
    from sailor_cloud.provision import providers

    check_job(document)
    scheduler, inventory = providers.of(document.home.provider).scheduler, document.job.cloud.inventory
    if scheduler is not None and inventory is not None:
        scheduler.check(inventory)
