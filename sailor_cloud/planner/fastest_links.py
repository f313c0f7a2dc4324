"""The fastest that tensors and all-reduces can travel between the nodes of a space, whichever nodes those are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sailor_cloud.network import Link, Place
from sailor_cloud.planner.space import Space
from sailor_cloud.units import GB, MB

# With more kinds of nodes than this, links between all pairs of them take too long to look at; cards alone are then.
_MOST_KINDS = 20
# How even curves are taken to be that are not looked at; those that come with the program are so to 1 %.
_NOT_LOOKED_AT = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """The best that connections of at most so many pairs of devices reach; `links` lead from one accelerator's nodes.

    Bytes per second stand for all pairs together.
    """

    links: tuple[Link, ...]

    def message_rate(self, nbytes: float) -> float:
        """Return bytes per second that no message of at most so many bytes exceeds."""
        return max((_message_rate(link, nbytes) for link in self.links), default=math.inf)


@dataclass(frozen=True, slots=True, kw_only=True)
class FastestLinks:
    """What leaves a node takes at least.

    ways: by accelerator and tp degree. cards: bytes per second of all that goes over one node's card in a direction, by
    accelerator. late_s: before the first byte arrives. evenness: the least share of the rate of shorter messages that
    longer ones reach, among those of sums. Without ways, a transfer may take all that a card carries.
    """

    ways: dict[tuple[str, int], Way]
    cards: dict[str, float]
    late_s: float
    evenness: float = 1.0

    @classmethod
    def of(cls, space: Space) -> FastestLinks:
        known: FastestLinks | None = space.known.searches.get(_key(space))
        if known is None:
            known = space.known.searches[_key(space)] = _fastest(space)
        return known

    def sum_rate(self, accelerator: str, tp: int, members: int, bucket_bytes: float) -> float:
        """Return bytes per second that no step of a ring over so many members, some of them elsewhere, exceeds.

        A ring's slowest link is that of its longest messages; shorter ones may be quicker on it by what curves are
        uneven.
        """
        way = self.ways.get((accelerator, tp))
        if way is None:
            return self.cards.get(accelerator, math.inf) if not self.ways else math.inf
        return way.message_rate(bucket_bytes / members) / self.evenness

    def tensor_rate(self, nbytes: float) -> float:
        """Return bytes per second that no tensor of at most so many bytes exceeds from node to node."""
        if not self.ways:
            return max(self.cards.values(), default=math.inf)
        links = dict.fromkeys(link for way in self.ways.values() for link in way.links)
        return max((_highest_rate(link, nbytes) for link in links), default=math.inf)


def _key(space: Space) -> str:
    return f"fastest links {space.numbers}"


def _fastest(space: Space) -> FastestLinks:
    kinds = _kinds(space)
    found: dict[tuple[str, int], dict[Link, None]] = {}
    cards: dict[str, float] = {}
    late, rails = math.inf, space.scenario.engine.rails
    if len(kinds) > _MOST_KINDS:
        for kind in kinds:
            name = space.pools[kind].accelerator.name
            cards[name] = max(cards.get(name, 0.0), _card_limit(space, kind))
        return FastestLinks(ways={}, cards=cards, late_s=0.0, evenness=_NOT_LOOKED_AT)
    for src in kinds:
        name = space.pools[src].accelerator.name
        degrees, limit = space.tp_degrees[src], _card_limit(space, src)
        for dst in kinds:
            most = min(space.pools[src].devices, space.pools[dst].devices)
            for pairs in range(1, most + 1) if rails else [tp for tp in degrees if tp <= most]:
                link = space.link(src, dst, same_node=False, pairs=pairs)
                for tp in degrees:
                    if rails or tp >= pairs:
                        found.setdefault((name, tp), {})[link] = None
                rate = limit if math.isfinite(limit) else _card_rate(space, src, dst, pairs)
                cards[name] = max(cards.get(name, 0.0), rate)
                late = min(late, _late_s(link))
    ways = {key: Way(links=_best(tuple(links))) for key, links in found.items()}
    longest = space.scenario.engine.bucket_bytes / 2.0
    every = [link for way in ways.values() for link in way.links] + _inside(space, kinds)
    return FastestLinks(
        ways=ways,
        cards=cards,
        late_s=late,
        evenness=min((_evenness(link, longest) for link in every), default=1.0),
    )


def _inside(space: Space, kinds: Sequence[int]) -> list[Link]:
    """Return the links between stages of one node."""
    found: dict[tuple[str, str, int], Link] = {}
    for pool in kinds:
        offer = space.pools[pool].offer
        for tp in space.tp_degrees[pool]:
            key = (offer.instance_type, offer.accelerator, tp)
            if 2 * tp <= space.pools[pool].devices and key not in found:
                found[key] = space.link(pool, pool, same_node=True, pairs=tp)
    return list(found.values())


def _evenness(link: Link, longest: float) -> float:
    """Return the least share of the highest rate of shorter messages that a message of at most `longest` reaches."""
    low, high = (math.log2(min(max(end, link.min_bytes), link.max_bytes) / MB) for end in (link.min_bytes, longest))
    turn = low if link.a == 0.0 else min(max(-link.b / (2.0 * link.a), low), high)
    rates = [min(((link.a * x + link.b) * x + link.c) * GB, link.max_bytes_per_s) for x in (low, turn, high)]
    return min(1.0, rates[1] / rates[0], rates[2] / max(rates[0], rates[1]))


def _kinds(space: Space) -> list[int]:
    """Return one pool of each sort of node that links tell apart: not by market, nor by processors and memory."""
    found: dict[tuple[object, ...], int] = {}
    for index, pool in enumerate(space.pools):
        offer = pool.offer
        limit = _card_limit(space, index)
        what = offer.instance_type if math.isinf(limit) else pool.devices
        found.setdefault((offer.zone, offer.accelerator, what, limit), index)
    return list(found.values())


def _card_limit(space: Space, pool: int) -> float:
    """Return bytes per second of a pool's network card, infinite where not known."""
    offer = space.pools[pool].offer
    place = Place(zone=offer.zone, node=None, accelerator=offer.accelerator, instance_type=offer.instance_type)
    instance = space.scenario.network.instance_of(place)
    return math.inf if instance is None else instance.baseline_bytes_per_s


