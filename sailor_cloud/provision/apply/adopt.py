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
from sailor_cloud.provision.adoptable import Adoptable, Planned, planned_creations, planned_replacements
from sailor_cloud.provision.apply.session import Work
from sailor_cloud.provision.live_resources import LiveResource
from sailor_cloud.provision.rendering.root import WantedRoot
from sailor_cloud.provision.scopes import remove_from, sweep_scopes
from sailor_cloud.provision.terraform.driver import TerraformDriver

_FILE = "adopt.tf"


@contextmanager
def adopt(work: Work, wanted: WantedRoot, adoptable: Adoptable, driver: TerraformDriver) -> Iterator[None]:
    """Have the next plan import what exists; at the end the imports are taken out of the root again.

    Needs the plan that would create everything. What can't be imported, or would have to be replaced, is deleted.
    """
    file = wanted.in_folder(work.folder).path / _FILE
    planned = planned_creations(driver.show_plan_json())
    orphans = _orphans(work, adoptable, driver, planned)
    found = {p.address: orphan for p in planned if (orphan := adoptable.whole(p, orphans)) is not None}
    strangers = [orphan for orphan in orphans if orphan not in found.values()]
    if strangers:
        remove_from(strangers)
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
                remove_from([found[address] for address in unfit])
                ids = {address: known for address, known in ids.items() if address not in unfit}
        ids |= {p.address: part for p in planned if (part := adoptable.part_id(p)) is not None}
        write_atomically(file, _imports(ids))
        yield
    finally:
        file.unlink(missing_ok=True)


def _orphans(
    work: Work, adoptable: Adoptable, driver: TerraformDriver, planned: tuple[Planned, ...]
) -> list[LiveResource]:
    """Return what the cloud has of this root and its state has not."""
    kinds = {creation.type for creation in planned}
    found = sweep_scopes(adoptable.scopes, run_id=work.folder.run_id, beside=kinds).found
    known = {(kind, name) for kind, name in _in_state(driver.show_state())}
    return [
        resource for resource in found if adoptable.belongs(resource) and (resource.type, resource.name) not in known
    ]


def _in_state(state: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    root = (state.get("values") or {}).get("root_module") or {}
    for module in (root, *root.get("child_modules", ())):
        for resource in module.get("resources", ()):
            yield resource["type"], str(resource["values"].get("id", "")).rpartition("/")[2]


def _imports(ids: Mapping[str, str]) -> str:
    blocks = (f"import {{\n  to = {address}\n  id = {json.dumps(known)}\n}}\n" for address, known in ids.items())
    return "\n".join(blocks)
