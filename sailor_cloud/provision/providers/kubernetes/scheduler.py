"""A Kubernetes cluster through its official client: creates JobSets, reads their pods, deletes them."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import Any

from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.model.inventory import Inventory, NodeGroup
from sailor_cloud.provision.jobs import ClusterJob, ImportedCluster, JobPhase, JobState
from sailor_cloud.provision.live_resources import NODE_LABEL, RUN_LABEL
from sailor_cloud.provision.providers.kubernetes.jobset import (
    CONTAINER,
    GROUP,
    PLURAL,
    VERSION,
    as_yaml,
    manifests,
    names,
)

_TIMEOUT_S = 30.0
_OF_JOBSET = "jobset.sigs.k8s.io/jobset-name"
_OF_GROUP = "jobset.sigs.k8s.io/replicatedjob-name"
_INDEX = "batch.kubernetes.io/job-completion-index"


class Kubernetes:
    """See `provision.jobs.Scheduler`. Pods share no folder with the controller, so it reads their logs."""

    form = "jobset"
    shares_folders = False

    def inventory(
        self, *, accelerators: Collection[str], checkpoints: str, python: str, as_of: date
    ) -> ImportedCluster:
        raise ProvisionError("an inventory of Kubernetes is written by hand; docs/clusters.md has an example")

    def text(self, job: ClusterJob) -> str:
        return as_yaml(job)

    def identity(self) -> str:
        """Return the uid of kube-system, which is constant for a cluster; the API's address if that is hidden."""
        with connect_api() as api:
            try:
                return str(api.core.read_namespace("kube-system", _request_timeout=_TIMEOUT_S).metadata.uid)
            except api.refused as error:
                if error.status != 403:
                    raise
                return str(api.core.api_client.configuration.host).rpartition("/")[2]

    def check(self, inventory: Inventory) -> None:
        with connect_api() as api:
            found = api.jobsets.list_namespaced_custom_object(
                GROUP, VERSION, inventory.namespace, PLURAL, limit=1, _request_timeout=_TIMEOUT_S
            )
            _whole(found, "items")

    def submit(self, job: ClusterJob, folder: Path) -> str:
        plan, jobset = manifests(job)
        with connect_api() as api:
            place = job.inventory.namespace
            name = str(jobset["metadata"]["name"])
            made = _whole(
                api.jobsets.create_namespaced_custom_object(
                    GROUP, VERSION, place, PLURAL, jobset, _request_timeout=_TIMEOUT_S
                ),
                "metadata",
            )
            # Pods wait for their plan. With this owner, Kubernetes deletes the plan with the JobSet without our help.
            owner = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "JobSet", "name": name, "uid": made["metadata"]["uid"]}
            owned = {**plan, "metadata": {**plan["metadata"], "ownerReferences": [owner]}}
            try:
                api.core.create_namespaced_secret(place, owned, _request_timeout=_TIMEOUT_S)
            except Exception:
                delete(name, place)
                raise
        return name

    def find(self, job: ClusterJob) -> str | None:
        name = names(job)[0]
        with connect_api() as api:
            place = job.inventory.namespace
            found = api.get_or_none(api.jobsets.get_namespaced_custom_object, GROUP, VERSION, place, PLURAL, name)
        return None if found is None else name

    def state(self, job_id: str, job: ClusterJob) -> JobState:
        place = job.inventory.namespace
        with connect_api() as api:
            jobset = api.get_or_none(api.jobsets.get_namespaced_custom_object, GROUP, VERSION, place, PLURAL, job_id)
            if jobset is None or "deletionTimestamp" in _whole(jobset, "metadata")["metadata"]:
                if any(answers for _, answers in _living(api, f"{_OF_JOBSET}={job_id}")):
                    return JobState(phase=JobPhase.RUNNING, why="the JobSet was deleted, and its pods end")
                return JobState(phase=JobPhase.ENDED, why="there is no such JobSet any more", missing=True)
            pods = api.core.list_namespaced_pod(
                place, label_selector=f"{_OF_JOBSET}={job_id}", _request_timeout=_TIMEOUT_S
            ).items
            nodes = [(pod, node) for pod in pods if (node := _node_of(pod, job)) is not None]
            hosts = {node: pod.spec.node_name for pod, node in nodes if pod.spec.node_name}
            ready = _ready(api, set(hosts.values())) if hosts else {}
        down = {node for pod, node in nodes if _disrupted(pod)}
        down |= {node for node, host in hosts.items() if not ready.get(host, False)}
        conditions = {
            one["type"]: one for one in jobset.get("status", {}).get("conditions", ()) if one.get("status") == "True"
        }
        reasons = [
            f"{one.get('reason', kind)}: {one.get('message', '')}".rstrip(": ") for kind, one in conditions.items()
        ]
        why = "; ".join(reasons) or ", ".join(sorted({_phase(pod) for pod in pods})) or "no pods yet"
        # Kueue preempts a job by suspending it, and would start the same shape again.
        suspended = bool(jobset.get("spec", {}).get("suspend")) and bool(hosts)
        if {"Completed", "Failed"} & conditions.keys() or suspended:
            ending = any(_phase(pod) == "Running" and ready.get(pod.spec.node_name, False) for pod in pods)
            return JobState(
                phase=JobPhase.ENDED,
                why=why,
                hosts=hosts,
                lost_nodes=frozenset(down),
                preempted=suspended,
                ending=ending,
            )
        wanted = sum(len(group.nodes) for group in job.groups)
        running = sum(_phase(pod) in ("Running", "Succeeded") for pod in pods)
        phase = JobPhase.RUNNING if running >= wanted else JobPhase.QUEUED
        return JobState(phase=phase, why=why, hosts=hosts, lost_nodes=frozenset(down))

    def cancel(self, job_id: str, inventory: Inventory) -> None:
        delete(job_id, inventory.namespace)

    def free(self, group: str, inventory: Inventory, avoid: frozenset[str]) -> tuple[str, ...]:
        has = inventory.groups[group]
        selector = ",".join(f"{key}={value}" for key, value in sorted(has.node_selector.items()))
        with connect_api() as api:
            nodes = api.core.list_node(label_selector=selector, _request_timeout=_TIMEOUT_S).items
            pods = api.core.list_pod_for_all_namespaces(_request_timeout=_TIMEOUT_S).items
        taken: dict[str, int] = {}
        for pod in pods:
            if pod.spec.node_name and _phase(pod) in ("Pending", "Running"):
                taken[pod.spec.node_name] = taken.get(pod.spec.node_name, 0) + _asked(pod, has.resource)
        return tuple(
            sorted(
                node.metadata.name
                for node in nodes
                if node.metadata.name not in avoid
                and _is_ready(node)
                and not node.spec.unschedulable
                and all(_tolerates(has, taint) for taint in node.spec.taints or ())
                and int((node.status.allocatable or {}).get(has.resource, 0)) - taken.get(node.metadata.name, 0)
                >= has.devices_per_node
            )
        )

    def unresponsive_machines(self, machines: Collection[str]) -> frozenset[str]:
        with connect_api() as api:
            return frozenset(name for name, ready in _ready(api, set(machines)).items() if not ready)

    def events(self, job_id: str, job: ClusterJob, node: str, offset: int) -> tuple[bytes, int]:
        place = job.inventory.namespace
        group = next(group for group in job.groups if node in group.nodes)
        short = names(job)[1][group.name]
        selector = f"{_OF_JOBSET}={job_id},{_OF_GROUP}={short},{_INDEX}={group.nodes.index(node)}"
        with connect_api() as api:
            pods = api.core.list_namespaced_pod(place, label_selector=selector, _request_timeout=_TIMEOUT_S).items
            if not pods or _phase(pods[0]) == "Pending":
                return b"", offset
            answer = api.get_or_none(
                api.core.read_namespaced_pod_log,
                pods[0].metadata.name,
                place,
                container=CONTAINER,
                _preload_content=False,
            )
        if answer is None:
            return b"", offset
        log = bytes(answer.data)
        # A kubelet begins a new file every 10 MiB and shows only that; events that repeat have known sequence numbers.
        return log[offset if offset <= len(log) else 0 :], len(log)


