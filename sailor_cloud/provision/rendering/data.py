"""What outlives a run's nodes on a cloud: the bucket for checkpoints, what nodes act as, and Terraform's states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sailor_cloud.errors import Problem
from sailor_cloud.model.job import Cloud, Job, NetworkAccess, StateBackend
from sailor_cloud.model.offer import BUCKET_PROVIDERS, Provider
from sailor_cloud.run.folder import resource_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """A bucket that nodes write to; `own`: made by the run and deleted with it, else named by the user."""

    provider: Provider
    name: str
    own: bool


def bucket_of(job: Job, run_id: str, home: Provider) -> Bucket | None:
    """Return the bucket for checkpoints, or None where the job names a folder. `home` is the first node's cloud."""
    target = job.checkpoint.to
    if target is None:
        return Bucket(provider=home, name=resource_name(run_id, "data"), own=True)
    scheme, found, rest = target.partition("://")
    if not found:
        return None
    return Bucket(provider=BUCKET_PROVIDERS[scheme], name=rest.partition("/")[0], own=False)


def named_bucket(job: Job, provider: Provider) -> str | None:
    """Return the bucket of a cloud that the user named for checkpoints, or None."""
    scheme, _, rest = (job.checkpoint.to or "").partition("://")
    return rest.partition("/")[0] if BUCKET_PROVIDERS.get(scheme) is provider else None


def bucket_problems(job: Job, providers: set[Provider]) -> list[Problem]:
    """Return what is wrong with where a job's checkpoints are to go, seen from nodes on these clouds."""
    target = job.checkpoint.to
    scheme, found, rest = (target or "").partition("://")
    if not found:
        return []
    if not rest.partition("/")[0]:
        return [
            Problem(path="checkpoint.to", message=f"is {target!r}", hint="gs://BUCKET/…, s3://BUCKET/… or a folder")
        ]
    if BUCKET_PROVIDERS[scheme] in providers:
        return []
    clouds = " and ".join(sorted(provider.value for provider in providers))
    hint = "a bucket of that cloud, or nothing, which makes one for the run"
    return [
        Problem(path="checkpoint.to", message=f"is {target}, which nodes on {clouds} have no rights for", hint=hint)
    ]


def given_identity(cloud: Cloud, provider: Provider) -> str | None:
    """Return what the user has prepared for nodes to act as, if anything."""
    if provider is Provider.GCP:
        return cloud.gcp.service_account if cloud.gcp else None
    return cloud.aws.instance_profile if cloud.aws else None


def needs_data_root(job: Job, provider: Provider, bucket: Bucket | None) -> bool:
    """Tell whether a cloud needs a root of what outlives its nodes."""
    if bucket is not None and bucket.provider is provider:
        # What the user has prepared for a bucket of theirs has its rights already, and keeps them.
        return bucket.own or given_identity(job.cloud, provider) is None
    return _needs_tunnel(job, provider) and given_identity(job.cloud, provider) is None


def identity_of(job: Job, run_id: str, provider: Provider, bucket: Bucket | None) -> str | None:
    """Return what the nodes act as: what the user has prepared, else what the data root makes under a known name."""
    given = given_identity(job.cloud, provider)
    if given is not None:
        return given
    writes = bucket is not None and bucket.provider is provider
    if not (writes or _needs_tunnel(job, provider)):
        return None
    name = resource_name(run_id, "node")
    if provider is Provider.GCP:
        assert job.cloud.gcp is not None, "checked before"
        return f"{name}@{job.cloud.gcp.project}.iam.gserviceaccount.com"
    return name


def data_variables(job: Job, provider: Provider, bucket: Bucket | None) -> dict[str, Any]:
    """Return the variables of `stacks/gcp-data` and `stacks/aws-data` that no cluster has."""
    here = bucket if bucket is not None and bucket.provider is provider else None
    own = {"tunnel": _needs_tunnel(job, provider)} if provider is Provider.AWS else {}
    return {
        "bucket": None if here is None else {"name": here.name, "own": here.own},
        "identity": given_identity(job.cloud, provider),
        **own,
    }


def backend(state: StateBackend | None, run_id: str, root: str) -> dict[str, Any] | None:
    """Return Terraform's configuration for the state of one root outside the run's folder, or None."""
    if state is None:
        return None
    scheme, _, bucket = state.bucket.partition("://")
    place = f"{state.prefix}/{run_id}/{root}"
    if scheme == "gs":
        return {"terraform": {"backend": {"gcs": {"bucket": bucket, "prefix": place}}}}
    # The lock lies beside the state, which Terraform can do since 1.10.
    s3 = {"bucket": bucket, "key": f"{place}.tfstate", "region": state.region, "encrypt": True, "use_lockfile": True}
    return {"terraform": {"required_version": ">= 1.10", "backend": {"s3": s3}}}


def _needs_tunnel(job: Job, provider: Provider) -> bool:
    """Tell whether nodes need rights to be reached: SSM asks nodes for them, Identity-Aware Proxy only the caller."""
    return provider is Provider.AWS and job.cloud.network is NetworkAccess.PRIVATE
