"""A complete cloud on this machine: Terraform's providers, the cloud's API, and machines that answer SSH.

Environment variables lead to all of it, so a `sailor-cloud` in another process finds it too.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.access.login import FAKE_MACHINES
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.http_api import Answer, Ask, serving
from sailor_cloud.testing.machines import SshMachines
from sailor_cloud.testing.object_store import ObjectStore, serve_objects, store_environment
from sailor_cloud.testing.terraform.cloud import Failure, FakeCloud
from sailor_cloud.testing.terraform.provider import serve
from sailor_cloud.testing.tunnels import opened, write_programs

PROJECT = "mock-project"
IMAGE = "ami-0123456789abcdef0"
_INSTANCE = {Provider("gcp"): "google_compute_instance", Provider("aws"): "aws_instance"}
_BUCKET = {Provider("gcp"): "google_storage_bucket", Provider("aws"): "aws_s3_bucket"}
_TERRAFORM = {Provider("gcp"): "google", Provider("aws"): "aws"}
_TYPE = {Provider("gcp"): "machine_type", Provider("aws"): "instance_type"}
_STOCKOUT = {
    Provider(
        "gcp"
    ): "Error waiting for instance to create: The zone 'projects/mock-project/zones/{zone}' does not have "
    "enough resources available to fulfill the request.  Try a different zone, or try again later.",
    Provider("aws"): "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 500, "
    "RequestID: r, api error InsufficientInstanceCapacity: We currently do not have sufficient {instance_type} "
    "capacity in the Availability Zone you requested ({zone}).",
}
_QUOTA = {
    Provider(
        "gcp"
    ): "Error waiting for instance to create: Quota 'NVIDIA_GPUS' exceeded.  Limit: {limit:.1f} in region {region}.",
    Provider("aws"): "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 400, "
    "RequestID: r, api error VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of "
    "{limit} allows for the instance bucket that the specified instance type belongs to.",
}
_THROTTLED = {
    Provider("gcp"): "googleapi: Error 403: Rate Limit Exceeded, rateLimitExceeded",
    Provider(
        "aws"
    ): "https response error StatusCode: 503, RequestID: r, api error RequestLimitExceeded: Request limit exceeded.",
}


class MockCloud:
    """One provider's cloud. `project` and `image` are for jobs; `environment` makes programs use it.

    `store` holds what nodes have put into buckets.
    """

    def __init__(
        self,
        provider: Provider,
        *,
        cloud: FakeCloud,
        environment: Mapping[str, str],
        machines: Path,
        notices: set[str],
        store: ObjectStore,
    ) -> None:
        self.provider = provider
        self.cloud = cloud
        self.environment = dict(environment)
        self.machines = machines
        self.project = PROJECT
        self.image = IMAGE
        self.store = store
        self._notices = notices

    def billed(self) -> dict[str, str]:
        """Return the ids of what costs money now, by node."""
        return {self._node(name): name for name in self.cloud.of_type(self._kind)}

    def left_of(self, run_id: str) -> tuple[tuple[str, str], ...]:
        """Return type and id of every existing resource of a run, billed or not."""
        return self.cloud.owned_by(run_id)

    def folder_of(self, node: str) -> Path:
        """Return the disk of a node's machine."""
        name = self.billed()[node]
        return self.machines / (self.cloud.of_type(self._kind)[name].get("name") or name)

    def tunnels(self) -> tuple[str, ...]:
        """Return the node of each tunnel to a machine without a public address, in order of opening."""
        nodes = {self.folder_of(node).name: node for node in self.billed()}
        return tuple(nodes.get(machine, machine) for machine in opened(self.machines))

    def run_out(
        self, zone: str, instance_type: str | None = None, *, times: int | None = None, after: int = 0
    ) -> Failure:
        """Remove a zone's capacity for an instance type, or for all. AWS zones are zone ids."""
        where = {"zone": zone} | ({_TYPE[self.provider]: instance_type} if instance_type else {})
        message = _STOCKOUT[self.provider].format(zone=zone, instance_type=instance_type or "any")
        return self.fail(message, where=where, times=times, after=after)

    def exceed_quota(self, zone: str, *, limit: int = 0, times: int | None = None, after: int = 0) -> Failure:
        """Make another instance in a zone exceed the account's quota."""
        message = _QUOTA[self.provider].format(limit=limit, region=zone.rpartition("-")[0])
        return self.fail(message, where={"zone": zone}, times=times, after=after)

    def throttle(self, times: int) -> Failure:
        """Answer this many creations of instances with a rate limit error."""
        return self.fail(_THROTTLED[self.provider], times=times)

    def fail(self, message: str, **how: Any) -> Failure:
        """Make creations of instances fail with a message of the provider; see `Failure`."""
        failure = Failure(type=self._kind, message=message, **how)
        self.cloud.failures.append(failure)
        return failure

    def recover(self) -> None:
        """Cancel all requested failures."""
        self.cloud.failures.clear()

    def announce_preemption(self, node: str) -> None:
        """Make the metadata server announce a node's preemption; `preempt` carries it out."""
        self._notices.add(node)

    def preempt(self, node: str) -> None:
        """Preempt a node, as a spot market does."""
        self.cloud.delete(self._kind, self.billed()[node], why="preempted")

    def on_create(self, call: Callable[[str, str], None]) -> None:
        """Set a function that is called with type and id of every new resource."""
        self.cloud.on_create = call

    @property
    def _kind(self) -> str:
        return _INSTANCE[self.provider]

    def _node(self, name: str) -> str:
        state = self.cloud.of_type(self._kind)[name]
        return str((state.get("labels") or state.get("tags") or {}).get("sailor-cloud-node") or name)


