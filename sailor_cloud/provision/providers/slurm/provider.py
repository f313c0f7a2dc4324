"""Slurm's half of provisioning: jobs are found by their comment and cancelled."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.jobs import JOB, check_identity
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    LiveResource,
    labels_in,
)
from sailor_cloud.provision.providers.scheduled import SchedulerProvider
from sailor_cloud.provision.providers.slurm.commands import cancel, hostnames, hosts_down, slurm
from sailor_cloud.provision.providers.slurm.scheduler import Slurm

if TYPE_CHECKING:
    from sailor_cloud.run.folder import RunFolder

# A job that was cancelled may take so long: slurmd kills what has not ended 30 s after its first signal (KillWait).
_ENDS_WITHIN_S = 90.0
_NAME = "slurm"


class SlurmJobs(SchedulerProvider):
    name = _NAME
    scheduler = Slurm()

    def jobs(self, cluster: str, run_id: str | None) -> Iterator[LiveResource]:
        return _jobs(cluster, run_id)

    def remove(self, resources: Sequence[LiveResource], *, folder: RunFolder | None, poll_s: float) -> list[str]:
        problems: list[str] = []
        if folder is not None:
            try:
                check_identity(self.scheduler, folder)
            except ProvisionError as error:
                return [str(error)]
        jobs = sorted({found.name for found in resources})
        for job in jobs:
            try:
                cancel(job)
            except ProvisionError as error:
                problems.append(str(error))
        until = time.monotonic() + _ENDS_WITHIN_S
        pause_s = 0.1
        while not problems and time.monotonic() < until:
            if not {found.name for found in _jobs("", None)} & set(jobs):
                return []
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, poll_s)
        return problems or [f"job {', '.join(jobs)} has not ended {_ENDS_WITHIN_S:.0f} s after scancel"]


def _jobs(cluster: str, run_id: str | None) -> Iterator[LiveResource]:
    """Yield a resource for each node of each job that is queued or runs."""
    for line in slurm("squeue", "--noheader", "--format=%i|%T|%N|%k").splitlines():
        job, state, left, comment = line.split("|", 3)
        labels = labels_in(comment)
        if RUN_LABEL not in labels or run_id not in (None, labels[RUN_LABEL]):
            continue
        if state == "COMPLETING" and left and set(hostnames(left)) <= hosts_down(hostnames(left)):
            # Slurm waits for machines that don't answer any more; nobody else can end what may run there.
            continue
        for node in labels.get(NODE_LABEL, "").split(","):
            yield LiveResource(
                provider=_NAME,
                region=cluster,
                type=JOB,
                # The components of a heterogeneous job are called 12+0, 12+1: all end with the first.
                name=job.split("+")[0],
                run_id=labels[RUN_LABEL],
                node=node,
                owner=labels.get(OWNER_LABEL, ""),
                expires=labels.get(EXPIRES_LABEL, ""),
                detail=state.lower(),
                ending=state == "COMPLETING",
            )


PROVIDER = SlurmJobs()
