"""The Terraform roots that a plan needs, kept compatible with those that earlier plans of the same run have written."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.live_resources import LOCAL_REGION
from sailor_cloud.provision.rendering.cloud import cloud_roots
from sailor_cloud.provision.rendering.root import (
    VARIABLES_FILE,
    PlacedNode,
    Root,
    local_variables,
    placed_nodes,
    root_of,
    roots,
    write_root,
)
from sailor_cloud.run.folder import RunFolder

Variables = dict[str, Any]
# Stack and region.
Place = tuple[str, str]

# What decides whether a node of an earlier plan is the same one; its other variables then stay as they were, because a
# change of them, such as of the highest spot price, would replace the node.
_IDENTITY = ("zone", "instance_type", "spot")
_DATA = "-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedRoot:
    """A root with the variables to be written, the plan's nodes in it, and where its state is kept."""

    provider: Provider
    region: str
    stack: str
    variables: Variables
    nodes: tuple[PlacedNode, ...] = ()
    backend: Variables | None = None

    @property
    def place(self) -> Place:
        return self.stack, self.region

    def write(self, folder: RunFolder, *, without: frozenset[str] = frozenset()) -> Root:
        """Write the root into the run, perhaps without some nodes."""
        variables = self.variables
        if without:
            nodes = {name: node for name, node in variables["nodes"].items() if name not in without}
            variables = {**variables, "nodes": nodes}
        return write_root(folder, self.provider, self.region, variables, stack=self.stack, backend=self.backend)

    def in_folder(self, folder: RunFolder) -> Root:
        return root_of(folder, self.provider, self.region, stack=self.stack)


def wanted_roots(
    folder: RunFolder, document: PlanDocument, *, public_key: str, expires_at: datetime, ssh_from: str | None
) -> tuple[WantedRoot, ...]:
    """Return the roots in the order in which they are applied.

    Raises RequestError with everything that the job lacks for its clouds.
    """
    placed = placed_nodes(document)
    local = tuple(node for node in placed if node.offer.provider is Provider.LOCAL)
    found = []
    if local:
        found.append(
            WantedRoot(
                provider=Provider.LOCAL,
                region=LOCAL_REGION,
                stack=Provider.LOCAL.value,
                variables=local_variables(folder, local, public_key=public_key, expires_at=expires_at),
                nodes=local,
            )
        )
    if len(local) == len(placed):
        return tuple(found)
    written = {(root.stack, root.region): written_variables(root) for root in roots(folder)}
    rendered = cloud_roots(
        document, run_id=folder.run_id, public_key=public_key, expires_at=expires_at, ssh_from=ssh_from
    )
    clusters = []
    for root in rendered:
        place = (root.stack, root.region)
        if root.stack.endswith(_DATA) and (kept := _same_stack(root.stack, written)):
            # What outlives the nodes stays where the first plan put it.
            place = kept
        variables = _compatible(root.variables, place, written)
        written[place] = variables
        clusters.append(
            WantedRoot(
                provider=root.provider,
                region=place[1],
                stack=root.stack,
                variables=variables,
                nodes=tuple(p for p in placed if (p.offer.provider.value, p.offer.region) == place),
                backend=root.backend,
            )
        )
    return (*found, *_network_first(clusters))


def written_variables(root: Root) -> Variables:
    """Return the variables that were written for a root; none where they can't be read."""
    try:
        loaded: Variables = json.loads((root.path / VARIABLES_FILE).read_text())
    except (OSError, ValueError):
        return {}
    return loaded


def unwanted_roots(folder: RunFolder, wanted: tuple[WantedRoot, ...]) -> tuple[Root, ...]:
    """Return roots of earlier plans that this one has no use for, in the order in which they are destroyed.

    What outlives the nodes is never among them.
    """
    kept = {root.place for root in wanted}
    return tuple(
        root for root in roots(folder) if (root.stack, root.region) not in kept and not root.stack.endswith(_DATA)
    )


def forget(root: Root) -> None:
    """Let a root that was destroyed no longer count as written."""
    (root.path / VARIABLES_FILE).unlink(missing_ok=True)


def owns_network(stack: str, variables: Variables) -> bool:
    """Whether other roots of the run stand in this root's network."""
    return stack == Provider.GCP.value and variables.get("network") is None


def _network_first(found: list[WantedRoot]) -> list[WantedRoot]:
    """Return the clusters with the one first that makes the network of all; other roots keep their places."""
    owners = [root for root in found if owns_network(root.stack, root.variables)]
    rest = [root for root in found if root not in owners]
    at = next((number for number, root in enumerate(rest) if root.stack == Provider.GCP.value), len(rest))
    return [*rest[:at], *owners, *rest[at:]]


def _same_stack(stack: str, written: dict[Place, Variables]) -> Place | None:
    return next((place for place in written if place[0] == stack), None)


def _compatible(new: Variables, place: Place, written: dict[Place, Variables]) -> Variables:
    """Return variables that change nothing of what the run has: its places, network, addresses, nodes that stay."""
    before = written.get(place, {})
    if place[0].endswith(_DATA):
        return before or new
    if "nodes" not in new:
        return new
    others = {other: variables for other, variables in written.items() if other != place and "nodes" in variables}
    made = {**new, **_addresses(new, before, others), **_network(new, place, before, others)}
    known = before.get("nodes", {})
    made["nodes"] = {
        name: known[name] if name in known and _same(known[name], node) else node for name, node in new["nodes"].items()
    }
    return made


def _same(before: Variables, after: Variables) -> bool:
    return all(before.get(name) == after.get(name) for name in _IDENTITY)


def _network(new: Variables, place: Place, before: Variables, others: dict[Place, Variables]) -> Variables:
    if place[0] != Provider.GCP.value:
        return {}
    if before:
        return {"network": before.get("network")}
    owned = any(owns_network(other, variables) for (other, _), variables in others.items())
    return {"network": f"projects/{new['project']}/global/networks/{new['name']}-net" if owned else None}


def _addresses(new: Variables, before: Variables, others: dict[Place, Variables]) -> Variables:
    """Return the region's range: the one that it has, else the first that no other region of the run has."""
    if "cidr" in before:
        return {"cidr": before["cidr"]}
    taken = {variables["cidr"] for variables in others.values()}
    if new["cidr"] not in taken:
        return {}
    first, _, *tail = new["cidr"].split(".")
    free = (".".join((first, str(second), *tail)) for second in range(64, 128))
    return {"cidr": next(choice for choice in free if choice not in taken)}