@contextmanager
def mock_cloud(provider: Provider, root: Path, *, latency_s: float = 0.0) -> Iterator[MockCloud]:
    """Run a cloud with its machines' disks in `root`; at the end, all machines are stopped and deleted."""
    with mock_clouds((provider,), root, latency_s=latency_s) as (mocked,):
        yield mocked


@contextmanager
def mock_clouds(
    providers: Sequence[Provider], root: Path, *, latency_s: float = 0.0
) -> Iterator[tuple[MockCloud, ...]]:
    """Run several clouds as one: each has the environment of all, and all machines can reach one another."""
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    notices: set[str] = set()
    with ExitStack() as stack:
        metadata = stack.enter_context(serving(lambda ask: _metadata(ask, notices)))
        store = ObjectStore()
        objects = stack.enter_context(serve_objects(store))
        reach: dict[str, str] = {}
        for provider in providers:
            reach |= store_environment(provider, objects, root)
        variables = {"SAILOR_CLOUD_METADATA": f"{metadata}/{{node}}", "SAILOR_CLOUD_ACCELERATORS": "cpu", **reach}
        machines = SshMachines(root, variables)
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        stack.callback(machines.stop_all)
        cloud = FakeCloud(machines, latency_s=latency_s)
        folders = dict.fromkeys(str(write_programs(provider, root)) for provider in providers)
        path = os.pathsep.join([*folders, os.environ.get("PATH", os.defpath)])
        environment = {FAKE_MACHINES: str(root), "PATH": path}
        environment |= stack.enter_context(serve(cloud, *(_TERRAFORM[provider] for provider in providers)))
        for provider in providers:
            api = serve_compute if provider is Provider("gcp") else serve_ec2
            environment |= stack.enter_context(api(cloud, store=store))
        environment |= reach
        kinds = [_BUCKET[provider] for provider in providers]
        store.exists = lambda bucket: any(bucket in cloud.of_type(kind) for kind in kinds)
        yield tuple(
            MockCloud(provider, cloud=cloud, environment=environment, machines=root, notices=notices, store=store)
            for provider in providers
        )


@contextmanager
def in_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _metadata(ask: Ask, notices: set[str]) -> Answer:
    """The metadata servers of both clouds, one path per node, for the requests of an agent."""
    found = re.fullmatch(r"/([^/]+)/(computeMetadata/v1/instance/preempted|latest/.*)", ask.path)
    if found is None:
        return Answer(status=404, body=b"", kind="text/plain")
    node, what = found.groups()
    if what.startswith("computeMetadata"):
        return Answer(status=200, body=b"TRUE" if node in notices else b"FALSE", kind="text/plain")
    if what == "latest/api/token":
        return Answer(status=200, body=b"token", kind="text/plain")
    if node in notices:
        return Answer(status=200, body=b'{"action": "terminate", "time": "2026-11-21T06:00:00Z"}')
    return Answer(status=404, body=b"", kind="text/plain")
