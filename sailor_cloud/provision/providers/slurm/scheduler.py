"""Slurm through its own commands: submits, queries, cancels."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from datetime import date
from pathlib import Path

from sailor_cloud.durable import write_atomically
from sailor_cloud.errors import ProvisionError
from sailor_cloud.model.inventory import Inventory
from sailor_cloud.provision.jobs import ClusterJob, ImportedCluster, JobPhase, JobState
from sailor_cloud.provision.providers.slurm.batch import batch_script, check_groups, check_image
from sailor_cloud.provision.providers.slurm.commands import (
    cancel,
    cluster_name,
    hostnames,
    hosts_down,
    hosts_silent,
    node_rows,
    slurm,
)

_QUEUED = frozenset({"PENDING", "CONFIGURING", "REQUEUED", "RESV_DEL_HOLD"})
_RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"})
# Slurm gave the nodes to another job, or the job has had them for as long as it may.
_TAKEN_BACK = frozenset({"PREEMPTED", "REVOKED", "TIMEOUT"})
# Reasons for which a job waits forever (squeue(1), "JOB REASON CODES").
_HOPELESS = frozenset(
    {
        "AccountNotAllowed",
        "AssocMaxWallDurationPerJobLimit",
        "BadConstraints",
        "InvalidAccount",
        "InvalidQOS",
        "JobHeldAdmin",
        "PartitionNodeLimit",
        "PartitionTimeLimit",
        "QOSMaxWallDurationPerJobLimit",
        "QOSNotAllowed",
        "QOSTimeLimit",
    }
)
_FREE = frozenset({"idle", "completing"})


class Slurm:
    """See `provision.jobs.Scheduler`. All nodes must see the run's folder."""

    form = "slurm"
    shares_folders = True

    def inventory(
        self, *, accelerators: Collection[str], checkpoints: str, python: str, as_of: date
    ) -> ImportedCluster:
        from sailor_cloud.provision.providers.slurm.inventory import read_cluster

        return read_cluster(accelerators=accelerators, checkpoints=checkpoints, python=python, as_of=as_of)

    def text(self, job: ClusterJob) -> str:
        check_groups(job)
        check_image(job.inventory.runtime.image)
        return batch_script(job)

    def identity(self) -> str:
        return cluster_name()

    def check(self, inventory: Inventory) -> None:
        check_image(inventory.runtime.image)
        missing = [name for name in ("sbatch", "squeue", "scancel", "scontrol", "sinfo") if shutil.which(name) is None]
        if missing:
            raise ProvisionError(
                f"no {missing[0]} on PATH, so nothing can be submitted to Slurm; run this on a login node of "
                f"{inventory.name}, or write a script for one with 'sailor-cloud export PLAN --format slurm'"
            )
        # Raises by itself if the controller does not answer.
        slurm("sinfo", "--noheader", "--format=%P")
        cluster_name()

    def submit(self, job: ClusterJob, folder: Path) -> str:
        check_groups(job)
        plan, script = folder / f"plan-g{job.generation}.json", folder / f"job-g{job.generation}.sh"
        write_atomically(plan, job.artefact)
        text = batch_script(job, plan=str(plan), output=str(folder / f"slurm-g{job.generation}.log"))
        write_atomically(script, text)
        printed = slurm("sbatch", "--parsable", str(script))
        job_id = printed.strip().split(";")[0]
        if not job_id.isdigit():
            raise ProvisionError(f"sbatch printed no job id but {printed.strip()[:200]!r}")
        return job_id

    def find(self, job: ClusterJob) -> str | None:
        found = slurm("squeue", "--noheader", "--me", f"--name={job.name}", "--format=%i").split()
        # The components of a heterogeneous job are called 12+0, 12+1.
        return found[0].split("+")[0] if found else None

    def state(self, job_id: str, job: ClusterJob) -> JobState:
        try:
            shown = slurm("scontrol", "show", "job", "--oneliner", job_id)
        except ProvisionError as error:
            if "Invalid job id" in str(error):
                # Slurm forgets jobs some minutes after their end.
                return JobState(phase=JobPhase.ENDED, why="Slurm does not know the job any more")
            raise
        rows = sorted((_fields(line) for line in shown.splitlines() if line.strip()), key=_offset)
        states = [row.get("JobState", "") for row in rows]
        reasons = sorted({row.get("Reason", "None") for row in rows} - {"None"})
        hosts = _hosts(rows, job)
        down = hosts_down(sorted(set(hosts.values())))
        lost = frozenset(node for node, host in hosts.items() if host in down)
        why = ", ".join([*sorted(set(states)), *reasons])
        if any(state not in _QUEUED | _RUNNING for state in states) or not states:
            return JobState(
                phase=JobPhase.ENDED,
                why=why,
                hosts=hosts,
                lost_nodes=lost,
                preempted=any(state in _TAKEN_BACK for state in states),
                cancelled=set(states) == {"CANCELLED"} and not lost,
                ending="COMPLETING" in states,
            )
        queued = any(state in _QUEUED for state in states)
        hopeless = queued and bool(_HOPELESS & set(reasons))
        phase = JobPhase.QUEUED if queued else JobPhase.RUNNING
        return JobState(phase=phase, why=why, hosts=hosts, lost_nodes=lost, cannot_start=hopeless)

    def cancel(self, job_id: str, inventory: Inventory) -> None:
        cancel(job_id)

    def free(self, group: str, inventory: Inventory, avoid: frozenset[str]) -> tuple[str, ...]:
        has = inventory.groups[group]
        found = set()
        for row in node_rows(has.partition):
            state = row.state.rstrip("~#!%$@^-")
            if state not in _FREE or row.name in avoid:
                continue
            if has.constraint and re.fullmatch(r"\w[\w.-]*", has.constraint) and has.constraint not in row.features:
                continue
            if has.gres and not any(gres.startswith(has.gres) for gres in row.gres):
                continue
            found.add(row.name)
        return tuple(sorted(found))

    def unresponsive_machines(self, machines: Collection[str]) -> frozenset[str]:
        return hosts_silent(machines)

    def events(self, job_id: str, job: ClusterJob, node: str, offset: int) -> tuple[bytes, int]:
        raise AssertionError("the agents' folders are shared")


def _fields(line: str) -> dict[str, str]:
    return dict(re.findall(r"(\w+)=(\S*)", line))


def _offset(row: dict[str, str]) -> int:
    return int(row.get("HetJobOffset", "0"))


def _hosts(rows: list[dict[str, str]], job: ClusterJob) -> dict[str, str]:
    """Return the machine of each node: components are in the order of groups, machines in that of indices."""
    found: dict[str, str] = {}
    for group, row in zip(job.groups, rows, strict=False):
        listed = row.get("NodeList", "")
        if listed in ("", "(null)", "None"):
            continue
        found.update(zip(group.nodes, hostnames(listed), strict=False))
    return found
