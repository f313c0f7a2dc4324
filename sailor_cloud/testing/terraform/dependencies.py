"""The resources that must exist before another one can be created in them, as the clouds check."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

PARENTS = {
    "vpc_id": "aws_vpc",
    "subnet_id": "aws_subnet",
    "security_group_id": "aws_security_group",
    "route_table_id": "aws_route_table",
}
# Parts that are deleted with their resource.
PARTS = {
    "aws_route_table": ("aws_route",),
    "aws_vpc_peering_connection": ("aws_vpc_peering_connection_accepter",),
    "aws_security_group": ("aws_vpc_security_group_ingress_rule", "aws_vpc_security_group_egress_rule"),
}


def missing_parent(
    kind: str, wanted: Mapping[str, Any], resources: Mapping[tuple[str, str], Mapping[str, Any]]
) -> str | None:
    """Return the cloud's message if a new resource's parent does not exist; None otherwise."""
    if kind.startswith("aws_"):
        for name, parent in PARENTS.items():
            value = wanted.get(name)
            if value and (parent, str(value)) not in resources:
                return f"creating {kind}: api error Invalid{parent}ID.NotFound: The ID '{value}' does not exist"
        return None
    links = {state.get("self_link") for state in resources.values()}
    for link in _google_links(wanted):
        if "/networks/" not in link and "/subnetworks/" not in link:
            continue
        if not any(str(known).endswith(link.removeprefix("https://www.googleapis.com/compute/v1/")) for known in links):
            return f"Error creating {kind}: googleapi: Error 404: The resource '{link}' was not found, notFound"
    return None


def _google_links(wanted: Mapping[str, Any]) -> Iterator[str]:
    for holder in (wanted, *(wanted.get("network_interface") or ())):
        for name in ("network", "subnetwork"):
            # A NAT has a block of this name.
            if isinstance(link := holder.get(name), str) and link:
                yield link