class KubernetesApi:
    """The used parts of the API; `kubernetes` is the official client."""

    def __init__(self, kubernetes: Any) -> None:
        self.refused = kubernetes.client.exceptions.ApiException
        self.core = kubernetes.client.CoreV1Api()
        self.jobsets = kubernetes.client.CustomObjectsApi()

    def get_or_none(self, call: Any, *arguments: Any, **options: Any) -> Any:
        """Return the result of a call; None if there is no such object."""
        try:
            return call(*arguments, _request_timeout=_TIMEOUT_S, **options)
        except self.refused as error:
            if error.status == 404:
                return None
            raise

    def delete_if_exists(self, delete: Any, *arguments: Any, **options: Any) -> None:
        """Delete an object; one that is deleted already is no error."""
        self.get_or_none(delete, *arguments, **options)


@contextmanager
def connect_api() -> Iterator[KubernetesApi]:
    """Connect to the cluster of kubeconfig, or of the pod that runs this. Raises ProvisionError."""
    try:
        import kubernetes
        import urllib3
    except ImportError as error:
        raise ProvisionError(
            "the package kubernetes is not installed; pip install 'sailor-cloud[kubernetes]', or write manifests with "
            "'sailor-cloud export PLAN --format jobset'"
        ) from error
    try:
        # The client reads the variable only once, at import, and prints its choice.
        named, usual = os.environ.get("KUBECONFIG"), Path("~/.kube/config").expanduser()
        if named or usual.exists():
            kubernetes.config.load_kube_config(config_file=named or str(usual))
        else:
            kubernetes.config.load_incluster_config()
    except kubernetes.config.ConfigException as error:
        raise CredentialsError(
            f"no Kubernetes cluster is configured: {str(error).rstrip('.')}; set KUBECONFIG"
        ) from error
    try:
        yield KubernetesApi(kubernetes)
    except kubernetes.client.exceptions.ApiException as error:
        raise ProvisionError(_error_message(error)) from error
    except urllib3.exceptions.HTTPError as error:
        raise ProvisionError(f"the Kubernetes API does not answer: {error}") from error
    except ValueError as error:
        where, reply = kubernetes.client.Configuration.get_default_copy().host, " ".join(str(error).split())[:200]
        raise ProvisionError(
            f"what answers at {where} is not a Kubernetes API: {reply}; look at the address in the kubeconfig"
        ) from error


