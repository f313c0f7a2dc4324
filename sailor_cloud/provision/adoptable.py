"""What Terraform would create and what exists of it: the words that all providers' adoption shares."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sailor_cloud.provision.live_resources import LiveResource, Scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A resource that a plan would create; `after` lacks what is known only once it exists."""

    type: str
    address: str
    after: Mapping[str, Any]


class Adoptable(Protocol):
    """Finds the ids under which Terraform imports what exists; what has none is deleted and created again.

    `scopes`: where what belongs to the root is looked for.
    """

    scopes: Scopes

    def belongs(self, resource: LiveResource) -> bool:
        """Tell whether a resource that a sweep found belongs to this root, and to no other of the run."""

    def whole(self, planned: Planned, orphans: Iterable[LiveResource]) -> LiveResource | None:
        """Return which of the resources that a sweep found is the one planned."""
        return None

    def import_id(self, resource: LiveResource) -> str:
        return resource.name

    def part_id(self, planned: Planned) -> str | None:
        """Return the id of a part, such as a route, that exists in something adopted; None where it doesn't."""
        return None


def planned_creations(plan: Mapping[str, Any]) -> tuple[Planned, ...]:
    """Return what a plan, in Terraform's JSON form, would create and not import."""
    return tuple(
        Planned(type=change["type"], address=change["address"], after=change["change"]["after"])
        for change in plan.get("resource_changes", ())
        if change["change"]["actions"] == ["create"]
    )


def planned_replacements(plan: Mapping[str, Any]) -> frozenset[str]:
    """Return the addresses of what a plan would delete to create it again."""
    changes = plan.get("resource_changes", ())
    return frozenset(c["address"] for c in changes if {"create", "delete"} <= set(c["change"]["actions"]))
