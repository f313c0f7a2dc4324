"""Runs on fake clouds with a real Terraform: one cloud at a time, with things of others around."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from factories.local_runs import CLOCK, LocalRun, expiry, local_run
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.cleanup.teardown import TeardownResult, destroy
from sailor_cloud.provision.provisioner import Outcome, apply
from sailor_cloud.run.journal import Journal
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import Phase, fold
from sailor_cloud.testing.aws.ec2_api import serve_ec2
from sailor_cloud.testing.google.compute_api import serve_compute
from sailor_cloud.testing.mock_cloud import in_environment
from sailor_cloud.testing.terraform.cloud import Failure, FakeCloud
from sailor_cloud.testing.terraform.provider import serve
from sailor_cloud.testing.tunnels import write_programs

PROJECT = "my-project"
# What the things of others carry instead of a run's tag.
_ELSE = "another-team"
SSH_FROM = "203.0.113.7/32"
STOCKOUT = {
    Provider("gcp"): "Error waiting for instance to create: The zone 'projects/p/zones/us-central1-b' does not have "
    "enough resources available to fulfill the request.  Try a different zone, or try again later.",
    Provider("aws"): "creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 500, "
    "RequestID: r, api error InsufficientInstanceCapacity: We currently do not have sufficient capacity.",
}
QUOTA = {
    Provider("gcp"): "Error waiting for instance to create: Quota 'NVIDIA_V100_GPUS' exceeded.  Limit: 1.0 in region "
    "us-central1.",
    Provider(
        "aws"
    ): "api error VcpuLimitExceeded: You have requested more vCPU capacity than your current vCPU limit of "
    "32 allows for the instance bucket that the specified instance type belongs to.",
}
THROTTLED = {
    Provider("gcp"): "googleapi: Error 403: Rate Limit Exceeded, rateLimitExceeded",
    Provider("aws"): "https response error StatusCode: 503, RequestID: r, api error RequestLimitExceeded: slow down",
}
BACKEND_ERROR = {
    Provider("gcp"): "googleapi: Error 503: Backend Error, backendError",
    Provider("aws"): "https response error StatusCode: 500, RequestID: r, api error InternalError: sorry",
}
NO_ANSWER = {
    Provider(
        "gcp"
    ): "Error waiting for instance to create: timeout while waiting for state to become 'DONE' (last state: "
    "'RUNNING', timeout: 15m0s)",
    Provider("aws"): "waiting for EC2 Instance (i-1) create: timeout while waiting for state to become 'running' (last "
    "state: 'pending', timeout: 15m0s)",
}
INSTANCE = {Provider("gcp"): "google_compute_instance", Provider("aws"): "aws_instance"}
# The zones of the two offers in `small_document`.
ZONES = {Provider("gcp"): ("us-central1-a", "us-central1-b"), Provider("aws"): ("use1-az4", "use1-az6")}


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudRun:
    """A run with a plan on one cloud, and the cloud. `foreign` are resources that are not the run's."""

    provider: Provider
    run: LocalRun
    document: PlanDocument
    cloud: FakeCloud
    foreign: frozenset[tuple[str, str]]
    expires_at: datetime

    def apply(self, document: PlanDocument | None = None, **options: Any) -> Outcome:
        settings = {"clock": CLOCK, "expires_at": self.expires_at, "ssh_from": SSH_FROM, "pause": waited(), **options}
        return apply(self.run.folder, document or self.document, **settings)  # type: ignore[arg-type]

    def destroy(self, **options: Any) -> TeardownResult:
        """Remove the run; where the teardown waits, what is under way in the cloud comes to its end."""
        settings = {"clock": CLOCK, "pause": lambda seconds: self.cloud.settle(), **options}
        return destroy(self.run.folder, **settings)  # type: ignore[arg-type]

    def fail(self, message: dict[Provider, str], **how: Any) -> Failure:
        """Let creations of instances fail in the provider's words."""
        failure = Failure(type=INSTANCE[self.provider], message=message[self.provider], **how)
        self.cloud.failures.append(failure)
        return failure

    def journal(self) -> Journal:
        return Journal.of(self.run.folder, CLOCK)

    def nodes(self) -> list[str]:
        """Return the run's nodes that the cloud bills for."""
        return sorted(node for _, node in self._billed())

    def cloud_name(self, node: str) -> str:
        """Return what the cloud calls the run's node that the plan calls `node`."""
        (name,) = (name for name, found in self._billed() if found == node)
        return name

    def _billed(self) -> list[tuple[str, str]]:
        found = {name: self.labels(name) for name in self.cloud.of_type(INSTANCE[self.provider])}
        mine = {name: labels for name, labels in found.items() if labels.get("sailor-cloud-run") == self.run.run_id}
        return [(name, labels["sailor-cloud-node"]) for name, labels in mine.items()]

    def labels(self, name: str) -> dict[str, str]:
        """Return the labels, or tags, of the instance that the cloud calls `name`."""
        return self.labels_of(INSTANCE[self.provider], name)

    def labels_of(self, kind: str, name: str) -> dict[str, str]:
        state = self.cloud.resources[kind, name]
        return state.get("labels") or state.get("tags") or {}

    def assert_gone(self, destroyed: TeardownResult) -> None:
        """Nothing of the run is left in the cloud, its books are closed, and what is not its own was not touched."""
        left = self.cloud.owned_by(self.run.run_id)
        assert left == (), (left, destroyed.problems)
        assert destroyed.clean, (destroyed.remaining, destroyed.problems)
        state = fold(self.journal().entries())
        assert (state.phase, state.live) == (Phase.GONE, ())
        assert Ledger.of(self.run.folder, CLOCK).usd_per_hour() == 0
        assert set(self.cloud.resources) >= self.foreign


