"""A stand-in for a Kubernetes API server with JobSet: pods are agents on this machine, with ranks that need no torch.

It knows what a run asks for, refuses a JobSet that the official schema does not allow, and puts each pod on a node of
its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import yaml

CRD = Path(__file__).parents[1] / "provision" / "providers" / "jobset" / "jobset.x-k8s.io_jobsets.yaml"
TESTS = Path(__file__).parents[1]
RESOURCE = "nvidia.com/gpu"
# A pod that has not ended so long after its first signal is killed.
GRACE_S = 5.0


@cache
def jobset_schema() -> dict[str, Any]:
    """The schema of the official CRD, in which no field may be that it does not name, as an API server has it."""
    crd = yaml.load(CRD.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    [version] = [one for one in crd["spec"]["versions"] if one["name"] == "v1alpha2"]
    return dict(_strict({**version["schema"]["openAPIV3Schema"]}))


def jobset_faults(manifest: dict[str, Any]) -> list[str]:
    body = {**manifest, "metadata": {}}
    found = jsonschema.Draft202012Validator(jobset_schema()).iter_errors(body)
    return [f"{error.json_path}: {error.message}" for error in found]


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
    if isinstance(schema.get("properties"), dict) and "type" in schema and "additionalProperties" not in schema:
        # `metadata` is checked by the server itself, and its schema names no fields.
        made["additionalProperties"] = False
    return made


@dataclass(slots=True)
class Pod:
    name: str
    labels: dict[str, str]
    node: str
    process: subprocess.Popen[bytes]
    log: Path
    limits: dict[str, str]
    notes: dict[str, str] = field(default_factory=dict)
    ends_at: float | None = None

    @property
    def phase(self) -> str:
        code = self.process.poll()
        return "Running" if code is None else "Succeeded" if code == 0 else "Failed"


@dataclass(slots=True)
class Cluster:
    """`nodes` are labels by name; each has room for one pod of `devices` GPUs, and may have taints."""

    folder: Path
    nodes: dict[str, dict[str, str]]
    devices: int = 2
    taints: dict[str, list[dict[str, str]]] = field(default_factory=dict)
    jobsets: dict[str, dict[str, Any]] = field(default_factory=dict)
    secrets: dict[str, dict[str, Any]] = field(default_factory=dict)
    pods: dict[str, list[Pod]] = field(default_factory=dict)
    down: set[str] = field(default_factory=set)
    uid: str = "0f1e"
    secrets_refused: bool = False
    created: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def phase(self, pod: Pod) -> str:
        """What a machine that does not answer last said of its pods stands as it was."""
        return "Running" if pod.node in self.down else pod.phase

    def lose(self, node: str) -> None:
        """A machine loses its power; its pods stay listed until it is back, or is taken out of `nodes`."""
        with self.lock:
            self.down.add(node)
            for pod in [pod for pods in self.pods.values() for pod in pods if pod.node == node]:
                os.killpg(pod.process.pid, signal.SIGKILL)

    def start(self, jobset: dict[str, Any]) -> None:
        name = jobset["metadata"]["name"]
        plan = self.folder / f"{name}.json"
        plan.write_text(self.secrets[name]["stringData"]["plan.json"])
        self.pods[name] = []
        taken: set[str] = set()
        for group in jobset["spec"]["replicatedJobs"]:
            spec = group["template"]["spec"]
            pod = spec["template"]["spec"]
            for index in range(spec["completions"]):
                node = self._node_for(pod, taken)
                taken.add(node)
                made = self._pod(name, group["name"], index, pod, node, plan)
                made.labels.update(spec["template"]["metadata"]["labels"])
                made.notes.update(spec["template"]["metadata"]["annotations"])
                self.pods[name].append(made)

    def _node_for(self, pod: dict[str, Any], taken: set[str]) -> str:
        avoid: set[str] = set()
        terms = pod["affinity"].get("nodeAffinity", {}).get("requiredDuringSchedulingIgnoredDuringExecution", {})
        for term in terms.get("nodeSelectorTerms", ()):
            avoid |= {value for one in term["matchFields"] for value in one["values"]}
        wanted = pod.get("nodeSelector", {}).items()
        return next(
            name
            for name, labels in self.nodes.items()
            if name not in taken | avoid | self.down and wanted <= labels.items()
        )

    def _pod(self, name: str, group: str, index: int, pod: dict[str, Any], node: str, plan: Path) -> Pod:
        [container] = pod["containers"]
        home = self.folder / f"{name}-{group}-{index}"
        home.mkdir()
        log = self.folder / f"{name}-{group}-{index}.log"
        given = {
            "/etc/sailor-cloud/plan.json": str(plan),
            "/sailor-cloud": str(home),
            "$(JOB_COMPLETION_INDEX)": str(index),
        }
        command = [given.get(word, word) for word in container["command"]]
        at = command.index("--rendezvous") + 1
        # Names of pods need the cluster's DNS.
        command[at] = re.sub(r"^[^:]+", "127.0.0.1", command[at])
        path = os.pathsep.join([str(TESTS), str(TESTS.parent / "runtime")])
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, *command[1:], "--rank-module", "factories.fake_trainer"],
                stdout=output,
                stderr=subprocess.DEVNULL,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
            )
        labels = {
            "jobset.sigs.k8s.io/jobset-name": name,
            "jobset.sigs.k8s.io/replicatedjob-name": group,
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        limits = container["resources"]["limits"]
        return Pod(name=home.name, labels=labels, node=node, process=process, log=log, limits=limits)

    def end(self, name: str) -> None:
        for pod in self.pods.pop(name, ()):
            if pod.process.poll() is None:
                pod.process.terminate()
                try:
                    pod.process.wait(10)
                except subprocess.TimeoutExpired:
                    os.killpg(pod.process.pid, signal.SIGKILL)
            pod.process.wait()

    def settle(self) -> None:
        """Pods that were told to end are gone once they have; a JobSet that is deleted in the foreground goes last."""
        for name in list(self.pods):
            jobset = self.jobsets.get(name)
            if jobset is not None and "deletionTimestamp" not in jobset["metadata"]:
                continue
            pods = self.pods[name]
            for pod in pods:
                if pod.ends_at is not None and time.monotonic() > pod.ends_at and pod.process.poll() is None:
                    os.killpg(pod.process.pid, signal.SIGKILL)
            self.pods[name] = [pod for pod in pods if pod.node in self.nodes and self.phase(pod) == "Running"]
            if not self.pods[name]:
                del self.pods[name]
                self.jobsets.pop(name, None)

    def delete(self, name: str, policy: str) -> None:
        """As the API server: without a policy the JobSet goes at once and its pods end afterwards."""
        self.deleted.append(name)
        for pod in self.pods.get(name, ()):
            if pod.process.poll() is None:
                pod.process.terminate()
                pod.ends_at = time.monotonic() + GRACE_S
        if policy == "Foreground" and self.pods.get(name):
            self.jobsets[name]["metadata"]["deletionTimestamp"] = "2026-11-21T05:13:13Z"
        else:
            del self.jobsets[name]

    def shown(self, jobset: dict[str, Any]) -> dict[str, Any]:
        pods = self.pods.get(jobset["metadata"]["name"], [])
        phases = {self.phase(pod) for pod in pods}
        conditions = []
        if phases == {"Succeeded"}:
            conditions = [{"type": "Completed", "status": "True", "reason": "AllJobsCompleted", "message": "done"}]
        elif "Failed" in phases and "Running" not in phases:
            conditions = [{"type": "Failed", "status": "True", "reason": "FailedJobs", "message": "a job failed"}]
        return {**jobset, "status": {"conditions": conditions}}


@contextmanager
def kubernetes_api(folder: Path, nodes: dict[str, dict[str, str]]) -> Iterator[Cluster]:
    """Serve a cluster; the file `kubeconfig` in the folder names it."""
    folder.mkdir()
    cluster = Cluster(folder=folder, nodes=nodes)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(cluster))
    place = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "me", "user": {}}],
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(place))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        for name in list(cluster.pods):
            cluster.end(name)


def _handler(cluster: Cluster) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            pass

        def do_GET(self) -> None:
            self._serve("GET")

        def do_POST(self) -> None:
            self._serve("POST")

        def do_DELETE(self) -> None:
            self._serve("DELETE")

        def _serve(self, method: str) -> None:
            url = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            with cluster.lock:
                code, answer = _answer(cluster, method, url.path, query, body)
            data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(answer, bytes) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _answer(cluster: Cluster, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Any]:
    cluster.settle()
    selector = dict(part.split("=", 1) for part in query.get("labelSelector", "").split(",") if "=" in part)
    parts = path.strip("/").split("/")
    if path.startswith("/apis/jobset.x-k8s.io/v1alpha2/") and "jobsets" in parts:
        name = parts[-1] if parts[-1] != "jobsets" else ""
        if method == "POST":
            if faults := jobset_faults(body):
                return _status(422, f"JobSet is invalid: {faults[0]}")
            body["metadata"]["uid"] = f"uid-{body['metadata']['name']}"
            cluster.jobsets[body["metadata"]["name"]] = body
            cluster.created.append(body)
            return 201, body
        if not name:
            found = [one for one in cluster.jobsets.values() if selector.items() <= one["metadata"]["labels"].items()]
            return 200, {"items": [cluster.shown(one) for one in found]}
        if name not in cluster.jobsets:
            return _status(404, f'jobsets "{name}" not found')
        if method == "DELETE":
            shown = cluster.jobsets[name]
            cluster.delete(name, query.get("propagationPolicy", ""))
            return 200, shown
        return 200, cluster.shown(cluster.jobsets[name])
    if "secrets" in parts:
        if method == "POST":
            if cluster.secrets_refused:
                return _status(403, "secrets is forbidden")
            cluster.secrets[body["metadata"]["name"]] = body
            # Pods wait for the Secret that they mount.
            cluster.start(cluster.jobsets[body["metadata"]["name"]])
            return 201, body
        gone = cluster.secrets.pop(parts[-1], None)
        return (200, {"kind": "Status", "status": "Success"}) if gone else _status(404, "not found")
    if parts[-1] == "log":
        pods = [pod for pods in cluster.pods.values() for pod in pods if pod.name == parts[-2]]
        return (200, pods[0].log.read_bytes()) if pods else _status(404, "not found")
    if parts[-1] == "pods":
        every = [pod for pods in cluster.pods.values() for pod in pods]
        return 200, {
            "items": [_pod(pod, cluster.phase(pod)) for pod in every if selector.items() <= pod.labels.items()]
        }
    if path == "/api/v1/namespaces/kube-system":
        return 200, {"metadata": {"name": "kube-system", "uid": cluster.uid}}
    if parts[-1] == "nodes":
        return 200, {
            "items": [_node(cluster, name) for name, has in cluster.nodes.items() if selector.items() <= has.items()]
        }
    return _status(404, f"the server could not find {path}")


def _pod(pod: Pod, phase: str) -> dict[str, Any]:
    container = {"name": "agent", "image": "x", "resources": {"limits": pod.limits}}
    return {
        "metadata": {"name": pod.name, "namespace": "ml", "labels": pod.labels, "annotations": pod.notes},
        "spec": {"nodeName": pod.node, "containers": [container]},
        "status": {"phase": phase},
    }


def _node(cluster: Cluster, name: str) -> dict[str, Any]:
    ready = "Unknown" if name in cluster.down else "True"
    status = {"allocatable": {RESOURCE: str(cluster.devices)}, "conditions": [{"type": "Ready", "status": ready}]}
    spec = {"taints": cluster.taints.get(name, [])}
    return {"metadata": {"name": name, "labels": cluster.nodes[name]}, "spec": spec, "status": status}


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}
