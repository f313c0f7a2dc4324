"""Parts of a large space that are likely to contain its best plan: few zones, and the relevant accelerators."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from sailor_cloud.planner.bound.bounds import device_seconds
from sailor_cloud.planner.evaluate.similar_zones import families
from sailor_cloud.planner.space.apportioning import apportioned
from sailor_cloud.planner.space.restrictions import MOST_ROWS, part_of
from sailor_cloud.planner.space.space import Space

# A large space is searched in this many of its fastest regions, and in the cheapest one; and over this many zones of
# any region together.
_REGIONS, _ZONES = 2, 4


def narrowed(space: Space) -> tuple[Space, ...]:
    """Return the space, or parts of it with few rows and with divided quotas of the account."""
    return tuple(share for part in _few_rows(space) for share in apportioned(part))


def _few_rows(space: Space) -> tuple[Space, ...]:
    rows = {pool.row for pool in space.pools}
    if len(rows) <= MOST_ROWS:
        return (*_zones(space), space)
    return tuple(part_of(space, names, zones) for zones, names in dict.fromkeys(_large(space)))


def _zones(space: Space) -> tuple[Space, ...]:
    """Return the space over each zone alone, one of similar zones each, and over each of several regions.

    Links are fast in one zone, and faster in one region than between regions. So the best plans there are often the
    best of all, but other plans would displace them in a search of all zones together. Empty if there is only one zone.
    """
    regions = _regions(space, sorted({pool.offer.zone for pool in space.pools}))
    zones = sum(map(len, regions))
    if zones == 1:
        return ()
    several = [there for there in regions if 1 < len(there) < zones]
    names = {pool.accelerator.name for pool in space.pools}
    return tuple(part_of(space, names, there) for there in (*(family[:1] for family in families(space)), *several))


def _regions(space: Space, zones: Sequence[str]) -> list[list[str]]:
    """Return zones by region, in their order."""
    regions: dict[str, list[str]] = defaultdict(list)
    for zone in zones:
        regions[space.scenario.catalog.region_of(zone)].append(zone)
    return list(regions.values())


def _large(space: Space) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield zones and accelerators with few rows: of the fastest regions, the cheapest one, and the fastest zones.

    A zone's speed is that of all its devices without idle time; its price is that of a sample at the lowest rate.
    """
    work = {name: float(seconds.sum()) for name, seconds in device_seconds(space).items()}
    speed: dict[str, dict[str, float]] = defaultdict(dict)
    for row in {pool.row for pool in space.pools}:
        limit = space.candidates.rows[row]
        speed[limit.zone][limit.accelerator] = limit.devices / work[limit.accelerator]
    price: dict[str, float] = {}
    for pool, rate in zip(space.pools, space.rates, strict=True):
        usd = rate.expected / pool.devices * work[pool.accelerator.name]
        price[pool.offer.zone] = min(price.get(pool.offer.zone, usd), usd)

    def with_names(zones: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        total: dict[str, float] = defaultdict(float)
        for zone in zones:
            for name, each in speed[zone].items():
                total[name] += each
        names = sorted(total, key=lambda name: (-total[name], name))
        return tuple(zones), tuple(names[: max(1, MOST_ROWS // len(zones))])

    of_zone = {zone: sum(names.values()) for zone, names in speed.items()}
    fastest = sorted(of_zone, key=lambda zone: (-of_zone[zone], zone))
    cheapest = min(sorted(price), key=price.__getitem__)
    regions = sorted(_regions(space, fastest), key=lambda there: -sum(map(of_zone.__getitem__, there)))
    for there in (*regions[:_REGIONS], *(there for there in regions if cheapest in there)):
        for most in range(1, _ZONES + 1):
            yield with_names(there[:most])
    yield with_names([cheapest])
    yield with_names(fastest[:_ZONES])
