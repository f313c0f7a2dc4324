"""What one pipeline can do in a given time: a dynamic program over layers, stages and devices.

A box holds microbatch sizes from `least` to `most`. Stages hold whole layers and fit into memory with their
microbatches in flight. The replay satisfies every inequality used here; docs/planner.md states them with symbols.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from sailor_cloud.model.plan import Recompute
from sailor_cloud.network import Link
from sailor_cloud.planner.bound.placements import Placement
from sailor_cloud.planner.space.space import Seat, Space, Stages
from sailor_cloud.simulator import Sharding, StageTable, boundary_pairs

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Whole = NDArray[np.int64]

# The seconds of something impossible, more than anything takes. Products with samples stay finite in single precision.
_NEVER = 1e18
# The relative error of single precision in a sum over all stages.
_SINGLE = 1e-5
_ROUNDED = 1e-9
# Numbers of microbatches for which the path through the stages is kept; with fewer in flight, stages need less memory.
_HELD = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)


class Count(NamedTuple):
    """The least and the largest number of pipelines in the plans of a branch."""

    least: int
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """Stages on `tp` devices of one accelerator; `units` is the price of these devices.

    `pools`: one of each instance type with enough devices. `bucket_s`: the fastest possible all-reduce, as in `Rings`;
    `tied_bucket_s`: that of a tied weight, which each pipeline may have on two stages.
    """

    tp: int
    units: int
    pools: tuple[int, ...]
    bucket_s: tuple[float, float]
    tied_bucket_s: tuple[float, float]


class _Spans(NamedTuple):
    """Stages of a kind with a number of microbatches in flight, shape [layers, layers]: first layer, and width less
    one.

    `way_s`: both passes of the smallest microbatch. `sample_s`: the least per sample. `longest_s`: both passes of the
    largest microbatch. `tail_s`: the least time between the ends of passes and step. `gather_s`: by how much the
    all-gather of new weights is longer than a forward pass.
    """

    way_s: Singles
    sample_s: Singles
    longest_s: Singles
    tail_s: Singles
    gather_s: Singles


class _Possible(NamedTuple):
    """The stages that a pipeline may contain, by their first layer: kind, width less one, and the layer after it.

    `after`: the least units that all layers from each one on need. `spare`: what to add to the units above that least,
    from the first layer on, for those from the end of the stage on.
    """

    first: Whole
    kind: Whole
    width: Whole
    end: Whole
    spare: Whole
    after: Whole

    def of(self, which: Whole) -> _Possible:
        first, kind, width, end, spare = (each[which] for each in self[:-1])
        return _Possible(first, kind, width, end, spare, self.after)


class _Sized(NamedTuple):
    """All stages of a kind at one microbatch size; `backward_s` by recomputation, as `fit`.

    `first_s`: the least seconds of its last backward pass before a stage has a bucket of gradients.
    """

    fit: Stages
    backward_s: Floats
    first_s: Floats


def kinds_of(placement: Placement, count: Count, units: Mapping[str, int], *, crossing: bool = False) -> list[Kind]:
    """Return the kinds of stages of a placement's pipelines on accelerators with a price: `units` of a device.

    `crossing`: of those that leave their home.
    """
    space = placement.space
    types: dict[tuple[str, str, str], int] = {}
    for index, pool in enumerate(space.pools):
        types.setdefault((pool.accelerator.name, pool.offer.instance_type, pool.offer.zone), index)
    here = set(range(len(space.pools)) if crossing else placement.pools)
    found: dict[tuple[str, int], list[int]] = {}
    for (name, *_), index in types.items():
        for tp in space.tp_degrees[index]:
            if index in here and name in units:
                found.setdefault((name, tp), []).append(index)
    away = placement.samples[1] if placement.homes else count.most
    rings = Rings(space, tuple(types.values()), count, away)
    # All rings of a branch have the same links.
    tied = replace(rings, count=Count(count.least, 2 * count.most), away=2 * away, _known={})
    return [
        Kind(
            tp=tp,
            units=units[name] * tp,
            pools=tuple(pools),
            bucket_s=rings.bucket_s(pools, tp, placement.rings_cross),
            tied_bucket_s=tied.bucket_s(pools, tp, placement.rings_cross),
        )
        for (name, tp), pools in sorted(found.items())
    ]


@dataclass(frozen=True, slots=True)
class Rings:
    """The least seconds of all-reduces, by the number of pipelines: of a bucket with hardly any bytes and a full one.

    Buckets in between take no less than on the straight line between both. `pools`: one for each type and zone. `away`:
    the most members outside the zone with most of them. A ring either has a link from a member's node to another node,
    or lies on a single node. The link carries at most as many pairs of devices as both nodes may have members.
    """

    space: Space
    pools: tuple[int, ...]
    count: Count
    away: int
    _known: dict[int, Floats] = field(default_factory=dict)
    _found: set[tuple[Link, bool]] = field(default_factory=set)

    def bucket_s(self, here: Sequence[int], tp: int, cross: bool | None) -> tuple[float, float]:
        """Return the least for rings with a member on `tp` devices of one of the pools.

        `cross`: whether the rings leave its zone.
        """
        if self.count.least < 2 or (self.space.scenario.job.training.sync_every or 1) > 1:
            return 0.0, 0.0
        found = [self._in_zone(pool, tp) for pool in here] if cross is not True else []
        if cross is not False:
            found += [self._between_zones(pool, tp) for pool in here]
        start_s, full_s = _least(found)
        return float(start_s), float(full_s)

    def _in_zone(self, pool: int, tp: int) -> Floats:
        """Return the least for rings in one zone."""
        here, members = self.space.pools[pool], self.count.least
        found = _later(self._over_nodes(pool, tp, members), self._of_any(members))
        if tp + members - 1 <= here.devices:
            found = np.minimum(found, self._in_node(pool, tp, members))
        return found

    def _between_zones(self, pool: int, tp: int) -> Floats:
        """Return the least for rings over several zones, which first reduce inside each zone.

        In the member's zone, either all members share one node and its card, or nodes reduce over a link. The slowest
        link of any zone determines the reductions inside zones.
        """
        space, here = self.space, self.space.pools[pool]
        near = [other for other in self.pools if space.pools[other].offer.zone == here.offer.zone]
        zones = len({space.pools[other].offer.zone for other in self.pools})
        most, least = min(here.devices - tp + 1, self.count.most - 1), self.count.least
        # Some zone has at most `away` members, and some zone all but these.
        largest = max(-(-least // zones), least - self.away)
        found = []
        for members in range(1, most + 1):
            if self.away < members < least - self.away:
                continue
            others = -(-(least - members) // (zones - 1))
            if members < least - self.away:
                others = max(others, least - self.away)
            inside = _later(self._in_node(pool, tp, members), self._of_any(others))
            found.append(inside + self._across([pool], tp, members) / min(members, self.away))
        if self.count.most > 2:
            inside = _later(self._over_nodes(pool, tp, max(2, largest)), self._of_any(max(2, largest)))
            found.append(inside + max(2.0 / self.count.most, 1.0 / self.away) * self._across(near, tp, 1))
        return _least(found)

    def _of_any(self, members: int) -> Floats:
        """Return the least for `members` members inside any one zone; infinite if every zone has too few devices.

        The accelerators with the fastest cards may be too few for a ring, whose slowest link then determines its speed.
        """
        if members not in self._known:
            zones: dict[str, dict[str, list[int]]] = {}
            for pool in self.pools:
                there = self.space.pools[pool]
                zones.setdefault(there.offer.zone, {}).setdefault(there.accelerator.name, []).append(pool)
            self._known[members] = _least([self._of_zone(zone, pools, members) for zone, pools in zones.items()])
        return self._known[members]

    def _of_zone(self, zone: str, pools: Mapping[str, Sequence[int]], members: int) -> Floats:
        """Return the least for a number of members in a zone; `pools` by accelerator."""
        space, left = self.space, members
        if members <= max(space.pools[pool].devices for those in pools.values() for pool in those):
            return np.zeros(2)
        each = [
            (_least([self._over_nodes(pool, space.pools[pool].devices, members) for pool in those]), name)
            for name, those in pools.items()
        ]
        for seconds, name in sorted(each, key=lambda one: (one[0][1], one[1])):
            rows = space.candidates.rows
            left -= sum(row.devices for row in rows if (row.zone, row.accelerator) == (zone, name))
            if left <= 0:
                return seconds
        return np.full(2, np.inf)

    def _in_node(self, pool: int, tp: int, members: int) -> Floats:
        """Return the least for a number of members on one node."""
        if members < 2:
            return np.zeros(2)
        nbytes = self._message(members)
        # Of members with fewer devices, only so many pairs send; on some nodes these are faster.
        links = [self.space.link(pool, pool, same_node=True, pairs=pairs) for pairs in range(1, tp + 1)]
        return (
            2.0 * (members - 1) * _least([np.array([each.latency_s(nbytes), _least_s(each, nbytes)]) for each in links])
        )

    def _over_nodes(self, pool: int, tp: int, members: int) -> Floats:
        """Return the least for at least `members` members on several nodes of one zone."""
        here, space, nbytes = self.space.pools[pool], self.space, self._message(members)
        most = min(here.devices, tp * self.count.most)
        links = self._remembered("in a zone", pool, most)
        if not links:
            links |= {
                space.link(src, dst, same_node=False, pairs=pairs)
                for other in self.pools
                if space.pools[other].offer.zone == here.offer.zone
                for src, dst in ((pool, other), (other, pool))
                for pairs in range(1, min(most, space.pools[other].devices) + 1)
            }
        return 2.0 * (members - 1) * self._slowest(min(_least_s(link, nbytes) for link in links), members)

    def _across(self, pools: Sequence[int], tp: int, flows: int) -> Floats:
        """Return the least over a link from a pool of one zone to another zone; `flows` share its card."""
        space, zone, members = self.space, self.space.pools[pools[0]].offer.zone, self.count.least
        # With many zones, the first links alone may take longer than a proof should.
        space.known.deadline.check()
        links = self._remembered("across", tuple(pools), tp, flows)
        if not links:
            links |= {
                space.link(pool, other, same_node=False, pairs=pairs, flows=flows)
                for pool, other in product(pools, self.pools)
                if space.pools[other].offer.zone != zone
                for pairs in range(1, min(tp, space.pools[pool].devices, space.pools[other].devices) + 1)
            }
        nbytes = self._message(members)
        return members * self._slowest(min(_least_s(link, nbytes) for link in links), members)

    def _remembered(self, *key: object) -> set[Link]:
        """Return a set of links that all branches share, empty at first."""
        every = self.space.remembered.setdefault("links of rings", {})
        found: set[Link] = every.setdefault((self.pools, *key), set())
        return found

    def _message(self, members: int) -> float:
        return self.space.bucket_bytes / members

    def _slowest(self, full_s: float, members: int) -> Floats:
        """Return the least for a message over the slowest link of a ring, on which a full one takes `full_s` or more.

        That may be any link between nodes, since others may share its card, or a link inside a node that is so slow.
        """
        nbytes = self._message(members)
        starts = [
            link.latency_s(nbytes) for link, inside in self._links() if not inside or link.transfer_s(nbytes) >= full_s
        ]
        return np.array([min(starts), full_s])

    def _links(self) -> set[tuple[Link, bool]]:
        """Return all possible links, and whether they are inside a node."""
        if not self._found:
            space = self.space
            for one, two in product(self.pools, self.pools):
                space.known.deadline.check()
                for pairs in range(1, min(space.pools[one].devices, space.pools[two].devices) + 1):
                    self._found.add((space.link(one, two, same_node=False, pairs=pairs), False))
                    if 2 * pairs <= space.pools[one].devices:
                        self._found.add((space.link(one, one, same_node=True, pairs=pairs), True))
        return self._found


def _least(found: Sequence[Floats]) -> Floats:
    return np.asarray(np.min(found, axis=0))


def _later(one: Floats, two: Floats) -> Floats:
    """Return what takes longer in a full bucket; both are lower bounds."""
    return one if one[1] >= two[1] else two


def _least_s(link: Link, most: float) -> float:
    """Return `most` times the least seconds per byte of messages of at most `most` bytes."""
    # The rate is a parabola over the logarithm of the size; if it falls again, its maximum bounds all of it.
    if link.a < 0.0 and -link.b / (2.0 * link.a) < np.log2(most / 1e6):
        return most / link.max_bytes_per_s
    return link.transfer_s(most)


@dataclass(slots=True)
class Sizes:
    """The tables of all kinds of stages of a branch, by microbatch size.

    `crossing`: of pipelines with at least one cut between zones.
    """

    space: Space
    count: Count
    kinds: list[Kind]
    crossing: bool = False
    _sized: dict[tuple[int, int], _Sized] = field(default_factory=dict)
    _cuts: dict[tuple[int, int, bool], Singles] = field(default_factory=dict)
    _links: dict[tuple[int, bool], set[Link]] = field(default_factory=dict)
    _sums: list[tuple[Floats, Floats, Floats, Floats]] = field(default_factory=list)

    @property
    def replicas(self) -> int:
        """The number of pipelines at which stages need the least memory."""
        return self.count.most if self.space.zero_stage else self.count.least

    def table(self, kind: int, size: int, again: Recompute = Recompute.NONE) -> StageTable:
        return self.space.table(self.kinds[kind].pools[0], self.kinds[kind].tp, size, recompute=again)

    def sized(self, kind: int, size: int) -> _Sized:
        if (kind, size) not in self._sized:
            first, end, some = _ranges(self.space.layers)
            backward = [
                np.where(some, table.backward_s(first, end) + table.handing_s(first, end), 0.0)
                for table in (self.table(kind, size, again) for again in self.space.kinds)
            ]
            seat = Seat(self.kinds[kind].pools[0], self.kinds[kind].tp, 0)
            fit = self.space.stages(seat, size, self.replicas)
            self._sized[kind, size] = _Sized(fit, np.stack(backward), self._first_bucket_s(kind, size))
        return self._sized[kind, size]

    def cut_s(self, kind: int, size: int, *, crossing: bool = False) -> Singles:
        """Return the least seconds of both tensors of a microbatch over a cut after such a stage, before each layer.

        Both tensors go to the fastest possible neighbour, at the rate of the faster one. If `crossing`, the neighbour
        is in another zone. Shape [2 * layers + 2]; 0 beyond the last layer.
        """
        key = (kind, size, crossing)
        if key not in self._cuts:
            nbytes = self.table(kind, 1).boundary_bytes * size
            if (kind, crossing) not in self._links:
                self._links[kind, crossing] = self._links_of(kind, crossing=crossing)
            ways = [link.transfer_s(nbytes) for link in self._links[kind, crossing]]
            seconds = 2.0 * (np.min(ways, axis=0) + self.space.scenario.engine.message_s)
            self._cuts[key] = np.pad(seconds, (0, len(seconds))).astype(np.float32)
        return self._cuts[key]

    def _links_of(self, kind: int, *, crossing: bool) -> set[Link]:
        """Return the links to and from all possible neighbours, or only those between zones."""
        here, space = self.kinds[kind], self.space
        found = set()
        for other in self.kinds:
            pairs = boundary_pairs(here.tp, other.tp)
            for one, two in product(here.pools, other.pools):
                if crossing and space.pools[one].offer.zone == space.pools[two].offer.zone:
                    continue
                for src, dst in ((one, two), (two, one)):
                    link = space.link(src, dst, same_node=False, pairs=pairs)
                    found.add(space.scenario.stage_link(link, same_node=False))
                if one == two and here.tp + other.tp <= space.pools[one].devices:
                    found.add(space.link(one, one, same_node=True, pairs=pairs))
        return found

    def sums(self, kind: int) -> tuple[Floats, Floats, Floats, Floats]:
        """Return the seconds of a kind's all-reduces, of their last buckets, of the gather and of the step.

        One value for each stage.
        """
        if not self._sums:
            tables = [self.table(each, 1) for each in range(len(self.kinds))]
            # Any member may determine a group's bytes, so the least over all kinds counts.
            layers = np.min([np.diff(table.gradient_prefix_bytes) for table in tables], axis=0)
            tied = [table.tied_parameters * table.tp / 2.0 / table.sync_every for table in tables]
            # Both ends of the model hold a tied weight, which is reduced once and apart.
            apart = max(each * table.sharding.total for each, table in zip(tied, tables, strict=True))
            layers[[0, -1]] = np.maximum(0.0, layers[[0, -1]] - apart)
            least = min(each * table.tied_sharding.total for each, table in zip(tied, tables, strict=True))
            self._sums = [self._exchanged(each, layers, least) for each in range(len(self.kinds))]
        return self._sums[kind]

    def _exchanged(self, kind: int, layers: Floats, tied: float) -> tuple[Floats, Floats, Floats, Floats]:
        first, end, some = _ranges(self.space.layers)
        table, engine, here = self.table(kind, 1), self.space.scenario.engine, self.kinds[kind]
        prefix = np.concatenate([[0.0], np.cumsum(layers)])
        plain = self._buckets_s(np.where(some, prefix[end] - prefix[first], 0.0), here.bucket_s)
        shared = self._buckets_s(
            np.where(some & ((first == 0) | (end == self.space.layers)), tied, 0.0), here.tied_bucket_s
        )
        share, shared_share = table.sharding, table.tied_sharding
        last = self._last_bucket_s(layers, share, here.bucket_s)
        last[0] = max(last[0], self._last_bucket_s(np.array([tied]), shared_share, here.tied_bucket_s)[0])
        update = np.where(some, table.update_s(first, end, shards=self.count.most), 0.0) + engine.idle_s
        return (
            plain * share.summed_share + shared * shared_share.summed_share,
            np.where(some, np.append(last, 0.0)[first], 0.0),
            plain * share.gathered_share + shared * shared_share.gathered_share,
            update,
        )

    def _buckets_s(self, nbytes: Floats, bucket_s: tuple[float, float]) -> Floats:
        """Return the least seconds of all-reduces of so many bytes."""
        buckets, (start, full) = nbytes / self.space.bucket_bytes, bucket_s
        return full * buckets + start * (np.ceil(buckets - _ROUNDED) - buckets)

    def _last_bucket_s(self, nbytes: Floats, share: Sharding, bucket_s: tuple[float, float]) -> Floats:
        """Return the least seconds of the last bucket of at least so many bytes."""
        # Bytes of gradients per byte that a ring counts.
        factor = 2.0 * share.gradient / share.total
        return np.minimum(nbytes / self.space.bucket_bytes, 1.0 / factor) * bucket_s[1] * share.summed_share

    def _first_bucket_s(self, kind: int, size: int) -> Floats:
        table, (first, end, some) = self.table(kind, size), _ranges(self.space.layers)
        share = table.sharding
        each = [np.diff(self.table(number, 1).gradient_prefix_bytes) for number in range(len(self.kinds))]
        sent = np.concatenate([[0.0], np.cumsum(np.max(each, axis=0))]) * (2.0 * share.gradient / share.total)
        part = np.minimum(1.0, self.space.bucket_bytes / np.maximum(sent[end] - sent[first], 1.0))
        seconds = np.where(some, part * table.backward_s(first, end), np.inf)
        # The least over all groups of layers at the end of a stage.
        least = np.minimum.accumulate(seconds[::-1], axis=0)[::-1]
        return np.where(some, least, 0.0)


def _ranges(layers: int) -> tuple[Whole, Whole, NDArray[np.bool_]]:
    """Return first layers and ends, shape [layers + 1, layers + 1], and which of them are stages."""
    first, end = np.indices((layers + 1, layers + 1))
    return first, end, first < end


def _of(seconds: Floats, which: Whole) -> Floats:
    """Return the seconds of each stage with its recomputation."""
    return np.asarray(np.take_along_axis(seconds, which[None], axis=0)[0])


@dataclass(slots=True)
class Box:
    """Pipelines of a branch with microbatches of `least` to `most` samples."""

    sizes: Sizes
    least: int
    most: int
    _spans: dict[tuple[int, int, int], _Spans | None] = field(default_factory=dict)
    _stacks: dict[tuple[tuple[int, int, int], ...], _Spans] = field(default_factory=dict)
    # By kind: the numbers of microbatches of the smallest and of the largest size that stages can hold.
    _levels: list[tuple[list[float], list[float]]] = field(default_factory=list)
    _rests: dict[int, list[list[Singles]]] = field(default_factory=dict)
    # The seconds of cuts as in `_cuts`, shape [kinds, 2 * layers + 2].
    _every_cut: list[Singles] = field(default_factory=list)
    _halves: tuple[Box, Box] | None = None
    _forward_share: float = 0.5
    _first_tail_s: float = 0.0

    def __post_init__(self) -> None:
        some, tails = _ranges(self.layers)[2], [_NEVER]
        for kind in range(len(self.sizes.kinds)):
            for size in {self.least, self.most}:
                each = self.sizes.sized(kind, size)
                for all_s, back_s in zip(each.fit.compute_s, each.backward_s, strict=True):
                    share = float((1.0 - back_s[some] / all_s[some]).min())
                    self._forward_share = min(self._forward_share, share)
            low, high = (np.unique(self.sizes.sized(kind, size).fit.most).tolist() for size in (self.least, self.most))
            self._levels.append((low, high))
            spans = self._span(kind, 1, 1)
            if spans is not None:
                tails.append(float(np.where(spans.way_s[0] < _NEVER, spans.tail_s[0], _NEVER).min()))
        self._first_tail_s = min(tails)

    @property
    def layers(self) -> int:
        return self.sizes.space.layers

    def halves(self) -> tuple[Box, Box]:
        if self._halves is None:
            middle = (self.least + self.most) // 2
            self._halves = Box(self.sizes, self.least, middle), Box(self.sizes, middle + 1, self.most)
        return self._halves

    def unit_s(self) -> float:
        """Return the least price of a sample: seconds of a device, times the device's price."""
        spans = [(kind.units, self._span(number, 0, 0)) for number, kind in enumerate(self.sizes.kinds)]
        return min((units * float(each.sample_s[0, -1]) for units, each in spans if each is not None), default=np.inf)

    def _span(self, kind: int, held: int, most_held: int) -> _Spans | None:
        """Return the stages that hold `held` to `most_held` microbatches; None if none fits.

        With `held` 0, memory excludes no stage.
        """
        key = self._level(kind, held, most_held)
        if key not in self._spans:
            self._spans[key] = self._spans_of(kind, held, most_held)
        return self._spans[key]

    def _level(self, kind: int, held: int, most_held: int) -> tuple[int, int, int]:
        """Return what is equal for all numbers of microbatches for which the same stages of a kind fit."""
        low, high = self._levels[kind]
        return kind, bisect_left(low, held), bisect_left(high, most_held)

    def _spans_of(self, kind: int, held: int, most_held: int) -> _Spans | None:
        low, high = (self.sizes.sized(kind, size) for size in (self.least, self.most))
        kept = low.fit.most >= held
        fits = kept.any(axis=0) & _ranges(self.layers)[2]
        if not fits.any():
            return None
        least = kept.argmax(axis=0)
        shortest, each = (_of(those.fit.compute_s, least) for those in (low, high))
        # The longest passes of the largest microbatch; if nothing fits for certain, everything is recomputed.
        surely = high.fit.most >= most_held
        surely[-1] = True
        longest, backward = (_of(seconds, surely.argmax(axis=0)) for seconds in (high.fit.compute_s, high.backward_s))
        sums, last, gather, update = self.sizes.sums(kind)
        engine = self.sizes.space.scenario.engine
        if engine.overlaps_sync(self.sizes.space.zero_stage):
            sums = np.maximum(0.0, np.maximum(sums + low.first_s - backward, last))
        gather = gather + backward - longest if engine.overlap_gather else np.zeros_like(gather)
        by_width = ((shortest, _NEVER), (each / self.most, _NEVER), (longest, 0.0), (sums + update, 0.0), (gather, 0.0))
        first, width = np.indices((self.layers, self.layers))
        end = np.minimum(first + width + 1, self.layers)
        there = fits[first, end] & (first + width < self.layers)
        return _Spans(*(np.where(there, all_s[first, end], none).astype(np.float32) for all_s, none in by_width))

    def _held(self, stages: int, samples: int) -> tuple[int, int]:
        """Return the least and the largest number of microbatches that the first of the last `stages` stages holds."""
        return min(stages, -(-samples // self.most)), min(stages, samples // self.least)

    def _over_cut(self, behind: Sequence[Singles], cuts: Sequence[Singles], better: np.ufunc) -> list[Singles]:
        """Return the seconds of the stages behind a cut, with the cut.

        If pipelines cross zones, the second array is that of stages with a crossing cut: the `better` of a crossing cut
        further behind and of this one. `cuts`: the seconds of a cut, then of a crossing one.
        """
        found = [each + cuts[0] for each in behind]
        if self.sizes.crossing:
            found[1] = better(found[1], behind[0] + cuts[1])
        return found

    def _cuts(self, kind: int) -> list[Singles]:
        """Return the seconds of a cut before each layer and, if pipelines cross zones, of a crossing one."""
        crossings = (False, True) if self.sizes.crossing else (False,)
        return [self.sizes.cut_s(kind, self.least, crossing=each) for each in crossings]

    def _rest(self, samples: int, units: int) -> list[list[Singles]]:
        """Return the least seconds of a microbatch through the last stages and back, by their number.

        Each has one array, or two if pipelines cross zones: without and with a crossing cut. Their shape is
        [2 * layers + 2, units + 1]: the first layer, and the units that the stages may take.
        """
        microbatches = -(-samples // self.most)
        held = max(count for count in _HELD if count <= microbatches)
        rest = self._rests.setdefault(held, [])
        known = rest[0][0].shape[1] if rest else 0
        if known <= units:
            # Larger tables also serve smaller requests.
            units = max(units, 8 + units * 5 // 4)
            smallest = min(kind.units for kind in self.sizes.kinds)
            most = min(self.layers, units // smallest)
            none = np.empty((2 * self.layers + 2, 0), dtype=np.float32)
            rest += [[none] * (1 + self.sizes.crossing) for _ in range(most + 1 - len(rest))]
            for number, level in enumerate(rest):
                rest[number] = [
                    np.pad(each, ((0, 0), (0, units + 1 - each.shape[1])), constant_values=_NEVER) for each in level
                ]
            rest[0][0][self.layers] = 0.0
            cuts = [[cut[1:, None] for cut in self._cuts(kind)] for kind in range(len(self.sizes.kinds))]
            for stages in range(1, most + 1):
                many = self.layers - stages + 1
                for number, kind in enumerate(self.sizes.kinds):
                    # The stages behind take at least as many units as so many of the smallest.
                    begin = max(known, kind.units + (stages - 1) * smallest)
                    spans = self._span(number, min(stages, held), min(stages, held)) if begin <= units else None
                    if spans is None:
                        continue
                    self.sizes.space.known.deadline.check()
                    every = [each[1:, begin - kind.units : units + 1 - kind.units] for each in rest[stages - 1]]
                    if stages > 1:
                        every = self._over_cut(every, cuts[number], np.minimum)
                    for later, there in zip(every, rest[stages], strict=True):
                        way = (spans.way_s[:many, :, None] + _windows(later, many, self.layers)).min(axis=1)
                        np.minimum(there[:many, begin:], way, out=there[:many, begin:])
        return rest

    def least_units(self, samples: int, seconds: float, most: int) -> int:
        """Return the fewest units with which a pipeline processes `samples` in time; `most` + 1 if it needs more.

        The program runs from the last stage to the first. It finds the latest time at which the first microbatch may
        leave the previous stage.
        """
        limit = float(np.float32(seconds * (1.0 + _SINGLE)))
        stages = self._possible(samples, limit, most)
        left, best = most + 1 - int(stages.after[0]), most + 1
        if left < 1 or not stages.first.size:
            return most + 1
        rest = self._rest(samples, most)
        if not self._every_cut:
            every = zip(*(self._cuts(kind) for kind in range(len(self.sizes.kinds))), strict=True)
            self._every_cut = [np.stack(each) for each in every]
        cuts = [each[stages.kind, stages.end, None] for each in self._every_cut]
        # The columns of a state are its units above the least that its layers need, between as many empty columns.
        latest = [np.full((self.layers + 1, 3 * left + 1), -_NEVER, np.float32) for _ in range(1 + self.sizes.crossing)]
        latest[0][-1, left] = _NEVER
        pad, alive = left, np.arange(self.layers + 1) == self.layers
        begins, spare = pad + np.minimum(stages.spare, pad), stages.spare + stages.after[stages.end]
        for number in range(1, self.layers + 1):
            # Thousands of devices take seconds.
            self.sizes.space.known.deadline.check()
            which = np.flatnonzero(alive[stages.end])
            here = stages.of(which)
            if not left or not here.first.size:
                break
            held, most_held = self._held(number, samples)
            way, sample, longest, tail, gather = (
                each[here.kind, here.first, here.width, None] for each in self._stacked(held, most_held)
            )
            free = limit - samples * sample
            units = np.clip(spare[which, None] + np.arange(left), 0, most)
            behinds = [each.take(here.end[:, None] * each.shape[1] + units) for each in rest[number - 1]]
            afters = [sliding_window_view(each, left, axis=1)[here.end, begins[which]] for each in latest]
            if number > 1:
                behinds = self._over_cut(behinds, [cut[which] for cut in cuts], np.minimum)
                afters = self._over_cut(afters, [-cut[which] for cut in cuts], np.maximum)
            starts = np.flatnonzero(np.diff(here.first, prepend=-1))
            alive = np.zeros(self.layers + 1, dtype=bool)
            # Add the wait for the first microbatch and the return of the last one; with few microbatches, only the
            # longer of both.
            both = 2.0 if samples > number * self.most else 1.0
            for index, (behind, after) in enumerate(zip(behinds, afters, strict=True)):
                idle = np.maximum(both * behind - (both / 2.0 * (most_held - 1)) * longest, 0.0)
                late = (free - tail - idle) / self._forward_share
                np.minimum(late, free - self._first_tail_s - idle, out=late)
                np.minimum(late, after - way, out=late)
                late[(idle > free - tail - np.maximum(gather, 0.0)) | (late < 0.0)] = -_NEVER
                latest[index] = np.full_like(latest[index], -_NEVER)
                latest[index][here.first[starts], pad : pad + left] = np.maximum.reduceat(late, starts)
                alive |= (latest[index] >= 0.0).any(axis=1)
            done = np.flatnonzero(latest[-1][0, pad : pad + left] >= 0.0)
            if done.size:
                # With more stages, only fewer units are of interest.
                left = int(done[0])
                best = int(stages.after[0]) + left
                for each in latest:
                    each[:, pad + left :] = -_NEVER
        return best

    def _possible(self, samples: int, seconds: float, most: int) -> _Possible:
        """Return the stages that a pipeline of `most` units may contain.

        A stage occupies all of its units for the whole schedule, even with little work. The other stages must then do
        the rest.
        """
        units = np.array([kind.units for kind in self.sizes.kinds])
        busy = samples * self._stacked(1, 1).sample_s
        single = (units[:, None] * busy[:, :, 0]).min(axis=0).astype(np.float64)
        sums = np.cumsum(single[::-1]) / seconds * (1.0 - _SINGLE)
        after = np.ceil(np.minimum(np.append(sums[::-1], 0.0), most + 1)).astype(np.int64)
        end = np.minimum(np.add.outer(np.arange(self.layers), np.arange(1, self.layers + 1)), self.layers)
        # The units above the least that the layers from the end of a stage on need, less those from its first one on.
        spare = after[:-1, None] - after[end] - units[:, None, None]
        there = (busy <= seconds) & (spare > int(after[0]) - most - 1)
        first, kind, width = np.nonzero(there.transpose(1, 0, 2))
        return _Possible(first, kind, width, end[first, width], spare[kind, first, width], after)

    def _stacked(self, held: int, most_held: int) -> _Spans:
        """Return the stages of all kinds together, shape [kinds, layers, layers]."""
        kinds = range(len(self.sizes.kinds))
        key = tuple(self._level(number, held, most_held) for number in kinds)
        if key not in self._stacks:
            none = np.zeros((self.layers, self.layers), dtype=np.float32)
            blank = _Spans(none + np.float32(_NEVER), none + np.float32(_NEVER), none, none, none)
            every = [self._span(number, held, most_held) or blank for number in kinds]
            self._stacks[key] = _Spans(*(np.stack(each) for each in zip(*every, strict=True)))
        return self._stacks[key]

    def floor_units(self, samples: int, seconds: float, most: int) -> int:
        """Return a lower bound on the units of a pipeline with `samples`; much faster than `least_units`.

        It weights the time of each stage by its units: its passes, and the path of a microbatch to it and back.
        """
        limit = seconds * (1.0 + _SINGLE)
        stages = self._possible(samples, limit, most)
        left = most + 1 - int(stages.after[0])
        if left < 1:
            return most + 1
        spans, units = self._stacked(1, 1), np.array([kind.units for kind in self.sizes.kinds])
        work, way = (
            each[stages.kind, stages.first, stages.width].astype(float) for each in (spans.sample_s, spans.way_s)
        )
        work *= units[stages.kind] * samples
        work += way * (stages.spare + stages.after[stages.end])
        spent = np.full((self.layers + 1, 3 * left + 1), np.inf)
        spent[-1, left] = 0.0
        behind = sliding_window_view(spent, left, axis=1)
        begins = np.searchsorted(stages.first, np.arange(self.layers + 1))
        for first in np.unique(stages.first)[::-1]:
            at = slice(begins[first], begins[first + 1])
            passes = way[at, None] * np.arange(left)
            passes += work[at, None]
            passes += behind[stages.end[at], left + np.minimum(stages.spare[at], left)]
            spent[first, left : 2 * left] = passes.min(axis=0)
        found = np.arange(left) + int(stages.after[0])
        done = np.flatnonzero(spent[0, left : 2 * left] <= (limit - self._first_tail_s) * found)
        return int(found[done[0]]) if done.size else most + 1


def _windows(rows: Singles, many: int, width: int) -> Singles:
    """Return, for each of the first `many` rows, the rows from there on, shape [many, width, columns]."""
    return sliding_window_view(rows, width, axis=0)[:many].swapaxes(1, 2)


def boxes(sizes: Sizes, most: int) -> Iterator[Box]:
    """Yield boxes that cover all microbatch sizes up to `most`; each holds twice as many sizes as the one before."""
    least = 1
    while least <= most:
        yield Box(sizes, least, min(most, 2 * least - 1))
        least *= 2