def delete(name: str, namespace: str) -> None:
    """Delete a JobSet and its plan; Kubernetes ends the pods and keeps the JobSet until they have ended."""
    place = (GROUP, VERSION, namespace, PLURAL, name)
    with connect_api() as api:
        api.delete_if_exists(api.jobsets.delete_namespaced_custom_object, *place, propagation_policy="Foreground")
        api.delete_if_exists(api.core.delete_namespaced_secret, name, namespace)


def pods_left(run_id: str | None) -> list[tuple[str, str, str, str, str]]:
    """Return namespace, JobSet, run and node of each pod that may still run, of one run or of all runs.

    The last item is the pod's machine if that does not answer, else empty.
    """
    with connect_api() as api:
        pods = _living(api, RUN_LABEL if run_id is None else f"{RUN_LABEL}={run_id}")
    found = []
    for pod, answers in pods:
        notes, labels = pod.metadata.annotations or {}, pod.metadata.labels or {}
        nodes, index = notes.get(NODE_LABEL, "").split(","), labels.get(_INDEX, "")
        node = nodes[int(index)] if index.isdigit() and int(index) < len(nodes) else ""
        silent = "" if answers else str(pod.spec.node_name)
        of = (pod.metadata.namespace, labels.get(_OF_JOBSET, pod.metadata.name), labels[RUN_LABEL])
        found.append((*of, node, silent))
    return found


