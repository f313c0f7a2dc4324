"""Finds and removes the right that a run has added on a user's bucket.

It has no tag: its member is an account with the run's own name. The account itself may be deleted, because a bucket
remembers the members of deleted accounts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import quote

from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.live_resources import WHOLE_ACCOUNT, Listing, LiveResource
from sailor_cloud.provision.providers.gcp.data_sweep import STORAGE, GoogleApi, Json, google_api, status_of
from sailor_cloud.provision.providers.gcp.sweep import GCP, refusal
from sailor_cloud.run.folder import resource_name

MEMBER = "google_storage_bucket_iam_member"
# The only right that a run adds; see terraform/stacks/gcp-data.
_ROLE = "roles/storage.objectUser"
_DELETED = re.compile(r"deleted:(?P<member>[^?]+)\?uid=\d+")
# The policy may change between our read and our write.
_TRIES = 5


def sweep_gcp_members(project: str, buckets: Iterable[str], *, run_id: str) -> Listing:
    """Return a run's rights on the user's buckets; `detail` is the bucket, `name` the member.

    A deleted bucket has no members. Raises CredentialsError, also without google-auth.
    """
    found: list[LiveResource] = []
    failed = []
    for bucket in sorted(set(buckets)):
        try:
            found += _members(google_api(*STORAGE), project, bucket, run_id)
        except ProvisionError:
            raise
        except Exception as error:
            if status_of(error) == 401:
                raise refusal(f"show who may use {bucket}", error) from error
            if status_of(error) != 404:
                failed.append((MEMBER, f"{MEMBER} of {bucket} can't be listed: {error}"))
    return Listing(found=tuple(found), failed=tuple(failed))


def remove_gcp_members(project: str, resources: Sequence[LiveResource]) -> tuple[str, ...]:
    """Remove found rights, and nobody else's; return the failures."""
    problems = []
    for found in (resource for resource in resources if (resource.type, resource.project) == (MEMBER, project)):
        try:
            _remove(google_api(*STORAGE), found.detail, found.name)
        except Exception as error:
            if status_of(error) != 404:
                problems.append(f"{MEMBER} {found.name} of {found.detail} can't be removed: {error}")
    return tuple(problems)


def _members(storage: GoogleApi, project: str, bucket: str, run_id: str) -> Iterator[LiveResource]:
    account = f"serviceAccount:{resource_name(run_id, 'node')}@"
    members = {_alive(member) for binding in _bindings(_policy(storage, bucket)) for member in binding["members"]}
    for member in sorted(member for member in members if member.startswith(account)):
        yield LiveResource(
            provider=GCP,
            region=WHOLE_ACCOUNT,
            type=MEMBER,
            name=member,
            run_id=run_id,
            detail=bucket,
            project=project,
            title=member,
        )


def _remove(storage: GoogleApi, bucket: str, member: str) -> None:
    for remaining in reversed(range(_TRIES)):
        policy = _policy(storage, bucket)
        for binding in _bindings(policy):
            binding["members"] = [other for other in binding["members"] if _alive(other) != member]
        policy["bindings"] = [binding for binding in policy.get("bindings", ()) if binding["members"]]
        try:
            storage.put(_place(bucket), policy)
        except Exception as error:
            if status_of(error) != 412 or not remaining:
                raise
        else:
            return


def _policy(storage: GoogleApi, bucket: str) -> Json:
    # With an older version, the next change would lose conditions of other members.
    return storage.request("GET", _place(bucket), optionsRequestedPolicyVersion="3")


def _bindings(policy: Json) -> Iterator[Json]:
    yield from (binding for binding in policy.get("bindings", ()) if binding["role"] == _ROLE)


def _alive(member: str) -> str:
    """Return a member's name from when its account existed."""
    deleted = _DELETED.fullmatch(member)
    return deleted["member"] if deleted else member


def _place(bucket: str) -> str:
    return f"/storage/v1/b/{quote(bucket)}/iam"
