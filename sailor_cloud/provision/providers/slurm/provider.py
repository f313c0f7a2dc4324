"""Slurm's half of provisioning: jobs are found by their comment and cancelled."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.jobs import JOB, unanswered
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    LiveResource,
    labels_in,
)
from sailor_cloud.provision.providers.slurm.commands import cancel, hostnames, hosts_down, slurm
from sailor_cloud.provision.providers.slurm.scheduler import Slurm
from sailor_cloud.provision.scheduled import SchedulerProvider

_NAME = "slurm"
# The name of a run's job; see `ClusterJob.name`.
_NAMED = re.compile(r"sailor-(.+)-g\d+")


class SlurmJobs(SchedulerProvider):
    name = _NAME
    scheduler = Slurm()
    ends_within_s = 90.0  # slurmd kills processes 30 s after their first signal (KillWait).

    def jobs(self, cluster: str, run_id: str | None) -> Iterator[LiveResource]:
        return _jobs(cluster, run_id)

    def end(self, namespace: str, job: str) -> None:
        cancel(job)


def _jobs(cluster: str, run_id: str | None) -> Iterator[LiveResource]:
    """Yield a resource for each node of each queued or running job."""
    shown = slurm("squeue", "--noheader", "--format=%i|%T|%N|%j|%k")
    rows = [line.split("|", 4) for line in shown.splitlines() if line.count("|") >= 4]
    if shown.strip() and not rows:
        # Only empty output means that there is no job.
        raise ProvisionError(f"squeue did not print a list of jobs: {shown.strip()[:200]!r}")
    for job, state, left, name, comment in rows:
        labels = labels_in(comment)
        if RUN_LABEL not in labels and (named := _NAMED.fullmatch(name)):
            # Some sites write comments of their own.
            labels[RUN_LABEL] = named[1]
        if RUN_LABEL not in labels or run_id not in (None, labels[RUN_LABEL]):
            continue
        silent = ""
        if state == "COMPLETING" and left and set(hostnames(left)) <= hosts_down(hostnames(left)):
            silent = unanswered(hostnames(left))
        # Only the journal knows which nodes were on the machines that an ending job waits for.
        for node in labels.get(NODE_LABEL, "").split(",") if not silent else ("",):
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
                silent=silent,
            )


PROVIDER = SlurmJobs()
