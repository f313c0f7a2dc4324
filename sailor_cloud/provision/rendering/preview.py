"""What provisioning a plan would create, told without Terraform, providers or credentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sailor_cloud import catalog
from sailor_cloud.catalog import Service, Services
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision.live_resources import LOCAL_REGION
from sailor_cloud.provision.rendering.cloud import CloudRoot, cloud_roots
from sailor_cloud.provision.rendering.root import local_variables, placed_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.simulator.money import BOOT_DISK_GIB
from sailor_cloud.units import HOURS_PER_MONTH

_STORAGE = "per GiB kept, see checkpoints in the plan"
_TRAFFIC = "per GB carried, see egress in the plan"
_PER_ZONE = ("aws_subnet", "aws_route_table_association")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResource:
    """One resource that Terraform would create.

    `usd_per_hour` is None where the resource costs nothing by the hour; `parts` are what it is made of. `by_use` says
    what else it costs, if anything.
    """

    type: str
    name: str
    usd_per_hour: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    by_use: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRoot:
    """One Terraform root: its variables as they would be rendered, its backend if it has one, and its resources."""

    provider: Provider
    region: str
    stack: str
    variables: dict[str, Any]
    resources: tuple[PlannedResource, ...]
    backend: dict[str, Any] | None = field(default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """USD per hour of what a root creates, by type and name without the run's."""

    by_name: dict[tuple[str, str], float] = field(default_factory=dict)

    @classmethod
    def of_root(cls, root: PlannedRoot) -> Prices:
        of_run = f"{root.variables.get('name', '')}-"
        found = {(r.type, r.name.removeprefix(of_run)): r.usd_per_hour for r in root.resources}
        return cls(by_name={name: usd for name, usd in found.items() if usd is not None})

    def of(self, kind: str, key: str) -> float | None:
        """Return the price of a resource by its key in Terraform: a node's id, or the place of a gateway."""
        return self.by_name.get((kind, key), self.by_name.get((kind, "nat")))


