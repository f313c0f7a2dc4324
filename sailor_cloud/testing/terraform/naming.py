"""The clouds' names that do not follow the common pattern, and how a data source finds resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

State = dict[str, Any]

# The image in every public parameter of the stand-in.
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


def _custom_role(wanted: State, project: str) -> State:
    name = f"projects/{project}/roles/{wanted['role_id']}"
    return {"id": name, "name": name}


def _function(wanted: State, project: str) -> State:
    place = f"projects/{project}/locations/{wanted['location']}"
    service = {**wanted["service_config"][0]} if wanted.get("service_config") else {}
    uri = f"https://{wanted['name']}.example.run.app"
    return {"id": f"{place}/functions/{wanted['name']}", "service_config": [{**service, "uri": uri}]}


# Collections whose name is not their type's with an s.
GOOGLE_COLLECTIONS = {"google_compute_resource_policy": "resourcePolicies"}

GOOGLE_NAMES: Mapping[str, Callable[[State, str], State]] = {
    "google_service_account": _service_account,
    "google_storage_bucket_iam_member": _bucket_member,
    "google_storage_bucket": _bucket,
    "google_compute_router_nat": _nat,
    "google_project_iam_custom_role": _custom_role,
    "google_project_iam_member": lambda w, project: {"id": f"{project}/{w['role']}/{w['member']}"},
    "google_storage_bucket_object": lambda wanted, project: {"id": f"{wanted['bucket']}-{wanted['name']}"},
    "google_cloudfunctions2_function": _function,
    "google_cloud_scheduler_job": lambda wanted, project: {
        "id": f"projects/{project}/locations/{wanted['region']}/jobs/{wanted['name']}"
    },
}

AWS_NAMES: Mapping[str, Callable[[State], str]] = {
    "aws_key_pair": lambda wanted: str(wanted["key_name"]),
    "aws_iam_role_policy": lambda wanted: f"{wanted['role']}:{wanted['name']}",
    "aws_s3_bucket": lambda wanted: str(wanted["bucket"]),
    "aws_lambda_function": lambda wanted: str(wanted["function_name"]),
    "aws_s3_bucket_public_access_block": lambda wanted: str(wanted["bucket"]),
    "aws_s3_bucket_lifecycle_configuration": lambda wanted: str(wanted["bucket"]),
    "aws_scheduler_schedule": lambda wanted: f"{wanted.get('group_name') or 'default'}/{wanted['name']}",
    "aws_vpc_peering_connection_accepter": lambda wanted: str(wanted["vpc_peering_connection_id"]),
}


# Creating one of these again overwrites it.
REPEATABLE = (
    "google_storage_bucket_object",
    "google_project_iam_member",
    "google_storage_bucket_iam_member",
    "aws_iam_role_policy",
    "aws_s3_bucket_public_access_block",
    "aws_s3_bucket_lifecycle_configuration",
    "aws_vpc_peering_connection_accepter",
)
# AWS resources that must be unique, by the attributes that must differ, and the error for a second one.
_ONCE = {
    "aws_route": (("route_table_id", "destination_cidr_block"), "RouteAlreadyExists"),
    "aws_route_table_association": (("subnet_id",), "Resource.AlreadyAssociated"),
    "aws_vpc_security_group_ingress_rule": (
        ("security_group_id", "cidr_ipv4", "referenced_security_group_id", "ip_protocol", "from_port", "to_port"),
        "InvalidPermission.Duplicate",
    ),
    "aws_vpc_security_group_egress_rule": (
        ("security_group_id", "cidr_ipv4", "referenced_security_group_id", "ip_protocol", "from_port", "to_port"),
        "InvalidPermission.Duplicate",
    ),
}


def duplicate(kind: str, wanted: State, existing: Mapping[str, State]) -> str | None:
    """Return AWS's error for a second resource that must be unique; None otherwise."""
    if kind not in _ONCE:
        return None
    names, code = _ONCE[kind]
    for state in existing.values():
        if all(state.get(name) == wanted.get(name) for name in names):
            return f"creating {kind}: api error {code}: {', '.join(str(wanted.get(name)) for name in names)}"
    return None


def imported(kind: str, given: str, existing: Mapping[str, State]) -> str:
    """Return the id of a resource to import; most are imported by their id."""
    match kind:
        case "aws_route":
            table, _, destination = given.partition("_")
            wanted = {"route_table_id": table, "destination_cidr_block": destination}
        case "aws_route_table_association":
            subnet, _, table = given.partition("/")
            wanted = {"route_table_id": table, "subnet_id": subnet}
        case "google_compute_router_nat":
            _, project, _, region, _, router, name = given.split("/")
            return f"{project}/{region}/{router}/{name}"
        case _:
            return given
    fitting = [name for name, state in existing.items() if wanted.items() <= state.items()]
    return fitting[0] if fitting else given


def computed(kind: str, number: int) -> State:
    """Return the attributes of a new resource that AWS decides and the HCL reads."""
    match kind:
        case "aws_instance":
            return {"primary_network_interface_id": f"eni-{number:017x}"}
        case "aws_launch_template":
            return {"latest_version": 1}
        case "aws_eip":
            return {"allocation_id": f"eipalloc-{number:017x}", "public_ip": f"203.0.113.{number % 250 + 1}"}
    return {}


def looked_up(kind: str, wanted: State, existing: Mapping[str, State]) -> State | None:
    """Return the result of a data source: a public parameter, or the only resource with the given tags."""
    if kind == "aws_ssm_parameter":
        return {**wanted, "id": wanted["name"], "type": "String", "insecure_value": IMAGE, "value": IMAGE, "version": 1}
    tags = dict(wanted.get("tags") or {}).items()
    fitting = [state for state in existing.values() if tags <= dict(state.get("tags") or {}).items()]
    return fitting[0] if len(fitting) == 1 else None
