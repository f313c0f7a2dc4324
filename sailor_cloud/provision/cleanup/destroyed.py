"""What a teardown has done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.provision.cleanup.leftovers import is_of
from sailor_cloud.provision.live_resources import CloudSweep, LiveResource
from sailor_cloud.run.receipt import AskedPlace, KeptResource, ReceiptResource
from sailor_cloud.run.state import ResourceState, RunState


@dataclass(frozen=True, slots=True, kw_only=True)
class Destroyed:
    """What became of the run's resources. `left` is what an independent look still finds, `asked` where it looked."""

    resources: tuple[ReceiptResource, ...]
    left: tuple[LiveResource, ...]
    problems: tuple[str, ...]
    kept: tuple[KeptResource, ...] = ()
    asked: tuple[AskedPlace, ...] = ()

    @property
    def clean(self) -> bool:
        gone = all(resource.gone_at is not None for resource in self.resources)
        return not self.left and gone and all(place.answered for place in self.asked)


def rows(state: RunState, swept: CloudSweep) -> tuple[ReceiptResource, ...]:
    """Return everything that the journal names, without what is kept on purpose; what a look finds is not gone."""
    return tuple(_row(resource, swept.found) for resource in state.resources if not resource.kept)


def _row(resource: ResourceState, found: tuple[LiveResource, ...]) -> ReceiptResource:
    row = ReceiptResource(
        provider=resource.data.get("provider", ""),
        region=resource.data.get("region", ""),
        zone=resource.data.get("zone", ""),
        type=resource.resource,
        name=resource.key,
        created_at=resource.created_at,
        gone_at=resource.gone_at,
        confirmed_by=resource.data.get("confirmed_by", ""),
    )
    seen = any(is_of(resource, live) for live in found)
    return replace(row, gone_at=None, confirmed_by="", found=True) if seen else row


def unknown(state: RunState, found: Iterable[LiveResource]) -> tuple[ResourceState, ...]:
    """Return what was found although the journal, perhaps damaged or cut short by a crash, does not name it."""
    new: dict[tuple[str, str], ResourceState] = {}
    for live in found:
        if not any(is_of(row, live) for row in (*state.resources, *new.values())) and not _is_part(live, state):
            kind, key = (NODE, live.node) if live.node else (live.type, live.name)
            data = {"provider": live.provider, "region": live.region, "zone": live.zone, "cloud_id": live.name}
            new.setdefault((kind, key), ResourceState(resource=kind, key=key, data=data))
    return tuple(new[name] for name in sorted(new))


def _is_part(live: LiveResource, state: RunState) -> bool:
    """Tell what belongs to a node that the journal names, such as its disk."""
    return bool(live.node) and any(row.resource == NODE and row.key == live.node for row in state.resources)


def asked_places(swept: CloudSweep, doubts: Iterable[str], at: datetime) -> tuple[AskedPlace, ...]:
    """Return where was looked, for what, and when; what nobody could ask has no time."""
    told = dict.fromkeys((asked.scope, asked.kind, asked.problem) for asked in swept.asked)
    places = [
        AskedPlace(provider=scope.provider, place=str(scope), kind=kind, asked_at=at, problem=problem)
        for scope, kind, problem in told
    ]
    return (*places, *(AskedPlace(provider="", place="", kind="", asked_at=None, problem=doubt) for doubt in doubts))
