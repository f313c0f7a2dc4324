"""Finds resources of runs on AWS besides EC2: buckets, roles of nodes, and the watchdog.

Their names begin with the run's own name and their tags name the run; both must match before anything is touched.
Buckets and identities belong to the account, functions and schedules to a region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from sailor_cloud.errors import ProvisionError
from sailor_cloud.provision.live_resources import (
    EXPIRES_LABEL,
    HOLDS_OBJECTS,
    OWNER_LABEL,
    RUN_LABEL,
    WHOLE_ACCOUNT,
    Listing,
    LiveResource,
)
from sailor_cloud.provision.providers.aws.sweep import AWS, boto_client, error_code, is_gone, is_refusal, refusal
from sailor_cloud.run.folder import FIRST_OF_NAMES, resource_name

# The region for requests that belong to no region.
HOME = "us-east-1"
_ABSENT = ("NoSuchEntity", "NoSuchBucket")
_AT_ONCE = 1000

Tags = dict[str, str]
# Returns a client by region and service.
ClientOf = Callable[[str, str], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """A kind of resource: a run's name for it, the pattern of all runs, its tags, and its deletion.

    A run's own resource is looked up by name, so that no right to list all of them is needed.
    """

    type: str
    service: str
    parts: tuple[str, ...]
    names: Callable[[Any], Iterator[str]]
    tags: Callable[[Any, str], Tags]
    delete: Callable[[Any, str], None]
    region: Callable[[Any, str], str] = lambda client, name: WHOLE_ACCOUNT
    detail: Callable[[Any, str], str] = lambda client, name: ""


def _role_names(iam: Any) -> Iterator[str]:
    for page in iam.get_paginator("list_roles").paginate():
        yield from (role["RoleName"] for role in page["Roles"])


def _delete_role(iam: Any, name: str) -> None:
    for profile in iam.list_instance_profiles_for_role(RoleName=name)["InstanceProfiles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=profile["InstanceProfileName"], RoleName=name)
    for policy in iam.list_role_policies(RoleName=name)["PolicyNames"]:
        iam.delete_role_policy(RoleName=name, PolicyName=policy)
    iam.delete_role(RoleName=name)


def _profile_names(iam: Any) -> Iterator[str]:
    for page in iam.get_paginator("list_instance_profiles").paginate():
        yield from (profile["InstanceProfileName"] for profile in page["InstanceProfiles"])


def _delete_profile(iam: Any, name: str) -> None:
    for role in iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]["Roles"]:
        iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=role["RoleName"])
    iam.delete_instance_profile(InstanceProfileName=name)


def _bucket_names(s3: Any) -> Iterator[str]:
    yield from (bucket["Name"] for bucket in s3.list_buckets()["Buckets"])


def _bucket_region(s3: Any, name: str) -> str:
    # S3 reports the oldest region as None.
    return s3.get_bucket_location(Bucket=name).get("LocationConstraint") or HOME


def _bucket_tags(s3: Any, name: str) -> Tags:
    try:
        return _tags(s3.get_bucket_tagging(Bucket=name)["TagSet"])
    except Exception as error:
        if error_code(error) == "NoSuchTagSet":
            return {}
        raise


def _content(s3: Any, name: str) -> str:
    return HOLDS_OBJECTS if s3.list_objects_v2(Bucket=name, MaxKeys=1).get("Contents") else ""


def _delete_bucket(s3: Any, name: str) -> None:
    for page in s3.get_paginator("list_object_versions").paginate(Bucket=name):
        held = [*page.get("Versions", ()), *page.get("DeleteMarkers", ())]
        keys = [{"Key": item["Key"], "VersionId": item["VersionId"]} for item in held]
        for first in range(0, len(keys), _AT_ONCE):
            s3.delete_objects(Bucket=name, Delete={"Objects": keys[first : first + _AT_ONCE], "Quiet": True})
    s3.delete_bucket(Bucket=name)


def _group_names(scheduler: Any) -> Iterator[str]:
    for page in scheduler.get_paginator("list_schedule_groups").paginate(NamePrefix=FIRST_OF_NAMES):
        yield from (group["Name"] for group in page["ScheduleGroups"])


def _group_tags(scheduler: Any, name: str) -> Tags:
    group = scheduler.get_schedule_group(Name=name)
    if group["State"] == "DELETING":
        return {}
    return _tags(scheduler.list_tags_for_resource(ResourceArn=group["Arn"])["Tags"])


def _function_names(functions: Any) -> Iterator[str]:
    for page in functions.get_paginator("list_functions").paginate():
        yield from (function["FunctionName"] for function in page["Functions"])


def _delete_function(functions: Any, name: str) -> None:
    functions.delete_function(FunctionName=name)
    try:
        boto_client(functions.meta.region_name, "logs").delete_log_group(logGroupName=f"/aws/lambda/{name}")
    except Exception as error:
        if not _is_absent(error):
            raise


def _tags(pairs: Iterable[dict[str, str]]) -> Tags:
    return {pair["Key"]: pair["Value"] for pair in pairs}


_REGIONAL = ("scheduler", "lambda")
# In order of deletion. A group is deleted with its schedules, a function with its logs, a role with its policies.
_KINDS = (
    _Kind(
        type="aws_scheduler_schedule_group",
        service="scheduler",
        parts=("watchdog",),
        names=_group_names,
        tags=_group_tags,
        delete=lambda scheduler, name: scheduler.delete_schedule_group(Name=name),
        region=lambda scheduler, name: scheduler.meta.region_name,
    ),
    _Kind(
        type="aws_lambda_function",
        service="lambda",
        parts=("watchdog",),
        names=_function_names,
        tags=lambda functions, name: dict(functions.get_function(FunctionName=name).get("Tags", {})),
        delete=_delete_function,
        region=lambda functions, name: functions.meta.region_name,
    ),
    _Kind(
        type="aws_iam_instance_profile",
        service="iam",
        parts=("node",),
        names=_profile_names,
        tags=lambda iam, name: _tags(
            iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"].get("Tags", [])
        ),
        delete=_delete_profile,
    ),
    _Kind(
        type="aws_iam_role",
        service="iam",
        parts=("node", "watchdog"),
        names=_role_names,
        tags=lambda iam, name: _tags(iam.get_role(RoleName=name)["Role"].get("Tags", [])),
        delete=_delete_role,
    ),
    _Kind(
        type="aws_s3_bucket",
        service="s3",
        parts=("data",),
        names=_bucket_names,
        region=_bucket_region,
        tags=_bucket_tags,
        delete=_delete_bucket,
        detail=_content,
    ),
)
AWS_ACCOUNT_KINDS = tuple(kind.type for kind in _KINDS)
# The kinds that belong to a region.
REGIONAL = tuple(kind.type for kind in _KINDS if kind.service in _REGIONAL)


def sweep_aws_account(
    regions: Iterable[str],
    *,
    run_id: str | None = None,
    kinds: Iterable[str] = AWS_ACCOUNT_KINDS,
    client_of: ClientOf | None = None,
) -> Listing:
    """Return the resources of one run, or of all runs, of some kinds.

    Functions and schedules are searched in some regions, all else everywhere. Raises CredentialsError,
    also without boto3. Kinds that the caller may not list become problems.
    """
    connect = client_of or boto_client
    places = sorted(set(regions))
    found: list[LiveResource] = []
    failed: list[tuple[str, str]] = []
    chosen = set(kinds)
    for kind in (kind for kind in _KINDS if kind.type in chosen):
        for region in places if kind.service in _REGIONAL else places[:1]:
            try:
                client = connect(region if kind.service in _REGIONAL else HOME, kind.service)
                names = [resource_name(run_id, part) for part in kind.parts] if run_id else kind.names(client)
                found += _listed(client, kind, names, known=run_id is not None)
            except Exception as error:
                if is_refusal(error):
                    raise refusal(f"list {kind.type}", error) from error
                failed.append((kind.type, f"{kind.type} can't be listed: {error}"))
    return Listing(found=tuple(r for r in found if run_id in (None, r.run_id)), failed=tuple(failed))


def remove_aws_account(resources: Sequence[LiveResource], *, client_of: ClientOf | None = None) -> tuple[str, ...]:
    """Delete found resources, buckets with their content; return the failures."""
    connect = client_of or boto_client
    ours = [found for found in resources if found.run_id and found.provider == AWS]
    problems = []
    for kind in _KINDS:
        for found in (found for found in ours if found.type == kind.type):
            region = HOME if found.region == WHOLE_ACCOUNT else found.region
            try:
                kind.delete(connect(region, kind.service), found.name)
            except Exception as error:
                if not _is_absent(error):
                    problems.append(f"{kind.type} {found.name} can't be deleted: {error}")
    return tuple(problems)


def _listed(client: Any, kind: _Kind, names: Iterable[str], *, known: bool) -> Iterator[LiveResource]:
    """Yield resources with a run's tag; `known`: the names are those of one run."""
    for name in (name for name in names if name.startswith(FIRST_OF_NAMES)):
        try:
            tags = kind.tags(client, name)
        except Exception as error:
            # Deleted since it was listed.
            if _is_absent(error):
                continue
            raise
        if RUN_LABEL in tags:
            yield LiveResource(
                provider=AWS,
                region=kind.region(client, name),
                type=kind.type,
                name=name,
                run_id=tags[RUN_LABEL],
                detail=kind.detail(client, name),
                title=name,
                owner=tags.get(OWNER_LABEL, ""),
                expires=tags.get(EXPIRES_LABEL, ""),
            )
        elif known and kind.service == "s3":
            # Created and tagged in two calls, between which Terraform may be killed.
            raise ProvisionError(f"{name} has the name of the run's bucket and not its tag; delete it if it is yours")


def _is_absent(error: Exception) -> bool:
    return error_code(error) in _ABSENT or is_gone(error)
