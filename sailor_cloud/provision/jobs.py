"""A plan as one job of a scheduler: node groups, and for each node one command that starts its agent.

The plan says which rank runs where. A scheduler's own numbering gives only a node's index in its group.
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
from sailor_cloud.provision.rendering.root import PlacedNode, placed_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.journal import Event, read

# The rendezvous port of a job's agents; ranks use the ports from 29500 to 29599.
RENDEZVOUS_PORT = 29400
# The variable with the agents' shared token, if the plan does not contain it; see `sailor_runtime.spec`.
JOB_TOKEN = "SAILOR_JOB_TOKEN"
# The scope kind of a cluster, named as its inventory.
CLUSTER = "cluster"
# The cluster's identity as it reports it, as NAME/IDENTITY: a name on PATH or in kubeconfig may change its target.
CLUSTER_ID = "cluster_id"
# The resource type that a search finds.
JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """The nodes of a job in one group of the inventory; `devices` are those of one node."""

    name: str
    accelerator: str
    devices: int
    nodes: tuple[str, ...]


def agent_command(group: JobGroup, *, python: str, index: str, meeting: str, plan: str, home: str) -> list[str]:
    """Return the command that every node of a group runs; `index` and `meeting` may be shell variables."""
    agent = [python, "-m", "sailor_runtime.agent", "--home", home, "--plan", plan]
    return [*agent, "--group", group.name, "--index", index, "--rendezvous", meeting]


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterJob:
    """A job for a scheduler.

    `artefact` is the JSON that agents read: the plan, its groups, and a run spec without addresses. `home` is the
    parent of each node's own folder. `runtime` is a folder with the package `sailor_runtime`, None if nodes have it
    installed. `checkpoints` is the place of checkpoints, and `paths` are all paths that the job reads or writes on its
    nodes. `avoid` are lost hosts. `variables` are those of the command that agents take from their environment, not
    from the artefact. `variant` distinguishes exported jobs of one name.
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
    checkpoints: str = ""
    paths: tuple[str, ...] = ()
    avoid: frozenset[str] = frozenset()
    variables: tuple[str, ...] = ()
    variant: str = ""

    @property
    def name(self) -> str:
        return f"sailor-{self.run_id}-g{self.generation}"

    def labels(self, nodes: Sequence[str] = ()) -> dict[str, str]:
        """Return the labels by which the job is found again, as with resources on clouds."""
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
    """Whether a job waits for machines, has them, or has ended."""

    QUEUED = "queued"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobState:
    """The state of a job. `why` is the scheduler's reason, `hosts` each node's machine.

    `preempted`: the scheduler gave the job's machines to another job, or ended it at its time limit. `cancelled`:
    somebody ended it. `ending`: its last processes end. `cannot_start`: it will never start. `missing`: the scheduler
    knows no such job: somebody ended it, or it ended by itself a while ago.
    """

    phase: JobPhase
    why: str = ""
    hosts: Mapping[str, str] = field(default_factory=dict)
    lost_nodes: frozenset[str] = frozenset()
    preempted: bool = False
    cancelled: bool = False
    ending: bool = False
    cannot_start: bool = False
    missing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedCluster:
    """An inventory, and notes on guesses and omissions."""

    inventory: Inventory
    notes: tuple[str, ...]


