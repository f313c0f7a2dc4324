"""Planned and existing resources: the types that all providers share to adopt resources."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from sailor_cloud.provision.live_resources import LiveResource, Scopes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedCreation:
    """A resource that a plan would create; `after` lacks values that are known only once it exists."""

    type: str
    address: str
    after: Mapping[str, Any]


class Adoptable(Protocol):
    """Finds the ids under which Terraform imports existing resources; those without one are deleted and created again.

    `scopes`: where the root's resources are searched.
    """

    scopes: Scopes

    def belongs_to_root(self, resource: LiveResource) -> bool:
        """Whether a found resource belongs to this root, and to no other of the run."""

    def find_match(self, planned: PlannedCreation, orphans: Iterable[LiveResource]) -> LiveResource | None:
        """Return the found resource that is the planned one; None if there is none."""
        return None

    def import_id(self, resource: LiveResource) -> str:
        return resource.name

    def part_id(self, planned: PlannedCreation) -> str | None:
        """Return the id of a part, such as a route, that exists in an adopted resource; None if it doesn't."""
        return None


def planned_creations(plan: Mapping[str, Any]) -> tuple[PlannedCreation, ...]:
    """Return the resources that a plan, in Terraform's JSON form, would create and not import."""
    return tuple(
        PlannedCreation(type=change["type"], address=change["address"], after=change["change"]["after"])
        for change in plan.get("resource_changes", ())
        if change["change"]["actions"] == ["create"]
    )


def planned_replacements(plan: Mapping[str, Any]) -> frozenset[str]:
    """Return the addresses of resources that a plan would delete and create again."""
    changes = plan.get("resource_changes", ())
    return frozenset(c["address"] for c in changes if {"create", "delete"} <= set(c["change"]["actions"]))


def planned_updates(plan: Mapping[str, Any]) -> dict[str, frozenset[str]]:
    """Return the attributes that a plan would change in place, by the address of their resource."""
    return {
        change["address"]: _changed(change["change"])
        for change in plan.get("resource_changes", ())
        if change["change"]["actions"] == ["update"]
    }


def _changed(change: Mapping[str, Any]) -> frozenset[str]:
    before, after = change["before"], change["after"]
    known = {name for name in after if before.get(name) != after[name]}
    return frozenset({*known, *(name for name, unknown in change["after_unknown"].items() if unknown)})
