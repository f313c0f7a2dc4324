"""Places blocks on nodes: the same stages of several pipelines share a node."""

from __future__ import annotations

from collections.abc import Sequence

from sailor_cloud.planner.patterns.option import Option
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space


def slots(space: Space, options: Sequence[Option], replicas: int) -> list[tuple[Slot, ...]] | None:
    """Return the slots of every pipeline, or None if zones have no room for them.

    Pipelines stay in one zone as far as all of their units over several zones have nodes there.
    """
    zones = _zones(space, options, replicas)
    opened: dict[int, int] = {}
    pipelines: list[list[Slot]] = [[] for _ in range(replicas)]
    for option in options:
        by_zone = {space.pools[pool].offer.zone: pool for pool in option.unit.pools}
        here = zones if len(by_zone) > 1 else [next(iter(by_zone))] * replicas
        for tps in option.tps:
            if not _block(option, tps, [by_zone.get(zone, -1) for zone in here], opened, pipelines):
                return None
    room = {pool: nodes for option in options for pool, nodes in zip(option.unit.pools, option.unit.nodes, strict=True)}
    if any(count > room[pool] for pool, count in opened.items()):
        return None
    return [tuple(row) for row in pipelines]


def _block(
    option: Option, tps: tuple[int, ...], pools: list[int], opened: dict[int, int], pipelines: list[list[Slot]]
) -> bool:
    """Add the stages of one block to all pipelines; False if one of them has no pool there."""
    instance, taken, last = 0, option.replicas, -1
    for number, pool in enumerate(pools):
        if pool < 0:
            return False
        if pool != last or taken == option.replicas:
            instance, taken, last = opened.get(pool, 0), 0, pool
            opened[pool] = instance + 1
        taken += 1
        pipelines[number] += [Slot(pool, instance, tp) for tp in tps]
    return True


def _zones(space: Space, options: Sequence[Option], replicas: int) -> list[str]:
    """Return the zone of every pipeline for the units over several zones; each zone has room for its pipelines."""
    several = [option for option in options if len(option.unit.pools) > 1]
    if not several:
        return []
    room: dict[str, int] = {}
    for option in several:
        here = {
            space.pools[pool].offer.zone: nodes // option.blocks * option.replicas
            for pool, nodes in zip(option.unit.pools, option.unit.nodes, strict=True)
        }
        room = {zone: min(room.get(zone, most), most) for zone, most in here.items() if not room or zone in room}
    found: list[str] = []
    for zone in sorted(room, key=lambda zone: (-room[zone], zone)):
        found += [zone] * min(room[zone], replicas - len(found))
    return found if len(found) == replicas else [*found, *[""] * (replicas - len(found))]