class Scheduler(Protocol):
    """Starts the nodes of a plan together. Each call may raise ProvisionError."""

    form: str
    """This scheduler's format of `export`."""

    shares_folders: bool
    """Whether nodes see the run's folder under the same path, so that agents communicate through files."""

    def identity(self) -> str:
        """Return the unique identity of the cluster that answers."""

    def check(self, inventory: Inventory) -> None:
        """Raise ProvisionError, with the next step, if nothing can be submitted from here."""

    def inventory(
        self, *, accelerators: Collection[str], checkpoints: str, python: str, as_of: date
    ) -> ImportedCluster:
        """Return the scheduler's inventory of its nodes; `accelerators` are the names that have profiles."""

    def text(self, job: ClusterJob) -> str:
        """Return a job with its plan as input for the scheduler's own command. Raises RequestError."""

    def submit(self, job: ClusterJob, folder: Path) -> str:
        """Submit a job and return its id; its files are in `folder`."""

    def find(self, job: ClusterJob) -> str | None:
        """Return the id of a submitted job, by its run and generation; None if there is none."""

    def state(self, job_id: str, job: ClusterJob) -> JobState:
        """Return a job's state, with the machines of its nodes."""
        ...

    def cancel(self, job_id: str, inventory: Inventory) -> None:
        """End a job; one that has ended already is no error. The agents get a signal, and time to save."""

    def free(self, group: str, inventory: Inventory, avoid: frozenset[str]) -> tuple[str, ...]:
        """Return the machines of a group that could start now."""

    def unresponsive_machines(self, machines: Collection[str]) -> frozenset[str]:
        """Return the cluster's machines that don't answer, without those that have left it."""

    def events(self, job_id: str, job: ClusterJob, node: str, offset: int) -> tuple[bytes, int]:
        """Return an agent's output since an offset, and the next offset, if folders are not shared."""


def check_identity(scheduler: Scheduler, folder: RunFolder) -> None:
    """Raise ProvisionError if a cluster answers that does not have the run's jobs."""
    started = [entry.data for entry in read(folder.journal_file) if entry.event is Event.PROVISION_STARTED]
    names = (name for data in started for key in data if key.endswith(f"_{CLUSTER_ID}s") for name in data[key])
    known = {str(name).rpartition("/")[2] for name in names}
    if known and (there := scheduler.identity()) not in known:
        raise ProvisionError(other_cluster(there, *sorted(known)))


def other_cluster(there: str, *wanted: str) -> str:
    return (
        f"this machine is connected to cluster {there}, but the run's jobs are on {', '.join(wanted)}; select that "
        "cluster (kubectl's context, or one of its login nodes) and try again"
    )


def unanswered(machines: Collection[str]) -> str:
    """Describe what is unknown about jobs on machines that don't answer."""
    many = len(machines) > 1
    return (
        f"{'machines' if many else 'machine'} {', '.join(sorted(machines))} {'do' if many else 'does'} not answer, so "
        f"{'their' if many else 'its'} processes may still be running; 'down' confirms the teardown once "
        f"{'they answer or leave' if many else 'it answers or leaves'} the cluster"
    )


def groups_of(document: PlanDocument) -> tuple[JobGroup, ...]:
    """Return the node groups of a plan, in the order of its nodes; nodes of one offer are a group.

    A group has the name of its zone, with a number if the zone has several.
    """
    found: dict[str, list[PlacedNode]] = {}
    for one in placed_nodes(document):
        found.setdefault(one.offer.id, []).append(one)
    offers = [nodes[0].offer for nodes in found.values()]
    zones = [offer.zone for offer in offers]
    return tuple(
        JobGroup(
            name=offer.zone if zones.count(offer.zone) == 1 else f"{offer.zone}-{zones[: place + 1].count(offer.zone)}",
            accelerator=offer.accelerator,
            devices=offer.accelerator_count,
            nodes=tuple(one.node.id for one in nodes),
        )
        for place, (offer, nodes) in enumerate(zip(offers, found.values(), strict=True))
    )


def check_job(document: PlanDocument) -> None:
    """Raise RequestError if a scheduler's nodes can't get what the job needs."""
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
    """Raise as `check_job` does, and ProvisionError if a plan's scheduler is unreachable from here."""
    from sailor_cloud.provision import providers

    check_job(document)
    scheduler, inventory = providers.of(document.home.provider).scheduler, document.job.cloud.inventory
    if scheduler is not None and inventory is not None:
        scheduler.check(inventory)
