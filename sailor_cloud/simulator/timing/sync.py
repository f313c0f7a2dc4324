"""Gradient synchronisation: the devices with the same layers, the duration of their all-reduces, and traffic.

Neighbouring layers on the same stages are reduced together. The ring visits regions, zones and nodes one after the
other, so that it crosses each border once in each direction. Its slowest link determines the time. Our engine first
reduces gradients inside each zone, so that a byte leaves a zone once, however many pipelines are there. Of the links
between zones, those of the ring count. Left out: stages on one node also share its network card if they reduce at the
same time.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sailor_cloud.network import Link, Place
from sailor_cloud.simulator.layout import Layout, Seat
from sailor_cloud.simulator.sharding import Sharding
from sailor_cloud.simulator.timing.card import hop_pairs, ring_flows
from sailor_cloud.simulator.timing.closed_form import gradient_sync_s, zone_sync_s

Traffic = dict[tuple[str, str], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncGroup:
    """Layers [first_layer, end_layer) and the stages, one per pipeline, that have them.

    `nbytes` are the gradients of all tensor-parallel shards together, `seconds` the time of their all-reduce. `tied`
    marks a tied weight, which the first and the last stage of each pipeline have. With ZeRO both include all exchanges.
    Of `seconds`, `sum_s` are for the sum, `gather_s` for weights gathered after the step, and `forward_s` and
    `backward_s` for the exchange of each such pass.
    """

    first_layer: int
    end_layer: int
    members: tuple[Seat, ...]
    nbytes: float
    seconds: float
    tied: bool = False
    gather_s: float = 0.0

    @property
    def sharding(self) -> Sharding:
        table = self.members[0].table
        return table.tied_sharding if self.tied else table.sharding

    @property
    def sum_s(self) -> float:
        return self.seconds * self.sharding.summed_share

    @property
    def forward_s(self) -> float:
        return self.seconds * self.sharding.forward / self.sharding.total

    @property
    def backward_s(self) -> float:
        return self.seconds * self.sharding.backward / self.sharding.total

    def bucket(self, bucket_bytes: float) -> float:
        """Return the largest share of the group's gradients in one message of a sum."""
        return min(1.0, bucket_bytes / (self.nbytes * 2.0 * self.sharding.gradient / self.sharding.total))


def sync_groups(layout: Layout) -> tuple[SyncGroup, ...]:
    """Return the groups in the order in which gradients become ready: last layers first."""
    cuts = sorted({seat.stage.first_layer for seat in layout.seats} | {layout.scenario.decoder.layers})
    groups = [
        _group(first, end, tuple(_holder(seats, first) for seats in layout.pipelines))
        for first, end in itertools.pairwise(cuts)
    ]
    tied = _tied(layout)
    return _timed(layout, [*reversed(_merged(groups)), *([tied] if tied else [])])


