"""What provisioning a plan would create, computed without Terraform, providers or credentials."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any

from sailor_cloud import catalog
from sailor_cloud.catalog import BOOT_DISKS, Service, Services
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.rendering.rendered_roots import rendered_roots
from sailor_cloud.provision.rendering.root import WantedRoot, placed_nodes
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.simulator.money import BOOT_DISK_GIB
from sailor_cloud.units import HOURS_PER_MONTH, usd_text

# Notes on a resource's further cost, by what is billed.
STORAGE = "per GiB kept, see checkpoints in the plan"
TRAFFIC = "per GB carried, see egress in the plan"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedResource:
    """One resource that Terraform would create.

    `usd_per_hour` is None if the resource has no hourly cost; `parts` are its components. `by_use` says what else it
    costs, if anything.
    """

    type: str
    name: str
    usd_per_hour: float | None = None
    parts: tuple[tuple[str, float], ...] = ()
    by_use: str = ""


def unpriced_resource(kind: str, name: str, *, by_use: str = "") -> PlannedResource:
    """Return a resource without an hourly price."""
    return PlannedResource(type=kind, name=name, by_use=by_use)


def priced_resource(kind: str, name: str, *parts: tuple[str, float], by_use: str = "") -> PlannedResource:
    """Return a resource with the price of each of its parts, in USD per hour."""
    return PlannedResource(type=kind, name=name, usd_per_hour=sum(usd for _, usd in parts), parts=parts, by_use=by_use)


def placement_groups(variables: dict[str, Any]) -> list[str]:
    """Return the compact placement groups, by the rule of `modules/placement`."""
    return sorted({node_kind(node) for node in variables["nodes"].values() if node["compact"]})


def node_kind(node: dict[str, Any]) -> str:
    """Return the name of the settings that all nodes of one type in one zone share."""
    return f"{node['zone']}--{node['instance_type'].replace('.', '-')}"


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
    """USD per hour of a root's resources, by type and name without the run's."""

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

    The folder need not exist; nothing is written. `services` are the prices of disks, addresses and NAT, by default
    those of this machine's catalog. Raises RequestError with everything that the job lacks for its clouds, or
    MissingPriceError.
    """
    machines = {p.node.id: 0.0 if p.offer.bought_separately else p.offer.usd_per_hour for p in placed_nodes(document)}
    known = cache(lambda: services or catalog.load_services())
    roots = rendered_roots(document, folder, public_key=public_key, expires_at=expires_at, ssh_from=ssh_from)
    return tuple(
        PlannedRoot(
            provider=root.provider,
            region=root.region,
            stack=root.stack,
            variables=root.variables,
            resources=tuple(providers.of(root.provider).resources(Bill(root=root, machines=machines, services=known))),
            backend=root.backend,
        )
        for root in roots
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """A root with the hourly prices of its resources in USD; `machines` by node. Raises MissingPriceError."""

    root: WantedRoot
    machines: dict[str, float]
    services: Callable[[], Services]

    @property
    def variables(self) -> dict[str, Any]:
        return self.root.variables

    @property
    def private(self) -> bool:
        return self.variables["ssh_from"] is None

    @property
    def nat_data(self) -> str:
        price = self.services().price(self.root.provider, self.root.region, Service.NAT_DATA)
        return f"{usd_text(price.usd_per_unit)} USD per {price.unit} that passes"

    @property
    def address(self) -> float:
        return self._hourly(Service.PUBLIC_ADDRESS)

    @property
    def gateway(self) -> float:
        return self._hourly(Service.NAT_GATEWAY)

    def instance(self, kind: str, name: str, node: str, *, address: bool) -> PlannedResource:
        service = BOOT_DISKS.get(self.variables["nodes"][node].get("boot_disk", ""), Service.DISK_BALANCED)
        disk = self._hourly(service) * BOOT_DISK_GIB / HOURS_PER_MONTH
        parts = [
            ("machine", self.machines[node]),
            ("disk", disk),
        ]
        if address:
            parts.append(("address", self.address))
        return priced_resource(kind, name, *parts)

    def _hourly(self, service: Service) -> float:
        return self.services().price(self.root.provider, self.root.region, service).usd_per_unit
