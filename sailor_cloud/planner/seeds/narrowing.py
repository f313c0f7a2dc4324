"""Parts of a large space that are likely to contain its best plan: few zones, and the relevant accelerators."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from sailor_cloud.planner.bound.bounds import device_seconds
from sailor_cloud.planner.space.apportioning import apportioned
from sailor_cloud.planner.space.restrictions import MOST_ROWS, part_of
from sailor_cloud.planner.space.space import Space

# A space of several zones is searched around the fastest zone of this many regions, and around the cheapest zone; with
# so many zones together.
_REGIONS, _ZONES = 2, (1, 2, 3, 4)


def narrowed(space: Space) -> tuple[Space, ...]:
    """Return the space, or parts of it with few rows and with divided quotas of the account."""
    zones = _Zones(space)
    wanted: dict[frozenset[int], Space] = {}
    for there in zones.likely():
        part = zones.part(there)
        wanted.setdefault(frozenset(part.numbers), part)
    return tuple(share for part in wanted.values() for share in apportioned(part))


def likely_zones(space: Space) -> Iterator[Sequence[str]]:
    """Yield sets of zones that are likely to have the best plan together."""
    return _Zones(space).likely()


class _Zones:
    """The zones of a space.

    A zone's speed is that of all its devices without idle time; its price is that of a sample at the lowest rate.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        work = {name: float(seconds.sum()) for name, seconds in device_seconds(space).items()}
        # By zone and accelerator; several entries of a job may name the same ones.
        self._speed: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        self._rows: dict[str, Counter[str]] = defaultdict(Counter)
        for row in sorted({pool.row for pool in space.pools}):
            limit = space.candidates.rows[row]
            self._speed[limit.zone][limit.accelerator] += limit.devices / work[limit.accelerator]
            self._rows[limit.zone][limit.accelerator] += 1
        self._price: dict[str, float] = {}
        for pool, rate in zip(space.pools, space.rates, strict=True):
            usd = rate.expected / pool.devices * work[pool.accelerator.name]
            self._price[pool.offer.zone] = min(self._price.get(pool.offer.zone, usd), usd)
        self._fastest = sorted(self._speed, key=lambda zone: (-sum(self._speed[zone].values()), zone))

    def likely(self) -> Iterator[Sequence[str]]:
        """Yield zones that are likely to have the best plan together.

        Links are fast in one zone, and faster to near zones than to others. So the best plans there are often the best
        of all, but other plans would displace them in a search of all zones together. If there are few rows, each zone
        is searched alone, and then all zones together.
        """
        few = sum(rows.total() for rows in self._rows.values()) <= MOST_ROWS
        if few:
            yield from ([zone] for zone in sorted(self._speed))
        if len(self._fastest) > 1:
            for first in self._firsts():
                near = self._near(first)
                yield from (near[:most] for most in _ZONES if most > 1 or not few)
        yield self._fastest if few else self._fastest[: max(_ZONES)]

    def part(self, zones: Sequence[str]) -> Space:
        """Return the space over some zones with the fastest accelerators, as many as there are few rows of."""
        total: dict[str, float] = defaultdict(float)
        rows: Counter[str] = Counter()
        for zone in zones:
            rows += self._rows[zone]
            for name, speed in self._speed[zone].items():
                total[name] += speed
        names: list[str] = []
        for name in sorted(total, key=lambda name: (-total[name], name)):
            if not names or sum(rows[each] for each in (*names, name)) <= MOST_ROWS:
                names.append(name)
        whole = len(names) == len(rows) and len(zones) == len(self._speed)
        return self.space if whole else part_of(self.space, names, zones)

    def _firsts(self) -> Iterable[str]:
        """Return the fastest zone of each of the fastest regions, and the cheapest zone."""
        regions: dict[str, list[str]] = defaultdict(list)
        for zone in self._fastest:
            regions[self.space.scenario.catalog.region_of(zone)].append(zone)
        speed = {there[0]: sum(sum(self._speed[zone].values()) for zone in there) for there in regions.values()}
        cheapest = min(sorted(self._price), key=self._price.__getitem__)
        return dict.fromkeys([*sorted(speed, key=lambda zone: -speed[zone])[:_REGIONS], cheapest])

    def _near(self, first: str) -> list[str]:
        """Return a zone, then the others: those with the fastest links to it first, and the fastest of these."""
        largest: dict[str, dict[int, int]] = defaultdict(dict)
        for number, pool in sorted(enumerate(self.space.pools), key=lambda one: one[1].devices):
            largest[pool.offer.zone][pool.row] = number

        def bytes_per_s(zone: str) -> float:
            pairs = product(largest[first].values(), largest[zone].values())
            links = (self.space.link(src, dst, same_node=False, pairs=1) for src, dst in pairs)
            return max(link.bandwidth_bytes_per_s for link in links)

        speed = {zone: bytes_per_s(zone) for zone in self._fastest if zone != first}
        return [first, *sorted(speed, key=lambda zone: (-speed[zone], self._fastest.index(zone)))]
