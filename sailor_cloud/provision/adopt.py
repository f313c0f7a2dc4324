"""Takes over what an earlier attempt created and Terraform's state does not know of, because it was lost or cut short.

On Google Cloud names are deterministic, so what exists is imported under the address at which it would be created. On
AWS names of networks and instances are no keys: a second one would be made beside the first. There, what the state does
not know of is deleted before anything is created, so that nothing is paid for twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.places import Places, remove_from, sweep_places
from sailor_cloud.provision.planned_roots import WantedRoot, owns_network
from sailor_cloud.provision.sweep import LiveResource
from sailor_cloud.provision.terraform_driver import TerraformDriver
from sailor_cloud.provision.work import Work
from sailor_cloud.run.folder import write_atomically

_FILE = "adopt.tf"
_GLOBAL = ("google_compute_network", "google_compute_firewall")


@contextmanager
def adopt(work: Work, wanted: WantedRoot, driver: TerraformDriver) -> Iterator[None]:
    """Have the next plan import what exists; at the end the imports are taken out of the root again.

    Needs the plan that would create everything. What can't be imported is deleted.
    """
    file = wanted.in_folder(work.folder).path / _FILE
    orphans = _orphans(work, wanted, driver)
    blocks = []
    if wanted.provider is Provider.GCP and orphans:
        addresses = _planned_addresses(driver)
        blocks = [_import(addresses[r.type, r.name], r) for r in orphans if (r.type, r.name) in addresses]
        orphans = [resource for resource in orphans if (resource.type, resource.name) not in addresses]
    if orphans:
        remove_from(_places(wanted), orphans)
    if blocks:
        write_atomically(file, "\n".join(blocks))
    try:
        yield
    finally:
        file.unlink(missing_ok=True)


def _places(wanted: WantedRoot) -> Places:
    if wanted.provider is Provider.GCP:
        return Places(gcp_projects=(wanted.variables["project"],))
    return Places(aws_regions=(wanted.region,))


def _orphans(work: Work, wanted: WantedRoot, driver: TerraformDriver) -> list[LiveResource]:
    """Return what the cloud has of this root and its state has not."""
    if "nodes" not in wanted.variables:
        return []
    found = sweep_places(_places(wanted), run_id=work.folder.run_id).found
    known = {(kind, name) for kind, name in _in_state(driver.show_state())}
    return [
        resource for resource in found if _belongs(resource, wanted) and (resource.type, resource.name) not in known
    ]


def _belongs(resource: LiveResource, wanted: WantedRoot) -> bool:
    if resource.type in _GLOBAL:
        return owns_network(wanted.stack, wanted.variables)
    return resource.region == wanted.region


def _in_state(state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    root = (state.get("values") or {}).get("root_module") or {}
    for module in (root, *root.get("child_modules", ())):
        for resource in module.get("resources", ()):
            yield resource["type"], str(resource["values"].get("id", "")).rpartition("/")[2]


def _planned_addresses(driver: TerraformDriver) -> dict[tuple[str, str], str]:
    changes: Iterable[dict[str, Any]] = driver.show_plan_json().get("resource_changes", ())
    return {
        (change["type"], change["change"]["after"]["name"]): change["address"]
        for change in changes
        if change["change"]["actions"] == ["create"] and "name" in change["change"]["after"]
    }


def _import(address: str, resource: LiveResource) -> str:
    place = f"zones/{resource.zone}" if resource.zone else f"regions/{resource.region}"
    if resource.type in _GLOBAL:
        place = "global"
    kinds = {
        "google_compute_resource_policy": "resourcePolicies",
        "google_compute_router": "routers",
    }
    kind = kinds.get(resource.type, f"{resource.type.removeprefix('google_compute_')}s")
    name = f"projects/{resource.project}/{place}/{kind}/{resource.name}"
    return f"import {{\n  to = {address}\n  id = {json.dumps(name)}\n}}\n"
