"""The Terraform roots of a plan, compatible with those of earlier plans of the same run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.provision import providers
from sailor_cloud.provision.rendering.rendered_roots import rendered_roots
from sailor_cloud.provision.rendering.root import (
    VARIABLES_FILE,
    Part,
    Place,
    Root,
    Variables,
    WantedRoot,
    owns_network,
    roots,
)
from sailor_cloud.run.folder import RunFolder

# These identify a node of an earlier plan; its other variables then stay as they were. A change of them, such as of the
# highest spot price, would replace the node.
_IDENTITY = ("zone", "instance_type", "market", "capacity")


def wanted_roots(
    folder: RunFolder,
    document: PlanDocument,
    *,
    public_key: str,
    expires_at: datetime,
    ssh_from: str | None,
    now: datetime | None = None,
) -> tuple[WantedRoot, ...]:
    """Return the roots in the order in which they are applied.

    Raises RequestError with everything that the job lacks for its clouds.
    """
    written = {(root.stack, root.region): written_variables(root) for root in roots(folder)}
    found = []
    rendered = rendered_roots(
        document, folder, public_key=public_key, expires_at=expires_at, ssh_from=ssh_from, now=now
    )
    for root in rendered:
        place = root.place
        if root.part is Part.DATA and (kept := next((other for other in written if other[0] == root.stack), None)):
            # Resources that outlive nodes stay in the first plan's region.
            place = kept
        variables = written[place] = _compatible(root, written.get(place, {}), written)
        found.append(replace(root, region=place[1], variables=variables))
    return _network_first(found)


def written_variables(root: Root) -> Variables:
    """Return the variables that were written for a root; empty if they can't be read."""
    try:
        loaded: Variables = json.loads((root.path / VARIABLES_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return loaded


def unwanted_roots(folder: RunFolder, wanted: tuple[WantedRoot, ...]) -> tuple[Root, ...]:
    """Return roots of earlier plans that this one does not need, in order of destruction.

    Roots that outlive nodes are never among them.
    """
    kept = {root.place for root in wanted}
    written = roots(folder)
    return tuple(root for root in written if (root.stack, root.region) not in kept and root.part is not Part.DATA)


def forget(root: Root) -> None:
    """Stop treating a destroyed root as written."""
    (root.path / VARIABLES_FILE).unlink(missing_ok=True)


def _network_first(found: list[WantedRoot]) -> tuple[WantedRoot, ...]:
    """Return the roots; the cluster that makes a shared network comes first, all others keep their order."""
    owner = next((root for root in found if owns_network(root.variables)), None)
    if owner is None:
        return tuple(found)
    rest = [root for root in found if root is not owner]
    at = next((number for number, root in enumerate(rest) if root.stack == owner.stack), len(rest))
    return (*rest[:at], owner, *rest[at:])


def _compatible(root: WantedRoot, before: Variables, written: dict[Place, Variables]) -> Variables:
    """Return variables that keep the run's places, network, addresses and remaining nodes."""
    new = root.variables
    if root.part is Part.DATA:
        return before or new
    if root.part is Part.CAPACITY and "reservations" in new:
        # Reservations keep their size, for a later plan that may use all of it.
        reserved = before.get("reservations", {})
        return {**new, "reservations": {name: reserved.get(name, of) for name, of in new["reservations"].items()}}
    if "cidr" not in new:
        return new
    others = {other: variables for other, variables in written.items() if other != root.place and "cidr" in variables}
    made = {**new, **_addresses(new, before, others), **_network(root, before, others)}
    if "peers" in before:
        # Remaining nodes of other clouds stay reachable throughout; others are added once all nodes exist.
        made["peers"] = before["peers"]
    known = before.get("nodes", {})
    made["nodes"] = {
        name: known[name] if name in known and _same(known[name], node) else node for name, node in new["nodes"].items()
    }
    return made


def _same(before: Variables, after: Variables) -> bool:
    return all(before.get(name) == after.get(name) for name in _IDENTITY)


def _network(root: WantedRoot, before: Variables, others: dict[Place, Variables]) -> Variables:
    if "network" not in root.variables:
        return {}
    if before:
        return {"network": before.get("network")}
    owned = any(stack == root.stack and owns_network(variables) for (stack, _), variables in others.items())
    return {"network": providers.of(root.provider).network_link(root.variables) if owned else None}


def _addresses(new: Variables, before: Variables, others: dict[Place, Variables]) -> Variables:
    """Return the region's range: its present one, else the first that no other region of the run has."""
    if "cidr" in before:
        return {"cidr": before["cidr"]}
    taken = {variables["cidr"] for variables in others.values()}
    if new["cidr"] not in taken:
        return {}
    first, _, *tail = new["cidr"].split(".")
    free = (".".join((first, str(second), *tail)) for second in range(64, 128))
    return {"cidr": next(choice for choice in free if choice not in taken)}
