"""Takes over what an earlier attempt created and Terraform's state does not know of, because it was lost or cut short.

What exists is imported under the address at which it would be created: on Google Cloud by its name, on AWS by its id,
which tags lead to. What is left over, such as the node of an older plan, is deleted, so that nothing is paid for twice.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from sailor_cloud.durable import write_atomically
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.adoptable import Adoptable, Planned, planned_creations, planned_replacements
from sailor_cloud.provision.apply.session import Work
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.providers.aws.adopt import AwsAdoptable
from sailor_cloud.provision.providers.gcp.adopt import GLOBAL, GcpAdoptable
from sailor_cloud.provision.providers.gcp.member_sweep import MEMBER
from sailor_cloud.provision.rendering.root import WantedRoot, owns_network
from sailor_cloud.provision.scopes import BESIDE_COMPUTE, Places, remove_from, sweep_places
from sailor_cloud.provision.terraform.driver import TerraformDriver

_FILE = "adopt.tf"
_OF_LINKS = ("aws_vpc_peering_connection",)
# What a cluster's root makes although it is no part of compute.
_OF_CLUSTERS = ("aws_scheduler_schedule_group",)
# What comes and goes with an instance and is in no state, and a right, which can be added over and over.
_LET_BE = ("aws_ebs_volume", "google_compute_disk", MEMBER)


@contextmanager
def adopt(work: Work, wanted: WantedRoot, driver: TerraformDriver) -> Iterator[None]:
    """Have the next plan import what exists; at the end the imports are taken out of the root again.

    Needs the plan that would create everything. What can't be imported, or would have to be replaced, is deleted.
    """
    file = wanted.in_folder(work.folder).path / _FILE
    adoptable = _adoptable(wanted)
    planned = planned_creations(driver.show_plan_json())
    orphans = _orphans(work, wanted, driver, planned)
    found = {p.address: orphan for p in planned if (orphan := adoptable.whole(p, orphans)) is not None}
    strangers = [orphan for orphan in orphans if orphan not in found.values()]
    if strangers:
        remove_from(_places(wanted), strangers)
    ids = {address: adoptable.import_id(orphan) for address, orphan in found.items()}
    try:
        if ids:
            write_atomically(file, _imports(ids))
            # Now the plan knows what routes, rules and the like would be parts of.
            driver.plan()
            plan = driver.show_plan_json()
            planned = planned_creations(plan)
            unfit = ids.keys() & planned_replacements(plan)
            if unfit:
                remove_from(_places(wanted), [found[address] for address in unfit])
                ids = {address: known for address, known in ids.items() if address not in unfit}
        ids |= {p.address: part for p in planned if (part := adoptable.part_id(p)) is not None}
        write_atomically(file, _imports(ids))
        yield
    finally:
        file.unlink(missing_ok=True)


def _adoptable(wanted: WantedRoot) -> Adoptable:
    if wanted.provider is Provider.GCP:
        return GcpAdoptable(project=wanted.variables["project"])
    return AwsAdoptable(regions=_regions(wanted))


def _regions(wanted: WantedRoot) -> tuple[str, ...]:
    """Return the region of a root, or both of a link."""
    return tuple(wanted.variables.get("regions", (wanted.region,)))


def _places(wanted: WantedRoot) -> Places:
    if wanted.provider is Provider.GCP:
        return Places(gcp_projects=(wanted.variables["project"],))
    return Places(aws_regions=_regions(wanted))


def _orphans(
    work: Work, wanted: WantedRoot, driver: TerraformDriver, planned: tuple[Planned, ...]
) -> list[LiveResource]:
    """Return what the cloud has of this root and its state has not."""
    beside = BESIDE_COMPUTE & {creation.type for creation in planned}
    found = sweep_places(_places(wanted), run_id=work.folder.run_id, beside=beside).found
    known = {(kind, name) for kind, name in _in_state(driver.show_state())}
    return [
        resource for resource in found if _belongs(resource, wanted) and (resource.type, resource.name) not in known
    ]


def _belongs(resource: LiveResource, wanted: WantedRoot) -> bool:
    if resource.type in _LET_BE:
        return False
    of_data = resource.type in BESIDE_COMPUTE and resource.type not in _OF_CLUSTERS
    of_links = resource.type in _OF_LINKS
    if of_data or of_links or "nodes" not in wanted.variables:
        return wanted.stack.endswith("-data" if of_data else "-links") and (of_data or of_links)
    if resource.type in GLOBAL:
        return owns_network(wanted.variables)
    return resource.region == wanted.region


def _in_state(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    root = (state.get("values") or {}).get("root_module") or {}
    for module in (root, *root.get("child_modules", ())):
        for resource in module.get("resources", ()):
            yield resource["type"], str(resource["values"].get("id", "")).rpartition("/")[2]


def _imports(ids: Mapping[str, str]) -> str:
    blocks = (f"import {{\n  to = {address}\n  id = {json.dumps(known)}\n}}\n" for address, known in ids.items())
    return "\n".join(blocks)
