"""The manifests of a job: a Secret with the plan, and a JobSet with one replicated job for each node group."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import yaml

from sailor_cloud.errors import RequestError
from sailor_cloud.model.inventory import NodeGroup
from sailor_cloud.provision.jobs import RENDEZVOUS_PORT, ClusterJob, JobGroup
from sailor_cloud.provision.live_resources import NODE_LABEL, RUN_LABEL

GROUP, VERSION, PLURAL = "jobset.x-k8s.io", "v1alpha2", "jobsets"
CONTAINER = "agent"
# A Secret holds at most 1 MiB (Kubernetes, "Secrets", 2026-11).
_MOST_BYTES = 1_000_000
# How long finished pods and their logs are kept, and how long pods of a deleted job have for a last checkpoint.
_KEPT_S, _GRACE_S = 3600, 60


def names(job: ClusterJob) -> tuple[str, dict[str, str]]:
    """Return the name of the JobSet, and those of its replicated jobs by group, short enough for a pod's host name."""
    name = f"sailor-{hashlib.sha256(f'{job.run_id}{job.variant}'.encode()).hexdigest()[:8]}-g{job.generation}"
    fits = all(len(group.name) <= 20 for group in job.groups)
    short = {group.name: group.name if fits else f"group-{number}" for number, group in enumerate(job.groups)}
    return name, short


def manifests(job: ClusterJob) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a Secret and the JobSet: the plan may contain variables from the environment of whoever starts it.

    Raises RequestError for a plan that is too large.
    """
    if len(job.artefact) > _MOST_BYTES:
        raise RequestError(f"the plan has {len(job.artefact):,} bytes, and a Secret holds {_MOST_BYTES:,}")
    name, short = names(job)
    labels = {RUN_LABEL: job.run_id}
    notes = {key: value for key, value in job.labels().items() if key != RUN_LABEL}
    metadata = {"name": name, "namespace": job.inventory.namespace, "labels": labels, "annotations": notes}
    first = job.groups[0].name
    meeting = f"{name}-{short[first]}-0-0.{name}:{RENDEZVOUS_PORT}"
    queue = {"kueue.x-k8s.io/queue-name": job.inventory.queue} if job.inventory.queue else {}
    plan = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": {"plan.json": job.artefact}}
    jobset = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "JobSet",
        "metadata": {**metadata, "labels": labels | queue},
        "spec": {
            # After a failure the run plans again instead of repeating the old shape.
            "failurePolicy": {"maxRestarts": 0},
            "successPolicy": {"operator": "All"},
            "network": {"enableDNSHostnames": True, "subdomain": name},
            "ttlSecondsAfterFinished": _KEPT_S,
            "replicatedJobs": [_replicated(job, group, short[group.name], name, meeting) for group in job.groups],
        },
    }
    return plan, jobset


def as_yaml(job: ClusterJob) -> str:
    """Return the manifests for `kubectl create -f`. Each export has its own token, and so its own name."""
    text = yaml.safe_dump_all(manifests(job), sort_keys=False, width=110)
    if not job.variables:
        return text
    lines = "; ".join(f"printf '{name}=%s\\n' \"${name}\"" for name in job.variables)
    secret = f"{_variables(names(job)[0])} -n {job.inventory.namespace}"
    return (
        f"# The command takes {', '.join(job.variables)} from a Secret that is not in this file; make it first:\n"
        f"#   ({lines}) | kubectl create secret generic {secret} --from-env-file=/dev/stdin\n{text}"
    )


def _variables(name: str) -> str:
    """Return the name of the Secret with the variables that an exported job takes from its pods' environment."""
    return f"{name}-env"


def _replicated(job: ClusterJob, group: JobGroup, short: str, name: str, meeting: str) -> dict[str, Any]:
    count = len(group.nodes)
    return {
        "name": short,
        "replicas": 1,
        "template": {
            "spec": {
                "parallelism": count,
                "completions": count,
                "completionMode": "Indexed",
                "backoffLimit": 0,
                "activeDeadlineSeconds": _seconds(job),
                "template": {
                    "metadata": {
                        "labels": {RUN_LABEL: job.run_id},
                        "annotations": {NODE_LABEL: ",".join(group.nodes)},
                    },
                    "spec": _pod(job, group, name, meeting),
                },
            }
        },
    }


def _pod(job: ClusterJob, group: JobGroup, name: str, meeting: str) -> dict[str, Any]:
    has, cluster = job.inventory.groups[group.name], job.inventory
    # Kubernetes replaces $(NAME) by the value of a known variable; indexed jobs have this one.
    agent = job.command(
        group,
        index="$(JOB_COMPLETION_INDEX)",
        meeting=meeting,
        plan="/etc/sailor-cloud/plan.json",
        home="/sailor-cloud",
    )
    volumes: list[dict[str, Any]] = [
        {"name": "plan", "secret": {"secretName": name}},
        {"name": "home", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory"}},
    ]
    mounts = [
        {"name": "plan", "mountPath": "/etc/sailor-cloud", "readOnly": True},
        {"name": "home", "mountPath": "/sailor-cloud"},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    if cluster.claim is not None:
        volumes.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": cluster.claim}})
        mounts.append({"name": "checkpoints", "mountPath": cluster.checkpoints})
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _GRACE_S,
        "containers": [
            {
                "name": CONTAINER,
                "image": cluster.runtime.image,
                # Nodes may start long after each other; the job's deadline ends those that wait alone.
                "command": [*agent, "--join-s", str(_seconds(job)), "--echo"],
                "ports": [{"containerPort": RENDEZVOUS_PORT, "name": "rendezvous"}],
                "resources": _resources(has, group.devices),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if job.variables:
        source = _variables(name)
        pod["containers"][0]["env"] = [
            {"name": one, "valueFrom": {"secretKeyRef": {"name": source, "key": one}}} for one in job.variables
        ]
    pod["tolerations"] = [one.model_dump(exclude_none=True) for one in has.tolerated]
    if has.node_selector:
        pod["nodeSelector"] = dict(has.node_selector)
    if cluster.service_account is not None:
        pod["serviceAccountName"] = cluster.service_account
    pod["affinity"] = _affinity(job, group)
    return pod


def _seconds(job: ClusterJob) -> int:
    return max(1, math.ceil(job.seconds))


def _resources(has: NodeGroup, devices: int) -> dict[str, dict[str, str]]:
    """Return the devices of a pod, and the processors and memory that the inventory names."""
    requests = {
        **({"cpu": str(has.vcpus)} if has.vcpus is not None else {}),
        **({"memory": f"{math.floor(has.memory_gib * 1024)}Mi"} if has.memory_gib is not None else {}),
    }
    return {"limits": {has.resource: str(devices)}} | ({"requests": requests} if requests else {})


def _affinity(job: ClusterJob, group: JobGroup) -> dict[str, Any]:
    """Return the affinity: each pod on its own node, since a plan's nodes are whole ones, and on no lost node."""
    same = {"matchLabels": {RUN_LABEL: job.run_id}}
    found: dict[str, Any] = {
        "podAntiAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": [
                {"labelSelector": same, "topologyKey": "kubernetes.io/hostname"}
            ]
        }
    }
    if job.avoid:
        # A node's host name may differ from its name. Kubernetes takes one name per entry, and all entries must hold.
        elsewhere = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in sorted(job.avoid)]
        found["nodeAffinity"] = {
            "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchFields": elsewhere}]}
        }
    return found
