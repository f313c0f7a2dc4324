"""Kubernetes' half of provisioning: JobSets are found by their labels and deleted."""

from __future__ import annotations

from collections.abc import Iterator

from sailor_cloud.provision.jobs import JOB, unanswered
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    NODE_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    LiveResource,
)
from sailor_cloud.provision.providers.kubernetes.scheduler import Kubernetes, delete, jobsets, pods_left
from sailor_cloud.provision.scheduled import SchedulerProvider

_NAME = "kubernetes"


class JobSets(SchedulerProvider):
    name = _NAME
    scheduler = Kubernetes()
    ends_within_s = 120.0  # Pods have a minute for a last checkpoint.

    def jobs(self, cluster: str, run_id: str | None) -> Iterator[LiveResource]:
        return _jobs(cluster, run_id)

    def end(self, namespace: str, job: str) -> None:
        delete(job, namespace)


def _jobs(cluster: str, run_id: str | None) -> Iterator[LiveResource]:
    """Yield a resource for each node of each JobSet, and for each pod that outlives its JobSet."""
    listed = jobsets(run_id)
    left = pods_left(run_id)
    known = {(jobset["metadata"]["namespace"], jobset["metadata"]["name"]) for jobset in listed}
    for namespace, name, run, node, machine in left:
        if machine or (namespace, name) not in known:
            yield LiveResource(
                provider=_NAME,
                region=cluster,
                type=JOB,
                name=name,
                title=namespace,
                run_id=run,
                node=node,
                ending=True,
                silent=unanswered({machine}) if machine else "",
            )
    running = {(namespace, name) for namespace, name, _, _, machine in left if not machine}
    for jobset in listed:
        metadata = jobset["metadata"]
        if "deletionTimestamp" in metadata and (metadata["namespace"], metadata["name"]) not in running:
            # The JobSet waits for pods of machines that don't answer; the loop above yields those.
            continue
        labels, notes = metadata.get("labels", {}), metadata.get("annotations", {})
        groups = (group["template"]["spec"]["template"] for group in jobset["spec"]["replicatedJobs"])
        nodes = [
            node
            for pod in groups
            for node in pod.get("metadata", {}).get("annotations", {}).get(NODE_LABEL, "").split(",")
        ]
        for node in nodes:
            yield LiveResource(
                provider=_NAME,
                region=cluster,
                type=JOB,
                name=metadata["name"],
                title=metadata["namespace"],
                run_id=labels[RUN_LABEL],
                node=node,
                owner=notes.get(OWNER_LABEL, ""),
                expires=notes.get(EXPIRES_LABEL, ""),
                ending="deletionTimestamp" in metadata,
            )


PROVIDER = JobSets()