def _living(api: KubernetesApi, selector: str) -> list[tuple[Any, bool]]:
    """Return the pods that may still run, and whether their machines answer, so that they can be ended."""
    pods = api.core.list_pod_for_all_namespaces(label_selector=selector, _request_timeout=_TIMEOUT_S).items
    pods = [pod for pod in pods if _phase(pod) in ("Pending", "Running", "Unknown")]
    hosts = {pod.spec.node_name for pod in pods if pod.spec.node_name}
    ready = _ready(api, hosts) if hosts else {}
    return [(pod, not pod.spec.node_name or ready.get(pod.spec.node_name, False)) for pod in pods]


def jobsets(run_id: str | None) -> list[dict[str, Any]]:
    """Return the JobSets of one run, or of all runs, in all namespaces."""
    selector = RUN_LABEL if run_id is None else f"{RUN_LABEL}={run_id}"
    with connect_api() as api:
        found = api.jobsets.list_cluster_custom_object(
            GROUP, VERSION, PLURAL, label_selector=selector, _request_timeout=_TIMEOUT_S
        )
        return list(_whole(found, "items")["items"])


def _whole(answer: Any, part: str) -> dict[str, Any]:
    """Return an answer that the client does not parse. Raises ValueError if it lacks a mandatory part."""
    if not isinstance(answer, dict) or part not in answer:
        raise ValueError(f"got {str(answer)[:80]!r} instead of an object with {part}")
    return answer


def _error_message(error: Any) -> str:
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, ValueError, KeyError):
        if error.status == 404:
            # An answer for an unknown path is not in the API's own format.
            return f"the cluster has no {PLURAL}.{GROUP}; install JobSet (https://jobset.sigs.k8s.io) and try again"
        message = error.reason
    # A webhook, a quota and a missing right all answer 403; only the last names the caller.
    if error.status == 401 or (error.status == 403 and " cannot " in message):
        return f"the Kubernetes API refuses: {message}; docs/clusters.md lists the rights that a run needs"
    return f"the Kubernetes API refuses: {message} ({error.status})"


def _node_of(pod: Any, job: ClusterJob) -> str | None:
    """Return the plan's node of a pod: in its replicated job's group, at its completion index."""
    labels = {**(pod.metadata.annotations or {}), **(pod.metadata.labels or {})}
    groups = {short: name for name, short in names(job)[1].items()}
    name, index = groups.get(labels.get(_OF_GROUP, "")), labels.get(_INDEX, "")
    for group in job.groups:
        if group.name == name and index.isdigit() and int(index) < len(group.nodes):
            return group.nodes[int(index)]
    return None


def _phase(pod: Any) -> str:
    return str(pod.status.phase or "Pending")


def _disrupted(pod: Any) -> bool:
    """Whether a pod was disrupted, not failed by itself (Kubernetes, "Pod disruption conditions")."""
    conditions = pod.status.conditions or ()
    return pod.status.reason in ("Evicted", "NodeLost", "Preempting") or any(
        one.type == "DisruptionTarget" and one.status == "True" for one in conditions
    )


def _ready(api: KubernetesApi, hosts: set[str]) -> dict[str, bool]:
    return {
        node.metadata.name: _is_ready(node)
        for node in api.core.list_node(_request_timeout=_TIMEOUT_S).items
        if node.metadata.name in hosts
    }


def _is_ready(node: Any) -> bool:
    return any(one.type == "Ready" and one.status == "True" for one in node.status.conditions or ())


def _tolerates(group: NodeGroup, taint: Any) -> bool:
    """Whether pods of a group may start in spite of a taint."""
    return taint.effect == "PreferNoSchedule" or any(
        one.key in (None, taint.key)
        and one.effect in (None, taint.effect)
        and (one.operator == "Exists" or (one.value or "") == (taint.value or ""))
        for one in group.tolerated
    )


def _asked(pod: Any, resource: str) -> int:
    limits = (one.resources.limits or {} for one in pod.spec.containers if one.resources is not None)
    return sum(int(limit.get(resource, 0)) for limit in limits)
