"""The resources that a root would create, with what each costs by the hour."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

# What a resource costs besides, by what is billed.
STORAGE = "per GiB kept, see checkpoints in the plan"
TRAFFIC = "per GB carried, see egress in the plan"


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


def free(kind: str, name: str, *, by_use: str = "") -> PlannedResource:
    """Return a resource without an hourly price."""
    return PlannedResource(type=kind, name=name, by_use=by_use)


def priced(kind: str, name: str, *parts: tuple[str, float], by_use: str = "") -> PlannedResource:
    """Return a resource with the price of each of its parts, in USD per hour."""
    return PlannedResource(type=kind, name=name, usd_per_hour=sum(usd for _, usd in parts), parts=parts, by_use=by_use)


def placement_groups(variables: dict[str, Any]) -> list[str]:
    """Return the compact placement groups, by the rule of `modules/placement`."""
    return sorted({node_kind(node) for node in variables["nodes"].values() if node["compact"]})


def node_kind(node: dict[str, Any]) -> str:
    """Return the name of what is said of all nodes of one type in one zone."""
    return f"{node['zone']}--{node['instance_type'].replace('.', '-')}"