def preview(
    document: PlanDocument,
    folder: RunFolder,
    *,
    public_key: str,
    expires_at: datetime,
    ssh_from: str | None,
    services: Services | None = None,
) -> tuple[PlannedRoot, ...]:
    """Return the roots of a plan in the order in which they are applied, local ones first.

    The folder need not exist; nothing is written. `services` are the prices of disks, addresses and NAT, those of this
    machine's catalog unless given. Raises RequestError with everything that the job lacks for its clouds, or
    MissingPriceError.
    """
    placed = placed_nodes(document)
    prices = {node.node.id: node.offer.usd_per_hour for node in placed}
    local = tuple(node for node in placed if node.offer.provider is Provider.LOCAL)
    found = []
    if local:
        variables = local_variables(folder, local, public_key=public_key, expires_at=expires_at)
        nodes = tuple(_priced("terraform_data", node.node.id, ("machine", prices[node.node.id])) for node in local)
        found.append(
            PlannedRoot(
                provider=Provider.LOCAL, region=LOCAL_REGION, stack="local", variables=variables, resources=nodes
            )
        )
    if len(local) == len(placed):
        return tuple(found)
    known = services or catalog.load_services()
    roots = cloud_roots(document, run_id=folder.run_id, public_key=public_key, expires_at=expires_at, ssh_from=ssh_from)
    for root in roots:
        found.append(
            PlannedRoot(
                provider=root.provider,
                region=root.region,
                stack=root.stack,
                variables=root.variables,
                resources=tuple(_LISTED[root.stack](_Bill(root=root, machines=prices, services=known))),
                backend=root.backend,
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bill:
    """A root with the prices of what it holds; `machines` are USD per hour by node."""

    root: CloudRoot
    machines: dict[str, float]
    services: Services

    @property
    def variables(self) -> dict[str, Any]:
        return self.root.variables

    @property
    def private(self) -> bool:
        return self.variables["ssh_from"] is None

    @property
    def nat_data(self) -> str:
        price = self.services.price(self.root.provider, self.root.region, Service.NAT_DATA)
        return f"{price.usd_per_unit:g} USD per {price.unit} that passes"

    def hourly(self, service: Service) -> float:
        price = self.services.price(self.root.provider, self.root.region, service).usd_per_unit
        return price * BOOT_DISK_GIB / HOURS_PER_MONTH if service is Service.DISK_BALANCED else price

    def instance(self, kind: str, name: str, node: str, *, address: bool) -> PlannedResource:
        parts = [("machine", self.machines[node]), ("disk", self.hourly(Service.DISK_BALANCED))]
        if address:
            parts.append(("address", self.hourly(Service.PUBLIC_ADDRESS)))
        return _priced(kind, name, *parts)


def _gcp(bill: _Bill) -> list[PlannedResource]:
    variables, name = bill.variables, bill.variables["name"]
    listed = []
    if variables["network"] is None:
        listed.append(_free("google_compute_network", f"{name}-net"))
        listed += [_free("google_compute_firewall", f"{name}-{rule}") for rule in ("ssh", "training")]
    listed.append(_free("google_compute_subnetwork", f"{name}-{variables['region']}"))
    if bill.private:
        listed.append(_free("google_compute_router", f"{name}-{variables['region']}"))
        # Cloud NAT takes addresses by itself, and they are billed as those of VMs are.
        parts = [("gateway", bill.hourly(Service.NAT_GATEWAY)), ("address", bill.hourly(Service.PUBLIC_ADDRESS))]
        listed.append(_priced("google_compute_router_nat", f"{name}-nat", *parts, by_use=bill.nat_data))
    listed += [_free("google_compute_resource_policy", f"{name}-{group}") for group in _groups(variables)]
    nodes = variables["nodes"]
    return listed + [
        bill.instance("google_compute_instance", f"{name}-{node}", node, address=not bill.private) for node in nodes
    ]


def _aws(bill: _Bill) -> list[PlannedResource]:
    variables, name = bill.variables, bill.variables["name"]
    nodes: dict[str, dict[str, Any]] = variables["nodes"]
    zones = sorted({node["zone"] for node in nodes.values()})
    place = f"{name}-{variables['region']}"
    efa = ["efa"] if any(node["efa_cards"] for node in nodes.values()) else []
    listed = [_free(kind, place) for kind in ("aws_vpc", "aws_internet_gateway", "aws_route_table")]
    listed.append(_free("aws_route", "0.0.0.0/0"))
    listed += [_free(kind, f"{name}-{zone}") for kind in _PER_ZONE for zone in zones]
    listed += _nat(bill) if bill.private else []
    listed.append(_free("aws_security_group", f"{name}-node"))
    rules = [*([] if bill.private else ["ssh"]), "training rendezvous", "training collectives", *efa]
    listed += [_free("aws_vpc_security_group_ingress_rule", rule) for rule in rules]
    listed += [_free("aws_vpc_security_group_egress_rule", rule) for rule in ("out", *efa)]
    listed.append(_free("aws_key_pair", place))
    listed += [_free("aws_placement_group", f"{name}-{group}") for group in _groups(variables)]
    kinds = sorted({_kind(node) for node in nodes.values() if node["efa_cards"]})
    listed += [_free("aws_launch_template", f"{name}-{kind}") for kind in kinds]
    for node, about in nodes.items():
        own_address = len(about["efa_cards"]) > 1 and not bill.private
        with_address = not own_address and not bill.private
        listed.append(bill.instance("aws_instance", f"{name}-{node}", node, address=with_address))
        if own_address:
            listed.append(_priced("aws_eip", f"{name}-{node}", ("address", bill.hourly(Service.PUBLIC_ADDRESS))))
    if variables["terminate_role_arn"] is not None:
        listed.append(_free("aws_scheduler_schedule_group", place))
        listed += [_free("aws_scheduler_schedule", f"{name}-{node}") for node in nodes]
    return listed


def _nat(bill: _Bill) -> list[PlannedResource]:
    name = f"{bill.variables['name']}-nat"
    kinds = (*_PER_ZONE, "aws_route_table", "aws_route")
    return [
        *(_free(kind, name) for kind in kinds),
        _priced("aws_eip", name, ("address", bill.hourly(Service.PUBLIC_ADDRESS))),
        _priced("aws_nat_gateway", name, ("gateway", bill.hourly(Service.NAT_GATEWAY)), by_use=bill.nat_data),
        _free("aws_vpc_endpoint", f"{bill.variables['name']}-s3"),
    ]


def _links(bill: _Bill) -> list[PlannedResource]:
    name = f"{bill.variables['name']}-{bill.root.region}"
    regions = bill.variables["regions"]
    rules = [f"{region} training {ports}" for region in regions for ports in bill.variables["ports"]]
    return [
        _free("aws_vpc_peering_connection", name, by_use=_TRAFFIC),
        _free("aws_vpc_peering_connection_accepter", name),
        *(_free("aws_route", region) for region in regions),
        *(_free("aws_vpc_security_group_ingress_rule", rule) for rule in rules),
    ]


def _gcp_data(bill: _Bill) -> list[PlannedResource]:
    bucket, listed = bill.variables["bucket"], []
    if bucket["own"]:
        listed.append(_free("google_storage_bucket", bucket["name"], by_use=_STORAGE))
    if bill.variables["identity"] is None:
        listed.append(_free("google_service_account", f"{bill.variables['name']}-node"))
    return [*listed, _free("google_storage_bucket_iam_member", bucket["name"])]


def _aws_data(bill: _Bill) -> list[PlannedResource]:
    bucket, listed = bill.variables["bucket"], []
    if bucket is not None and bucket["own"]:
        listed.append(_free("aws_s3_bucket", bucket["name"], by_use=_STORAGE))
        about = ("aws_s3_bucket_public_access_block", "aws_s3_bucket_lifecycle_configuration")
        listed += [_free(kind, bucket["name"]) for kind in about]
    if bill.variables["identity"] is None:
        identity = ("aws_iam_role", "aws_iam_role_policy", "aws_iam_instance_profile")
        listed += [_free(kind, f"{bill.variables['name']}-node") for kind in identity]
    return listed


_LISTED: dict[str, Callable[[_Bill], list[PlannedResource]]] = {
    "gcp": _gcp,
    "aws": _aws,
    "aws-links": _links,
    "gcp-data": _gcp_data,
    "aws-data": _aws_data,
}


def _groups(variables: dict[str, Any]) -> list[str]:
    """Return the compact placement groups, by the rule of `modules/placement`."""
    return sorted({_kind(node) for node in variables["nodes"].values() if node["compact"]})


def _kind(node: dict[str, Any]) -> str:
    return f"{node['zone']}--{node['instance_type'].replace('.', '-')}"


def _free(kind: str, name: str, *, by_use: str = "") -> PlannedResource:
    return PlannedResource(type=kind, name=name, by_use=by_use)


def _priced(kind: str, name: str, *parts: tuple[str, float], by_use: str = "") -> PlannedResource:
    return PlannedResource(type=kind, name=name, usd_per_hour=sum(usd for _, usd in parts), parts=parts, by_use=by_use)