def small_document(provider: Provider) -> PlanDocument:
    """Two nodes in two zones of one region; checkpoints go to a folder, so that there is no bucket."""
    first, second = GCP_OFFERS[:2] if provider is Provider("gcp") else AWS_OFFERS
    return without_bucket(cloud_document(("n0", first), ("n1", second), image=None))


def without_bucket(document: PlanDocument) -> PlanDocument:
    checkpoint = document.job.checkpoint.model_copy(update={"to": "checkpoints"})
    return replace(document, job=document.job.model_copy(update={"checkpoint": checkpoint}))


@contextmanager
def cloud_run(
    provider: Provider, root: Path, *, document: PlanDocument | None = None, cloud: FakeCloud | None = None
) -> Iterator[CloudRun]:
    """A run on a fake cloud that this process and its children use; nothing is applied yet."""
    with ExitStack() as stack:
        if cloud is None:
            cloud = stack.enter_context(reached(provider))
        run = stack.enter_context(local_run(root))
        # What reaches private nodes is asked for before anything is bought.
        path = f"{write_programs(provider, root)}{os.pathsep}{os.environ['PATH']}"
        stack.enter_context(in_environment({"PATH": path}))
        planned = document or small_document(provider)
        run.folder.write_document(planned)
        foreign = frozenset(key for key, state in cloud.resources.items() if _ELSE in str(state))
        assert len(foreign) == 3
        yield CloudRun(
            provider=provider, run=run, document=planned, cloud=cloud, foreign=foreign, expires_at=expiry(3600.0)
        )


@contextmanager
def reached(provider: Provider, *, latency_s: float = 0.0) -> Iterator[FakeCloud]:
    """A fake cloud with things of others in it, in the environment of this process."""
    cloud = FakeCloud(latency_s=latency_s)
    _add_foreign(cloud, provider)
    api = serve_compute if provider is Provider("gcp") else serve_ec2
    with serve(cloud) as attached, api(cloud) as reach, in_environment({**attached, **reach}):
        yield cloud


def waited() -> Any:
    """A pause that does not wait but counts; `.seconds` are the pauses that were asked for."""

    def pause(seconds: float) -> None:
        pause.seconds.append(seconds)  # type: ignore[attr-defined]

    pause.seconds = []  # type: ignore[attr-defined]
    return pause


def _add_foreign(cloud: FakeCloud, provider: Provider) -> None:
    if provider is Provider("gcp"):
        for kind in ("google_compute_network", "google_compute_instance", "google_compute_firewall"):
            wanted = {"name": "sc-not-ours", "description": f"team={_ELSE}", "labels": {"team": _ELSE}}
            cloud.create(kind, wanted, {"project": PROJECT})
        return
    config = {"region": "us-east-1"}
    tags = {"team": _ELSE, "Name": "sc-not-ours"}
    vpc = cloud.create("aws_vpc", {"tags": tags}, config)
    subnet = cloud.create("aws_subnet", {"tags": tags, "vpc_id": vpc["id"], "availability_zone_id": "use1-az4"}, config)
    wanted = {"tags": tags, "subnet_id": subnet["id"], "instance_type": "t3.micro"}
    cloud.create("aws_instance", wanted, config)
