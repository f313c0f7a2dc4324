"""What Terraform is about to do, read from its plan."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sailor_cloud.provision import providers
from sailor_cloud.provision.progress import Progress, Step
from sailor_cloud.provision.rendering.root import Root

_NODE = re.compile(r'(module\.cluster\.\w+\.node)\["([^"]+)"\]')


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One planned change: `action` is create, update, replace or delete; `node` is empty for all but nodes."""

    address: str
    type: str
    key: str
    action: str

    @property
    def node(self) -> str:
        return node_at(self.address)

    def planned(self, root: Root, usd_per_hour: float | None) -> Progress:
        """Return the change as a step to tell."""
        return Progress(
            action=self.action,
            step=Step.PLANNED,
            provider=root.provider,
            region=root.region,
            resource=self.type,
            key=self.key,
            elapsed_s=0.0,
            message=f"{self.address}: plan to {self.action}",
            usd_per_hour=usd_per_hour,
        )


def change_of(event: Mapping[str, Any]) -> Change | None:
    """Return the change that an event of `terraform plan -json` tells, or None where it tells none."""
    if event.get("type") != "planned_change":
        return None
    change = event["change"]
    resource = change["resource"]
    if change["action"] in ("read", "noop", "import"):
        return None
    return Change(
        address=resource["addr"],
        type=resource["resource_type"],
        key=str(resource.get("resource_key") or resource["resource_name"]),
        action=change["action"],
    )


def node_at(address: str) -> str:
    """Return the node whose machine stands at an address of Terraform, or nothing."""
    found = _NODE.fullmatch(address)
    return found[2] if found and any(found[1] == bought.machines for _, bought in providers.every()) else ""
