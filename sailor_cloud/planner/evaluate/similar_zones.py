"""Similar zones: results for one zone are tried in the others without another search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from sailor_cloud.planner.evaluate.assess import Assessor, Shape
from sailor_cloud.planner.space.draft import Draft, Rank
from sailor_cloud.planner.space.layouts import Slot
from sailor_cloud.planner.space.space import Space

# The largest relative difference of prices and bandwidths between similar zones.
_NEAR = 0.1
# Drafts of a zone that are tried in others.
_TRIED = 8


def families(space: Space) -> list[tuple[str, ...]]:
    """Return the zones in groups: same region and offers, similar prices and links.

    The first zone of a group, by name, represents the others.
    """
    found: list[list[str]] = []
    for zone in sorted({pool.offer.zone for pool in space.pools}):
        for family in found:
            if _near(space, family[0], zone):
                family.append(zone)
                break
        else:
            found.append([zone])
    return [tuple(family) for family in found]


def elsewhere(assessor: Assessor, drafts: Iterable[Draft], rank: Callable[[Draft], Rank]) -> list[Draft]:
    """Return the best drafts within one zone, moved to similar zones whose limits they keep.

    Pools are those of the assessor's space. `rank`: the sort key of drafts.
    """
    space = assessor.space
    others = {family[0]: family[1:] for family in families(space)}
    tried: dict[str, int] = {}
    found = []
    for draft in sorted(drafts, key=rank):
        zones = {space.pools[slot.pool].offer.zone for part in draft.pipelines for slot in part.slots}
        home = min(zones)
        tried[home] = tried.get(home, 0) + 1
        if len(zones) > 1 or tried[home] > _TRIED:
            continue
        for zone in others.get(home, ()):
            shapes = moved(space, shapes_of(draft), home, zone)
            there = None if shapes is None else assessor.draft(shapes)
            if there is not None and rank(there)[0] == 1.0:
                found.append(there)
    return found


def shapes_of(draft: Draft) -> tuple[Shape, ...]:
    """Return the pipelines of a draft without derived values."""
    return tuple(
        Shape(slots=part.slots, cut=part.cut, microbatch_size=part.microbatch_size) for part in draft.pipelines
    )


def moved(space: Space, shapes: tuple[Shape, ...], home: str, zone: str) -> tuple[Shape, ...] | None:
    """Return pipelines with all nodes of a zone bought in another zone.

    None if that zone lacks one of the nodes, or if nodes of the same offers are in use already. Also None if two
    resources of the job allow the same offer and both are used, since their nodes would get the same numbers.
    """
    alike = {_kind(space, number): number for number in range(len(space.pools))}
    used = {slot.pool for shape in shapes for slot in shape.slots}
    names = {
        number: alike.get((zone, *_kind(space, number)[1:]), number)
        for number in used
        if space.pools[number].offer.zone == home
    }
    there = set(names.values())
    return None if used & there or len(there) < len(names) else renamed(shapes, names)


def renamed(shapes: tuple[Shape, ...], names: dict[int, int]) -> tuple[Shape, ...]:
    """Return pipelines with some pools replaced."""
    return tuple(
        shape._replace(
            slots=tuple(Slot(names.get(slot.pool, slot.pool), slot.instance, slot.tp) for slot in shape.slots),
        )
        for shape in shapes
    )


def _kind(space: Space, number: int) -> tuple[object, ...]:
    offer = space.pools[number].offer
    return (offer.zone, offer.instance_type, offer.accelerator, offer.market, offer.terms)


def _near(space: Space, zone: str, other: str) -> bool:
    """Return whether two zones of a region sell the same kinds and numbers of nodes at similar prices."""
    region_of = space.scenario.catalog.region_of
    here, there = _sold(space, zone), _sold(space, other)
    if region_of(zone) != region_of(other) or here.keys() != there.keys():
        return False
    return all(_alike(space, here[kind], there[kind]) for kind in here)


def _sold(space: Space, zone: str) -> dict[tuple[object, ...], int]:
    return {_kind(space, n)[1:]: n for n, pool in enumerate(space.pools) if pool.offer.zone == zone}


def _alike(space: Space, a: int, b: int) -> bool:
    """Return whether two pools have equally many nodes, similar prices and similar links."""
    most = [(space.pools[n].max_nodes, space.candidates.rows[space.pools[n].row].devices) for n in (a, b)]
    links = [space.link(n, n, same_node=False, pairs=1).bandwidth_bytes_per_s for n in (a, b)]
    rates = [space.rates[n].expected for n in (a, b)]
    return most[0] == most[1] and math.isclose(*rates, rel_tol=_NEAR) and math.isclose(*links, rel_tol=_NEAR)
