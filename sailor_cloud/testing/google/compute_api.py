"""Compute Engine's API to the fake cloud that the stand-in provider fills: list, get and delete over HTTP.

google-cloud-compute reaches it through gcloud's endpoint variable. As in Compute Engine, a resource can't be deleted
before those inside it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sailor_cloud.testing.google.data_api import GoogleData
from sailor_cloud.testing.http_api import Answer, Ask, serving
from sailor_cloud.testing.object_store import ObjectStore
from sailor_cloud.testing.terraform.cloud import CloudError, FakeCloud

_PATH = re.compile(
    r"/compute/v1/projects/([^/]+)/(aggregated|global|(?:zones|regions)/[^/]+)/(\w+)(?:/([^/]+))?(?:/(\w+))?"
)
_REGION = re.compile(r"/compute/v1/projects/([^/]+)/regions/([^/]+)")
_KINDS = {
    "instances": "google_compute_instance",
    "disks": "google_compute_disk",
    "resourcePolicies": "google_compute_resource_policy",
    "routers": "google_compute_router",
    "firewalls": "google_compute_firewall",
    "subnetworks": "google_compute_subnetwork",
    "networks": "google_compute_network",
}
_INTERFACES = ("COMPUTE", "IAM", "STORAGE", "CLOUDFUNCTIONS", "CLOUDSCHEDULER", "CLOUDRESOURCEMANAGER", "BIGQUERY")
_STAND_IN = {
    "google_compute_subnetwork": ("google_compute_instance",),
    "google_compute_network": ("google_compute_subnetwork", "google_compute_firewall", "google_compute_router"),
}
Json = dict[str, Any]


@contextmanager
def serve_compute(
    cloud: FakeCloud, *, unreachable: str | None = None, refused: bool = False, store: ObjectStore | None = None
) -> Iterator[dict[str, str]]:
    """Serve the API, with a sweep's calls to IAM and Cloud Storage; yields the environment that makes clients use it.

    `unreachable` is a scope that does not answer, such as `zones/us-central1-a`; `refused`: all calls are denied.
    `store` holds the objects of buckets.
    """
    data = GoogleData(cloud, store or ObjectStore())

    def answer(ask: Ask) -> Answer:
        path = ask.path.partition("?")[0]
        try:
            if refused:
                response = _error(403, "forbidden")
            else:
                data_response = data.answer(ask.method, ask.path, ask.body)
                response = data_response or _respond(cloud, path, unreachable, ask.method == "DELETE")
        except CloudError as error:
            response = _error(503, str(error), "backendError")
        return Answer(status=response[0], body=json.dumps(response[1]).encode())

    with serving(answer) as url:
        yield {f"CLOUDSDK_API_ENDPOINT_OVERRIDES_{name}": url for name in _INTERFACES}


def _respond(cloud: FakeCloud, path: str, unreachable: str | None, delete: bool) -> tuple[int, Json]:
    if of_region := _REGION.fullmatch(path):
        return 200, {"name": of_region[2], "quotas": _quotas(cloud, *of_region.groups())}
    match = _PATH.fullmatch(path)
    if match is None or match[3] not in _KINDS:
        return _error(404, f"{path} was not found")
    project, scope, items, name, verb = match.groups()
    kind = _KINDS[items]
    known = {key: state for key, state in cloud.of_type(kind).items() if state["project"] == project}
    if kind == "google_compute_router":
        known = {key: {**state, "nats": _nats(cloud, state)} for key, state in known.items()}
    if name is None and scope == "aggregated":
        return 200, {"items": _aggregated(items, known, unreachable)}
    if name is None:
        return 200, {"items": [_shown(state) for state in known.values()]}
    key = next((key for key, state in known.items() if state["name"] == name and f"/{scope}/" in key), None)
    if key is None:
        return _error(404, f"The resource '{path}' was not found")
    if verb == "getGuestAttributes":
        return 200, _host_key(known[key])
    if not delete:
        if kind == "google_compute_instance":
            cloud.shown(kind, key)
        return 200, _shown(known[key])
    if any(cloud.of_type(inner) for inner in _STAND_IN.get(kind, ()) if _uses(cloud, inner, known[key])):
        return _error(400, f"The {kind} resource '{key}' is already being used", "resourceInUseByAnotherResource")
    cloud.begin_deletion(kind, key)
    return 200, {"name": "operation-1", "status": "DONE"}


def _quotas(cloud: FakeCloud, project: str, region: str) -> list[Json]:
    """The use of the quotas on accelerators of on-demand instances."""
    used: dict[str, float] = dict.fromkeys(cloud.quotas, 0.0)
    for state in cloud.of_type("google_compute_instance").values():
        scheduling = state.get("scheduling") or [{}]
        if (state["project"], str(state.get("zone")).rpartition("-")[0]) == (project, region):
            for attached in () if scheduling[0].get("preemptible") else state.get("guest_accelerator") or ():
                metric = f"{attached['type'].upper().replace('-', '_').replace('TESLA_', '')}_GPUS"
                used[metric] = used.get(metric, 0.0) + attached["count"]
    return [{"metric": name, "limit": cloud.quotas.get(name, 0.0), "usage": usage} for name, usage in used.items()]


def _nats(cloud: FakeCloud, router: Json) -> list[Json]:
    found = cloud.of_type("google_compute_router_nat").values()
    return [{"name": state["name"]} for state in found if state["router"] == router["name"]]


def _uses(cloud: FakeCloud, inner: str, outer: Json) -> bool:
    return any(outer["self_link"] in json.dumps(state) for state in cloud.of_type(inner).values())


def _aggregated(items: str, known: dict[str, Json], unreachable: str | None) -> Json:
    found: Json = {}
    for key, state in known.items():
        scope = key.split("/", 2)[2].rsplit("/", 2)[0]
        found.setdefault(scope, {}).setdefault(items, []).append(_shown(state))
    if unreachable:
        found[unreachable] = {"warning": {"code": "UNREACHABLE", "message": f"{unreachable} can't be reached"}}
    return found


def _shown(state: Json) -> Json:
    shown = {name: state.get(name) for name in ("name", "description", "labels", "nats") if state.get(name)}
    if "machine_type" not in state:
        return shown
    faces = [
        {"networkIP": face["network_ip"], "accessConfigs": [{"natIP": a["nat_ip"]} for a in face["access_config"]]}
        for face in state.get("network_interface") or []
    ]
    response = {"id": state["instance_id"], "status": state["current_status"], "networkInterfaces": faces}
    return shown | response | {"machineType": state["machine_type"]}


def _host_key(state: Json) -> Json:
    """The guest agent's host key, which it publishes at the first boot."""
    kind, key = state["host_public_key"].split()[:2]
    item = {"namespace": "hostkeys", "key": kind, "value": key}
    return {"queryPath": "hostkeys/", "queryValue": {"items": [item]}}


def _error(status: int, message: str, reason: str = "fault") -> tuple[int, Json]:
    return status, {"error": {"code": status, "message": message, "errors": [{"message": message, "reason": reason}]}}
