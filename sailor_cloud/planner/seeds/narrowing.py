"""Parts of a large space that are likely to contain its best plan: few zones, and the relevant accelerators."""

from __future__ import annotations

from sailor_cloud.planner.bound.bounds import device_seconds
from sailor_cloud.planner.evaluate.similar_zones import families
from sailor_cloud.planner.space.apportioning import apportioned
from sailor_cloud.planner.space.restrictions import MOST_ROWS, part_of
from sailor_cloud.planner.space.space import Space


def narrowed(space: Space) -> tuple[Space, ...]:
    """Return the space, or parts of it with few rows and with divided quotas of the account."""
    return tuple(share for part in _few_rows(space) for share in apportioned(part))


def _zones(space: Space) -> tuple[Space, ...]:
    """Return the space over each zone alone, one of similar zones each, and over each of several regions.

    Links are fast in one zone, and faster in one region than between regions. So the best plans there are often the
    best of all, but other plans would displace them in a search of all zones together. Empty if there is only one zone.
    """
    zones = sorted({pool.offer.zone for pool in space.pools})
    if len(zones) == 1:
        return ()
    regions: dict[str, list[str]] = {}
    for zone in zones:
        regions.setdefault(space.scenario.catalog.region_of(zone), []).append(zone)
    several = [there for there in regions.values() if 1 < len(there) < len(zones)]
    names = {pool.accelerator.name for pool in space.pools}
    return tuple(part_of(space, names, there) for there in (*(family[:1] for family in families(space)), *several))


def _few_rows(space: Space) -> tuple[Space, ...]:
    """Return the space or, if it has many rows, parts with few of them: the fastest and the cheapest zones.

    A zone's speed is that of all its devices without idle time; its price is that of a sample at the lowest rate.
    """
    rows = sorted({pool.row for pool in space.pools})
    if len(rows) <= MOST_ROWS:
        return (*_zones(space), space)
    work = {name: float(seconds.sum()) for name, seconds in device_seconds(space).items()}
    limits = space.candidates.rows
    speed: dict[str, dict[str, float]] = {}
    for row in rows:
        found = speed.setdefault(limits[row].zone, {})
        found[limits[row].accelerator] = found.get(limits[row].accelerator, 0.0) + (
            limits[row].devices / work[limits[row].accelerator]
        )
    price: dict[str, float] = {}
    for pool, rate in zip(space.pools, space.rates, strict=True):
        usd = rate.expected / pool.devices * work[pool.accelerator.name]
        price[pool.offer.zone] = min(price.get(pool.offer.zone, usd), usd)
    fastest = sorted(speed, key=lambda zone: (-sum(speed[zone].values()), zone))
    cheapest = min(sorted(price), key=lambda zone: (price[zone], zone))
    region_of = space.scenario.catalog.region_of
    near = [zone for zone in fastest if region_of(zone) == region_of(fastest[0])][:2]
    wanted = dict.fromkeys((tuple(fastest[:1]), (cheapest,), tuple(near), tuple(fastest[:4])))
    parts = []
    for zones in wanted:
        total: dict[str, float] = {}
        for zone in zones:
            for name, each in speed[zone].items():
                total[name] = total.get(name, 0.0) + each
        names = sorted(total, key=lambda name: (-total[name], name))[: max(1, MOST_ROWS // len(zones))]
        parts.append(part_of(space, names, zones))
    return tuple(parts)
