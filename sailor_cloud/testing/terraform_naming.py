"""How the clouds name what does not follow the common pattern, and how a data source finds what exists."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

State = dict[str, Any]

# The image that every public parameter of the stand-in holds.
IMAGE = "ami-0feedfacefeedface"


def _service_account(wanted: State, project: str) -> State:
    email = f"{wanted['account_id']}@{project}.iam.gserviceaccount.com"
    return {"id": f"projects/{project}/serviceAccounts/{email}", "email": email}


def _bucket_member(wanted: State, project: str) -> State:
    return {"id": f"b/{wanted['bucket']}/{wanted['role']}/{wanted['member']}"}


def _bucket(wanted: State, project: str) -> State:
    return {"id": wanted["name"], "url": f"gs://{wanted['name']}"}


def _nat(wanted: State, project: str) -> State:
    return {"id": f"{project}/{wanted['region']}/{wanted['router']}/{wanted['name']}"}


# Collections that are not their type's name with an s.
GOOGLE_COLLECTIONS = {"google_compute_resource_policy": "resourcePolicies"}

GOOGLE_NAMES: Mapping[str, Callable[[State, str], State]] = {
    "google_service_account": _service_account,
    "google_storage_bucket_iam_member": _bucket_member,
    "google_storage_bucket": _bucket,
    "google_compute_router_nat": _nat,
}

AWS_NAMES: Mapping[str, Callable[[State], str]] = {
    "aws_key_pair": lambda wanted: str(wanted["key_name"]),
    "aws_iam_role_policy": lambda wanted: f"{wanted['role']}:{wanted['name']}",
    "aws_s3_bucket": lambda wanted: str(wanted["bucket"]),
    "aws_s3_bucket_public_access_block": lambda wanted: str(wanted["bucket"]),
    "aws_s3_bucket_lifecycle_configuration": lambda wanted: str(wanted["bucket"]),
    "aws_scheduler_schedule": lambda wanted: f"{wanted.get('group_name') or 'default'}/{wanted['name']}",
    "aws_vpc_peering_connection_accepter": lambda wanted: str(wanted["vpc_peering_connection_id"]),
}


def computed(kind: str, number: int) -> State:
    """Return what AWS decides about a new resource and the HCL reads."""
    match kind:
        case "aws_instance":
            return {"primary_network_interface_id": f"eni-{number:017x}"}
        case "aws_launch_template":
            return {"latest_version": 1}
        case "aws_eip":
            return {"allocation_id": f"eipalloc-{number:017x}", "public_ip": f"203.0.113.{number % 250 + 1}"}
    return {}


def looked_up(kind: str, wanted: State, existing: Mapping[str, State]) -> State | None:
    """Return what a data source finds: a public parameter, or the only resource that carries the tags asked for."""
    if kind == "aws_ssm_parameter":
        return {**wanted, "id": wanted["name"], "type": "String", "insecure_value": IMAGE, "value": IMAGE, "version": 1}
    tags = dict(wanted.get("tags") or {}).items()
    fitting = [state for state in existing.values() if tags <= dict(state.get("tags") or {}).items()]
    return fitting[0] if len(fitting) == 1 else None
