"""Sets of kinds that may sum their gradients together, and the link that slows them all."""

from __future__ import annotations

from itertools import combinations, product

from sailor_cloud.network import Link
from sailor_cloud.planner.kinds import Kinds

# How many pipelines are assumed where links and settings are only ranked.
TYPICAL_PIPELINES = 16
# Sets of kinds are told apart by their least tp up to this one.
_LEAST_TP = 4


def link_classes(kinds: Kinds) -> list[tuple[Link, frozenset[int]]]:
    """Return sets of kinds with the slowest link among them: accelerators, an area and the least tp.

    Areas are all zones, those of a region, and single zones.
    Sums run over as many pairs of devices as the least tp, so one small stage slows them all.
    """
    rows = kinds.space.candidates.rows
    regions = {row.zone: kinds.space.scenario.catalog.region_of(row.zone) for row in rows}
    names = sorted({rows[kind.row].accelerator for kind in kinds.members})
    areas = [frozenset(regions)]
    areas += [
        frozenset(zone for zone in regions if regions[zone] == region) for region in sorted(set(regions.values()))
    ]
    areas += [frozenset([zone]) for zone in _distinct_zones(kinds)]
    tps = [tp for tp in sorted({kind.tp for kind in kinds.members}) if tp <= _LEAST_TP]
    classes: dict[frozenset[int], Link] = {}
    for count in range(len(names), 0, -1):
        for chosen, area, tp in product(combinations(names, count), areas, tps):
            members = frozenset(
                k
                for k, kind in enumerate(kinds.members)
                if kind.tp >= tp and rows[kind.row].accelerator in chosen and rows[kind.row].zone in area
            )
            if members and members not in classes:
                classes[members] = slowest_link(kinds, members)
    return [(link, members) for members, link in classes.items()]


def _distinct_zones(kinds: Kinds) -> list[str]:
    """Return the first of the zones of each region that offer the same for the same."""
    space = kinds.space
    seen: dict[object, str] = {}
    for zone in sorted({row.zone for row in space.candidates.rows}):
        there = sorted(
            (pool.offer.instance_type, pool.offer.market, pool.max_nodes, round(rate.expected, 6))
            for pool, rate in zip(space.pools, space.rates, strict=True)
            if pool.offer.zone == zone
        )
        seen.setdefault((space.scenario.catalog.region_of(zone), tuple(there)), zone)
    return sorted(seen.values())


def slowest_link(kinds: Kinds, members: frozenset[int], *, stages: int = 1) -> Link:
    """Return the slowest link between nodes of some kinds, over as many pairs as the least tp.

    Pipelines of so many stages stand on nodes together as far as they fit, and their rings share the network card.
    """
    space = kinds.space
    pairs = min(kinds.members[k].tp for k in members)
    pools = sorted({kinds.members[k].pool for k in members})
    flows = {pool: max(1, min(stages, space.pools[pool].devices // pairs)) for pool in pools}
    links = [
        space.link(a, b, same_node=False, pairs=pairs, flows=max(flows[a], flows[b])) for a in pools for b in pools
    ]
    message = space.scenario.engine.bucket_bytes / TYPICAL_PIPELINES
    return max(links, key=lambda link: link.transfer_s(message))


def ring_usd_per_byte(kinds: Kinds, members: frozenset[int]) -> float:
    """Return the egress of one byte of gradients over a ring through all zones of some kinds, there and back."""
    pools = {kinds.space.candidates.rows[kinds.members[k].row].zone: kinds.members[k].pool for k in sorted(members)}
    ring = [pools[zone] for zone in sorted(pools)]
    return 2.0 * sum(kinds.space.usd_per_byte(a, b) for a, b in zip(ring, ring[1:] + ring[:1], strict=True))