def _card_rate(space: Space, src: int, dst: int, pairs: int) -> float:
    """Return bytes per second of all flows over a card without a limit: with one for each device, they fill it."""
    flows = max(2, space.pools[src].devices)
    link = space.link(src, dst, same_node=False, pairs=pairs, flows=flows)
    return max(flows * link.max_bytes_per_s, space.link(src, dst, same_node=False, pairs=pairs).max_bytes_per_s)


def _highest_rate(link: Link, most_bytes: float = math.inf) -> float:
    """Return the curve's highest rate for messages of at most so many bytes: at an end, or at its peak between."""
    low, high = (math.log2(min(end, max(most_bytes, link.min_bytes)) / MB) for end in (link.min_bytes, link.max_bytes))
    ends = [low, high]
    if link.a < 0.0:
        ends.append(min(max(-link.b / (2.0 * link.a), low), high))
    return min(max(((link.a * x + link.b) * x + link.c) * GB for x in ends), link.max_bytes_per_s)


def _late_s(link: Link) -> float:
    """Return the seconds that every transfer takes beyond its bytes at the curve's rate."""
    return link.transfer_s(link.min_bytes) - link.min_bytes / _highest_rate(link, link.min_bytes)


def _message_rate(link: Link, nbytes: float) -> float:
    if nbytes <= link.min_bytes:
        return nbytes / link.transfer_s(nbytes)
    return 1.0 / (_late_s(link) / nbytes + 1.0 / _highest_rate(link, nbytes))


def _best(links: Sequence[Link]) -> tuple[Link, ...]:
    """Return the links that differ in what matters here, in a fixed order."""
    shapes = {(k.a, k.b, k.c, k.min_bytes, k.max_bytes, k.max_bytes_per_s, k.rtt_s): k for k in links}
    return tuple(shapes[shape] for shape in sorted(shapes))
