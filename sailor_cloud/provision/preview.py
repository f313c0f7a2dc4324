"""What provisioning a plan would create, told without Terraform, providers or credentials."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.render import local_variables, placed_nodes
from sailor_cloud.provision.render_cloud import cloud_roots
from sailor_cloud.provision.sweep import LOCAL_REGION
from sailor_cloud.run.folder import RunFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResource:
    """One resource that Terraform would create. `usd_per_hour` is None where the resource itself costs nothing."""

    type: str
    name: str
    usd_per_hour: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRoot:
    """One Terraform root: its variables as they would be rendered, and its resources."""

    provider: Provider
    region: str
    variables: dict[str, Any]
    resources: tuple[PlannedResource, ...]


def preview(
    document: PlanDocument, folder: RunFolder, *, public_key: str, expires_at: datetime, ssh_from: str | None
) -> tuple[PlannedRoot, ...]:
    """Return the roots of a plan, local ones first. The folder need not exist; nothing is written.

    Raises RequestError with everything that the job lacks for its clouds.
    """
    placed = placed_nodes(document)
    prices = {node.node.id: node.offer.usd_per_hour for node in placed}
    local = tuple(node for node in placed if node.offer.provider is Provider.LOCAL)
    found = []
    if local:
        variables = local_variables(folder, local, public_key=public_key, expires_at=expires_at)
        nodes = tuple(_resource("terraform_data", node.node.id, prices[node.node.id]) for node in local)
        found.append(PlannedRoot(provider=Provider.LOCAL, region=LOCAL_REGION, variables=variables, resources=nodes))
    if len(local) == len(placed):
        return tuple(found)
    roots = cloud_roots(document, run_id=folder.run_id, public_key=public_key, expires_at=expires_at, ssh_from=ssh_from)
    for root in roots:
        listed = _gcp if root.provider is Provider.GCP else _aws
        found.append(
            PlannedRoot(
                provider=root.provider,
                region=root.region,
                variables=root.variables,
                resources=tuple(listed(root.variables, prices)),
            )
        )
    return tuple(found)


def _gcp(variables: dict[str, Any], prices: dict[str, float]) -> list[PlannedResource]:
    name = variables["name"]
    shared = []
    if variables["network"] is None:
        shared.append(_resource("google_compute_network", f"{name}-net"))
        shared += [_resource("google_compute_firewall", f"{name}-{rule}") for rule in ("ssh", "training")]
    shared.append(_resource("google_compute_subnetwork", f"{name}-{variables['region']}"))
    shared += [_resource("google_compute_resource_policy", f"{name}-{group}") for group in _groups(variables)]
    nodes = [_resource("google_compute_instance", f"{name}-{node}", prices[node]) for node in variables["nodes"]]
    return shared + nodes


def _aws(variables: dict[str, Any], prices: dict[str, float]) -> list[PlannedResource]:
    name = variables["name"]
    zones = sorted({node["zone"] for node in variables["nodes"].values()})
    shared = [_resource(kind, f"{name}-net") for kind in ("aws_vpc", "aws_internet_gateway", "aws_route_table")]
    shared.append(_resource("aws_route", "0.0.0.0/0"))
    shared += [_resource(kind, zone) for kind in ("aws_subnet", "aws_route_table_association") for zone in zones]
    shared.append(_resource("aws_security_group", f"{name}-node"))
    rules = ["training"] if variables["ssh_from"] is None else ["ssh", "training"]
    shared += [_resource("aws_vpc_security_group_ingress_rule", rule) for rule in rules]
    shared.append(_resource("aws_vpc_security_group_egress_rule", "out"))
    shared.append(_resource("aws_key_pair", f"{name}-key"))
    shared += [_resource("aws_placement_group", f"{name}-{group}") for group in _groups(variables)]
    nodes = [_resource("aws_instance", f"{name}-{node}", prices[node]) for node in variables["nodes"]]
    timers = variables["nodes"] if variables["terminate_role_arn"] is not None else ()
    return shared + nodes + [_resource("aws_scheduler_schedule", f"{name}-{node}") for node in timers]


def _groups(variables: dict[str, Any]) -> list[str]:
    """Return the compact placement groups, by the rule of `modules/placement`."""
    members = Counter(
        f"{node['zone']}--{node['instance_type'].replace('.', '-')}"
        for node in variables["nodes"].values()
        if node["compact"]
    )
    return sorted(name for name, count in members.items() if count > 1)


def _resource(kind: str, name: str, usd_per_hour: float | None = None) -> PlannedResource:
    return PlannedResource(type=kind, name=name, usd_per_hour=usd_per_hour)
