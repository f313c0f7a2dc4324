"""What a teardown has done."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.live_resources import CloudSweep, LiveResource
from sailor_cloud.run.receipt import KeptResource, ReceiptResource
from sailor_cloud.run.state import ResourceState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroyed:
    """What became of the run's resources. `left` is what an independent look still finds."""

    resources: tuple[ReceiptResource, ...]
    left: tuple[LiveResource, ...]
    problems: tuple[str, ...]
    kept: tuple[KeptResource, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.left and all(resource.gone_at is not None for resource in self.resources)


def rows(state: RunState) -> tuple[ReceiptResource, ...]:
    """Return everything that the journal names, without what is kept on purpose."""
    return tuple(
        ReceiptResource(
            provider=resource.data.get("provider", ""),
            region=resource.data.get("region", ""),
            zone=resource.data.get("zone", ""),
            type=resource.resource,
            name=resource.key,
            created_at=resource.created_at,
            gone_at=resource.gone_at,
            confirmed_by=resource.data.get("confirmed_by", ""),
        )
        for resource in state.resources
        if not resource.kept
    )


def unknown_nodes(state: RunState, before: CloudSweep) -> tuple[ResourceState, ...]:
    """Return nodes that were found although the journal, perhaps cut short by a crash, does not name them."""
    known = {row.key for row in state.resources if row.resource == NODE}
    unknown = {found.node: found for found in before.found if found.node and found.node not in known}
    return tuple(
        ResourceState(resource=NODE, key=name, data={"provider": found.provider, "region": found.region})
        for name, found in sorted(unknown.items())
    )