def ring_order(members: Iterable[Seat], layout: Layout) -> list[Seat]:
    """Return members sorted so that those of one node, zone and region are together."""
    catalog = layout.scenario.catalog
    return sorted(
        members,
        key=lambda seat: (
            seat.hardware.provider,
            catalog.region_of(seat.place.zone),
            seat.place.zone,
            seat.place.node or "",
            seat.pipeline,
            seat.index,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather:
    """A gather of updated weights; members are pipelines and stages, `bucket` the share of a message.

    `needed_s`: for each member, the times in its next iteration at which it first uses the weights of the first message
    and of the last one.
    """

    members: Sequence[tuple[int, int]]
    seconds: float
    bucket: float
    needed_s: Sequence[tuple[float, float]]


def gather_delay_s(gathers: Iterable[Gather], updated: Mapping[tuple[int, int], float]) -> dict[tuple[int, int], float]:
    """Return the delay of each stage by gathers that run, in their order, during the next forward pass.

    updated: the end of each stage's optimizer step. The next iteration starts after the last.
    """
    start, through, held = max(updated.values()), dict(updated), dict.fromkeys(updated, 0.0)
    for gather in gathers:
        begun = max(through[member] for member in gather.members)
        first, last = begun + gather.bucket * gather.seconds, begun + gather.seconds
        through.update(dict.fromkeys(gather.members, last))
        for member, (first_use, last_use) in zip(gather.members, gather.needed_s, strict=True):
            held[member] = max(held[member], first - start - first_use, last - start - last_use)
    return held


def makespan_s(groups: Iterable[SyncGroup]) -> float:
    """Return the seconds of all sums if every stage starts them together; a stage takes part in one at a time."""
    through: dict[tuple[int, int], float] = {}
    for group in groups:
        keys = [seat.device for seat in group.members]
        done = max(through.get(key, 0.0) for key in keys) + group.sum_s + group.gather_s
        through.update(dict.fromkeys(keys, done))
    return max(through.values(), default=0.0)


def traffic(groups: Iterable[SyncGroup], layout: Layout) -> Traffic:
    """Return the bytes per iteration that sums carry from zone to zone; some are sent with every microbatch."""
    crossing: Traffic = {}
    for group in (part for whole in groups for part in _of_islands(layout, whole)):
        count = len(group.members)
        if count < 2:
            continue
        ring = ring_order(group.members, layout)
        sharding = group.sharding
        rounds = max(layout.plan.pipelines[seat.pipeline].microbatches for seat in group.members)
        nbytes = group.nbytes * (1.0 + sharding.passes_share * (rounds - 1))
        if layout.scenario.engine.zone_by_zone:
            to_owners = sharding.gradient / (sharding.forward + sharding.backward) if sharding.passes_share else 0.5
            shares = between_zones(Counter(seat.place.zone for seat in ring), to_owners)
        else:
            hops = [(src.place.zone, dst.place.zone) for src, dst in zip(ring, ring[1:] + ring[:1], strict=True)]
            shares = {hop: 2.0 * (count - 1) / count * hops.count(hop) for hop in set(hops) if hop[0] != hop[1]}
        for key, part in shares.items():
            crossing[key] = crossing.get(key, 0.0) + part * nbytes
    return crossing


def between_zones(members: Mapping[str, int], to_owners: float = 0.5) -> dict[tuple[str, str], float]:
    """Return the traffic of an all-reduce between each two zones, relative to its bytes; `members`: ranks in each zone.

    Every member owns an equal part: other zones send their contributions to it and receive its result. `to_owners`: the
    share of the bytes that goes to owners. Under ZeRO-1 in half precision, and under ZeRO-2 with several microbatches,
    less than half returns; then the mean of both directions is used.
    """
    count = sum(members.values())
    return {
        (src, dst): 2.0 * (to_owners * members[dst] + (1.0 - to_owners) * members[src]) / count
        for src, dst in itertools.permutations(members, 2)
    }


def _holder(seats: tuple[Seat, ...], layer: int) -> Seat:
    return next(seat for seat in seats if seat.stage.first_layer <= layer < seat.stage.end_layer)


def _merged(groups: list[SyncGroup]) -> list[SyncGroup]:
    merged: list[SyncGroup] = []
    for group in groups:
        if merged and merged[-1].members == group.members:
            before = merged.pop()
            group = replace(group, first_layer=before.first_layer, nbytes=before.nbytes + group.nbytes)
        merged.append(group)
    return merged


def _group(first: int, end: int, members: tuple[Seat, ...]) -> SyncGroup:
    table = members[0].table
    tied = _tied_bytes(table.tied_parameters, table.tp, table.gradient_bytes_per_parameter)
    # A tied weight is summed in a separate group.
    nbytes = float(table.gradient_bytes(first, end)) - tied * ((first == 0) + (end == table.layers))
    return SyncGroup(first_layer=first, end_layer=end, members=members, nbytes=nbytes, seconds=0.0)


def _tied(layout: Layout) -> SyncGroup | None:
    table = layout.pipelines[0][0].table
    if not table.tied_parameters:
        return None
    members: list[Seat] = []
    for seats in layout.pipelines:
        members += [seats[0]] if len(seats) == 1 else [seats[0], seats[-1]]
    nbytes = _tied_bytes(table.tied_parameters, table.tp, table.tied_sharding.total / 2.0 / table.sync_every)
    return SyncGroup(
        first_layer=0, end_layer=table.layers, members=tuple(members), nbytes=nbytes, seconds=0.0, tied=True
    )


def _tied_bytes(parameters: int, tp: int, bytes_per_parameter: float) -> float:
    return float(parameters * tp * bytes_per_parameter)


def _timed(layout: Layout, groups: list[SyncGroup]) -> tuple[SyncGroup, ...]:
    """Return the groups with their seconds, with shared network cards."""
    rings = [[(seat.device, seat.place.node) for seat in group.members] for group in groups]
    return tuple(_with_seconds(layout, group, flows) for group, flows in zip(groups, ring_flows(rings), strict=True))


def islands(layout: Layout) -> list[set[int]]:
    """Return the groups of pipelines that sum gradients at every step: one, or with `sync_every` several.

    Pipelines that share a zone are in the same group.
    """
    if layout.seats[0].table.sync_every == 1:
        return [set(range(len(layout.pipelines)))]
    found: list[tuple[set[str], set[int]]] = []
    for number, seats in enumerate(layout.pipelines):
        zones = {seat.place.zone for seat in seats}
        near = [each for each in found if each[0] & zones]
        found = [each for each in found if not each[0] & zones]
        found.append((zones.union(*(each for each, _ in near)), {number}.union(*(each for _, each in near))))
    return [pipelines for _, pipelines in found]


def _of_islands(layout: Layout, group: SyncGroup) -> list[SyncGroup]:
    """Return each island's sum of a group at every step, and a step's share of the sum over all islands.

    Islands meet in fp32, whatever is exchanged in a step. A step's time for that is a share of one long sum's.
    """
    apart, table = islands(layout), group.members[0].table
    if len(apart) == 1:
        return [group]
    parts = [
        replace(group, members=tuple(seat for seat in group.members if seat.pipeline in island)) for island in apart
    ]
    met = group.nbytes * 2.0 * max(4.0, group.sharding.gradient) / group.sharding.total / table.sync_every
    return [*(part for part in parts if part.members), replace(group, nbytes=met)]


def _with_seconds(layout: Layout, group: SyncGroup, flows: Mapping[str | None, int]) -> SyncGroup:
    group = replace(group, nbytes=group.nbytes * group.members[0].table.sync_every)
    *inside, met = _of_islands(layout, group)
    every = group.members[0].table.sync_every if inside else 1
    seconds = _seconds(layout, replace(met, nbytes=met.nbytes * every), flows) / every
    seconds += max((_seconds(layout, part, flows) for part in inside), default=0.0)
    share = group.sharding.gathered_share
    gather_s = seconds * share
    if layout.scenario.engine.gather_in_node and share:
        at = group.members[0].place
        near = [seat for seat in group.members if seat.place.node == at.node]
        link = layout.links.between(at, at, pairs=min(seat.tp for seat in near))
        gather_s = float(gradient_sync_s(group.nbytes * share, len(near), link, engine=layout.scenario.engine))
    return replace(group, seconds=seconds, gather_s=gather_s)


def _seconds(layout: Layout, group: SyncGroup, flows: Mapping[str | None, int]) -> float:
    count = len(group.members)
    if count < 2:
        return 0.0
    zones = Counter(seat.place.zone for seat in group.members)
    if layout.scenario.engine.zone_by_zone and 1 < max(zones.values()) < count:
        return _zone_by_zone_s(layout, group, flows, tuple(zones.values()))
    slowest, engine = _slowest_link(layout, group, flows), layout.scenario.engine
    return float(gradient_sync_s(group.nbytes, count, slowest, engine=engine, bucket_bytes=_bucket_bytes(layout)))


def _zone_by_zone_s(layout: Layout, group: SyncGroup, flows: Mapping[str | None, int], zones: tuple[int, ...]) -> float:
    inside, across, nodes = [], [], Counter(seat.place.node for seat in group.members)
    tp = min(seat.tp for seat in group.members)
    for src, dst, pairs in ring_hops(group, layout):
        shared = max(flows[src.place.node], flows[dst.place.node])
        if src.place.zone == dst.place.zone:
            inside.append(layout.links.between(src.place, dst.place, pairs=pairs, flows=shared))
        else:
            # Every member of a node sends across.
            shared *= max(nodes[src.place.node], nodes[dst.place.node])
            across.append(layout.links.between(src.place, dst.place, pairs=tp, flows=shared))
    return float(zone_sync_s(group.nbytes, zones, inside, across, _bucket_bytes(layout)))


def _bucket_bytes(layout: Layout) -> float:
    return layout.scenario.bucket_bytes(layout.plan.zero_stage)


def _slowest_link(layout: Layout, group: SyncGroup, flows: Mapping[str | None, int]) -> Link:
    """Return the link of the ring over which its messages take longest; `flows` by node."""
    hops: dict[tuple[Place, Place], Link] = {}
    for src, dst, pairs in ring_hops(group, layout):
        if (src.place, dst.place) not in hops:
            shared = max(flows[src.place.node], flows[dst.place.node])
            hops[src.place, dst.place] = layout.links.between(src.place, dst.place, pairs=pairs, flows=shared)
    message = min(group.nbytes, _bucket_bytes(layout)) / len(group.members)
    return max(hops.values(), key=lambda link: link.transfer_s(message))


def ring_hops(group: SyncGroup, layout: Layout) -> Iterator[tuple[Seat, Seat, int]]:
    """Yield the hops of a group's ring: source, destination, and number of device pairs."""
    tp, ring = min(seat.tp for seat in group.members), ring_order(group.members, layout)
    members = Counter(seat.place.node for seat in ring)
    for src, dst in zip(ring, ring[1:] + ring[:1], strict=True):
        yield src, dst, hop_pairs(tp, src.place.node, dst.place.node, members)
