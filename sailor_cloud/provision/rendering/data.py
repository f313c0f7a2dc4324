"""Resources that outlive a run's nodes on a cloud: the checkpoint bucket, the nodes' identity, Terraform's states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sailor_cloud.catalog.providers import of_buckets
from sailor_cloud.errors import Problem
from sailor_cloud.model.job import Job, NetworkAccess, StateBackend
from sailor_cloud.model.offer import Provider
from sailor_cloud.run.folder import resource_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket that nodes write to; `own`: the run creates and deletes it, else the user named it."""

    provider: Provider
    name: str
    own: bool


def bucket_of(job: Job, run_id: str, home: Provider) -> Bucket | None:
    """Return the bucket for checkpoints, or None if the job names a folder. `home` is the first node's cloud."""
    target = job.checkpoint.to
    if target is None:
        return Bucket(provider=home, name=resource_name(run_id, "data"), own=True)
    scheme, found, rest = target.partition("://")
    if not found:
        return None
    return Bucket(provider=_cloud_of(scheme), name=rest.partition("/")[0], own=False)


def named_bucket(job: Job, provider: Provider) -> str | None:
    """Return the bucket of a cloud that the user named for checkpoints, or None."""
    scheme, _, rest = (job.checkpoint.to or "").partition("://")
    return rest.partition("/")[0] if of_buckets(scheme) == provider else None


def may_have_data(job: Job) -> bool:
    """Whether a run may have created more than compute: a bucket, the nodes' identity, or a watchdog."""
    target, cloud = job.checkpoint.to, job.cloud
    watched = any(account is not None and account.watchdog for account in (cloud.gcp, cloud.aws))
    return target is None or "://" in target or cloud.network is NetworkAccess.PRIVATE or watched


def bucket_problems(job: Job, providers: set[Provider]) -> list[Problem]:
    """Return what is wrong with a job's place for checkpoints, for nodes on these clouds."""
    target = job.checkpoint.to
    scheme, found, rest = (target or "").partition("://")
    if not found:
        return []
    if not rest.partition("/")[0]:
        return [
            Problem(path="checkpoint.to", message=f"is {target!r}", hint="gs://BUCKET/…, s3://BUCKET/… or a folder")
        ]
    if _cloud_of(scheme) in providers:
        return []
    clouds = " and ".join(sorted(provider for provider in providers))
    hint = "a bucket of that cloud, or nothing, which makes one for the run"
    return [
        Problem(path="checkpoint.to", message=f"is {target}, which nodes on {clouds} have no rights for", hint=hint)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRights:
    """The rights that nodes on one cloud need: for its bucket, and for a tunnel if that requires any.

    `given` is the identity that the user has prepared for nodes, if any.
    """

    given: str | None
    bucket: Bucket | None
    tunnel: bool = False

    @property
    def needed(self) -> bool:
        return self.bucket is not None or self.tunnel

    def identity(self, own: str) -> str | None:
        """Return the nodes' identity: the user's, else the one that the data root creates under this name."""
        return self.given or (own if self.needed else None)

    def variables(self, watchdog_at: str | None) -> dict[str, Any] | None:
        """Return the variables that only a data root has; None if no such root is needed.

        `watchdog_at`: when a watchdog starts to delete the run; None if none was requested.
        """
        bucket = None if self.bucket is None else {"name": self.bucket.name, "own": self.bucket.own}
        # The user's prepared identity has its rights on their bucket already, and keeps them.
        if (self.bucket is None or not self.bucket.own) and (self.given is not None or not self.needed):
            if watchdog_at is None:
                return None
            bucket = None
        return {"bucket": bucket, "identity": self.given, "watchdog_at": watchdog_at}


def backend(state: StateBackend | None, run_id: str, root: str) -> dict[str, Any] | None:
    """Return Terraform's backend configuration for a root's state outside the run's folder, or None."""
    if state is None:
        return None
    scheme, _, bucket = state.bucket.partition("://")
    place = f"{state.prefix}/{run_id}/{root}"
    if scheme == "gs":
        return {"terraform": {"backend": {"gcs": {"bucket": bucket, "prefix": place}}}}
    # The lock is next to the state, which Terraform supports since 1.10.
    s3 = {"bucket": bucket, "key": f"{place}.tfstate", "region": state.region, "encrypt": True, "use_lockfile": True}
    return {"terraform": {"required_version": ">= 1.10", "backend": {"s3": s3}}}


def _cloud_of(scheme: str) -> Provider:
    found = of_buckets(scheme)
    assert found is not None, "a job names buckets of known clouds only"
    return found
