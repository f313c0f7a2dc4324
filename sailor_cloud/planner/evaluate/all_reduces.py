"""Times the all-reduces of whole sets of pipelines; equal ones are timed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from sailor_cloud.network import Link
from sailor_cloud.planner.space.layouts import Layout, Slot
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import StageTable, between_zones, gradient_sync_s, hop_pairs, ring_flows, zone_sync_s

_Flows = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class _Sum:
    seconds: float
    usd: float


class LayerSum(NamedTuple):
    """One all-reduce. Members are pipelines and stages; `layers` are the first and the end, None for a tied weight."""

    members: tuple[tuple[int, int], ...]
    layers: tuple[int, int] | None
    nbytes: float
    seconds: float
    usd: float


class Hops(NamedTuple):
    """The distinct hops of a ring, in ring order.

    kinds: the two pools, whether both ends are one node, how many rings share the card, and how many pairs of devices
    send. usd_per_byte: for a byte that travels once around the ring. zones: the number of members in each; crosses:
    which hops leave a zone. Both are set only if all-reduces run zone by zone and some zone has several members.
    """

    members: int
    kinds: tuple[tuple[int, int, bool, int, int], ...]
    usd_per_byte: float
    zones: tuple[int, ...] = ()
    crosses: tuple[bool, ...] = ()


# Members by pipeline and stage, and the hops of their ring.
_Ring = tuple[tuple[tuple[int, int], ...], Hops | None]


@dataclass(slots=True)
class SyncTable:
    """All-reduces of one space, grouped as the simulator does: neighbouring layers with the same holders together."""

    space: Space
    _sums: dict[tuple[Hops, float], _Sum] = field(default_factory=dict)
    _rings: dict[tuple[Layout, tuple[tuple[int, ...], ...]], tuple[_Ring, ...]] = field(default_factory=dict)
    _plans: dict[tuple[Layout, tuple[tuple[int, ...], ...]], tuple[float, float]] = field(default_factory=dict)
    _of_plans: dict[tuple[Layout, tuple[tuple[int, ...], ...]], tuple[LayerSum, ...]] = field(default_factory=dict)
    _nbytes: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    _ranks: list[int] = field(init=False)
    _zones: list[str] = field(init=False)

    def __post_init__(self) -> None:
        offers = [pool.offer for pool in self.space.pools]
        region_of = self.space.scenario.catalog.region_of
        places = [(offer.provider, region_of(offer.zone), offer.zone, offer.accelerator.lower()) for offer in offers]
        order = {place: rank for rank, place in enumerate(sorted(set(places)))}
        self._ranks = [order[place] for place in places]
        self._zones = [offer.zone for offer in offers]

    def of_plan(self, layout: Layout, cuts: tuple[tuple[int, ...], ...]) -> tuple[float, float]:
        """Return the seconds until all all-reduces end, and the USD of egress, for one cut per pipeline.

        They run from the last layers to the first. Each waits until all of its members have finished earlier ones.
        """
        key = (layout, cuts)
        if key not in self._plans:
            through: dict[tuple[int, int], float] = {}
            usd = 0.0
            for each in self.sums(layout, cuts):
                end_s = max(through.get(member, 0.0) for member in each.members) + each.seconds
                through.update(dict.fromkeys(each.members, end_s))
                usd += each.usd
            self._plans[key] = max(through.values(), default=0.0), usd
        return self._plans[key]

    def sums(self, layout: Layout, cuts: tuple[tuple[int, ...], ...]) -> tuple[LayerSum, ...]:
        """Return the all-reduces over several stages in their order: the last layers first, a tied weight last."""
        key = (layout, cuts)
        if key not in self._of_plans:
            self._of_plans[key] = tuple(self._in_order(layout, cuts))
        return self._of_plans[key]

    def _in_order(self, layout: Layout, cuts: tuple[tuple[int, ...], ...]) -> Iterator[LayerSum]:
        spans = list(pairwise(sorted({layer for cut in set(cuts) for layer in cut})))[::-1]
        stages = {cut: [_stage_of(cut, first) for first, _ in spans] for cut in set(cuts)}
        rings = self.rings(layout, tuple(zip(*(stages[cut] for cut in cuts), strict=True)))
        for number, (members, hops) in enumerate(rings):
            if hops is None:
                continue
            layers = spans[number] if number < len(spans) else None
            nbytes = (
                self.tied_bytes(layout[0][0]) if layers is None else self._layers(layout[0][members[0][1]], *layers)
            )
            found = self._sum(hops, nbytes)
            yield LayerSum(members, layers, nbytes, found.seconds, found.usd)

    def rings(self, layout: Layout, holders: tuple[tuple[int, ...], ...]) -> tuple[_Ring, ...]:
        """Return the all-reduces of layers that the same stages hold, and last that of a tied weight.

        Members are pipelines and stages; a single member has no hops.
        """
        key = (layout, holders)
        if key not in self._rings:
            sums = [tuple(enumerate(stages)) for stages in holders]
            if self.tied_bytes(layout[0][0]):
                sums.append(tuple((p, s) for p, slots in enumerate(layout) for s in sorted({0, len(slots) - 1})))
            rings = [[(member, node_of(layout[member[0]][member[1]])) for member in members] for members in sums]
            self._rings[key] = tuple(
                (members, self.hops([layout[p][s] for p, s in members], flows) if len(members) > 1 else None)
                for members, flows in zip(sums, ring_flows(rings), strict=True)
            )
        return self._rings[key]

    def _sum(self, hops: Hops, nbytes: float) -> _Sum:
        key = (hops, nbytes)
        if key not in self._sums:
            engine, bucket = self.space.scenario.engine, self.space.bucket_bytes
            if hops.zones:
                seconds = float(self.zone_by_zone_s(hops, nbytes))
            else:
                message = min(nbytes, bucket) / hops.members
                slowest = max(self.links(hops), key=lambda link: link.transfer_s(message))
                seconds = float(gradient_sync_s(nbytes, hops.members, slowest, engine=engine, bucket_bytes=bucket))
            self._sums[key] = _Sum(seconds, 2.0 * (hops.members - 1) / hops.members * nbytes * hops.usd_per_byte)
        return self._sums[key]

    def _layers(self, slot: Slot, first: int, end: int) -> float:
        key = (slot.pool, slot.tp, first, end)
        if key not in self._nbytes:
            self._nbytes[key] = float(self.nbytes(slot, first, end))
        return self._nbytes[key]

    def hops(self, members: Sequence[Slot], flows: _Flows) -> Hops:
        """Return the hops of the ring of some members; `flows` share the cards of their nodes."""
        counts, tp = Counter(map(node_of, members)), min(slot.tp for slot in members)
        zones: Counter[str] = Counter()
        for node, count in counts.items():
            zones[self._zone(node)] += count
        zoned = self.space.scenario.engine.zone_by_zone and 1 < max(zones.values()) < len(members)
        # Members on one node are neighbours in the ring.
        ring = sorted(counts, key=self._ring_key)
        kinds: dict[tuple[int, int, bool, int, int], None] = {}
        usd = 0.0
        for src, dst in zip(ring, ring[1:] + ring[:1], strict=True):
            if counts[src] > 1:
                kinds[src[0], src[0], True, flows[src], tp] = None
            if src != dst:
                pairs, shared = hop_pairs(tp, src, dst, counts), max(flows[src], flows[dst])
                if zoned and self._zone(src) != self._zone(dst):
                    # Every member of a node sends across.
                    pairs, shared = tp, shared * max(counts[src], counts[dst])
                kinds[src[0], dst[0], False, shared, pairs] = None
                usd += self.space.usd_per_byte(src[0], dst[0])
        if len(zones) > 1 and self.space.scenario.engine.zone_by_zone:
            usd = self._zone_by_zone_usd((pool for pool, _ in counts), zones)
        if not zoned:
            return Hops(len(members), tuple(kinds), usd)
        crosses = tuple(self._zone((src,)) != self._zone((dst,)) for src, dst, *_ in kinds)
        return Hops(len(members), tuple(kinds), usd, tuple(zones.values()), crosses)

    def _zone(self, node: Sequence[int]) -> str:
        return self._zones[node[0]]

    def zone_by_zone_s(self, hops: Hops, nbytes: Any) -> Any:
        """Return the seconds of all-reduces of `nbytes` bytes that run zone by zone."""
        links = list(zip(self.links(hops), hops.crosses, strict=True))
        inside, across = ([link for link, crosses in links if crosses == out] for out in (False, True))
        return zone_sync_s(nbytes, hops.zones, inside, across, self.space.bucket_bytes)

    def _zone_by_zone_usd(self, pools: Iterable[int], members: Counter[str]) -> float:
        """Return the USD per byte and round of a ring if each zone sends its sum to every other zone."""
        there = {self._zones[pool]: pool for pool in pools}
        total = members.total()
        shares = between_zones(members)
        usd = sum(part * self.space.usd_per_byte(there[src], there[dst]) for (src, dst), part in shares.items())
        return usd * total / (2.0 * (total - 1))

    def links(self, hops: Hops) -> list[Link]:
        """Return the links of hops, in their order."""
        return [
            self.space.link(src, dst, same_node=same, pairs=pairs, flows=shared)
            for src, dst, same, shared, pairs in hops.kinds
        ]

    def _ring_key(self, node: tuple[int, int]) -> tuple[int, int, int]:
        """Order a ring as the simulator does: by provider, region, zone and node."""
        return (self._ranks[node[0]], *node)

    def nbytes(self, slot: Slot, first: Any, end: Any) -> Any:
        """Return the gradient bytes of layers [first, end) without those of a tied weight."""
        table = self._table(slot)
        ends = np.equal(first, 0) + 1.0 * np.equal(end, table.layers)
        return table.gradient_bytes(first, end) - self.tied_bytes(slot) * ends

    def tied_bytes(self, slot: Slot) -> float:
        """Return the gradient bytes of a tied weight, which has its own all-reduce."""
        table = self._table(slot)
        return float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter)

    def _table(self, slot: Slot) -> StageTable:
        return self.space.table(slot.pool, slot.tp, 1)


def node_of(slot: Slot) -> tuple[int, int]:
    """Return the identity of a slot's node."""
    return slot[:2]


def _stage_of(cut: tuple[int, ...], layer: int) -> int:
    """Return the stage that holds a layer."""
    return next(stage for stage, end in enumerate(cut[1:]) if layer < end)
