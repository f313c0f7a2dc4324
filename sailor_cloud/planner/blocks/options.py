"""How a unit may serve so many replicas: tp, stages per node and nodes, with what that brings and costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.network import Link
from sailor_cloud.planner.blocks.measures import Measures, unbeaten
from sailor_cloud.planner.blocks.units import Unit
from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.simulator import gradient_sync_s, preemptions_per_hour

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Longer pipelines than this are not looked at.
MAX_STAGES = 24
# How much larger the tp of the last stage may be than that of the others.
_HEAD = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """Blocks of a unit: each has `per_node` neighbouring stages of `replicas` pipelines on every node."""

    unit: Unit
    tp: int
    per_node: int
    replicas: int
    nodes_each: int
    blocks: int
    head_tp: int = 0

    @property
    def tps(self) -> tuple[tuple[int, ...], ...]:
        """The tp degrees of every block's stages; with `head_tp` the last stage has that one, for the model's head."""
        plain = ((self.tp,) * self.per_node,) * self.blocks
        if not self.head_tp:
            return plain
        room = self.unit.devices // self.replicas - self.head_tp
        return (*plain[:-1], (*plain[-1][: min(self.per_node - 1, room // self.tp)], self.head_tp))

    @property
    def stages(self) -> int:
        return sum(len(block) for block in self.tps)

    @property
    def over_zones(self) -> bool:
        """Whether the replicas of a block stand in several zones."""
        return len(self.unit.pools) > 1


@dataclass(frozen=True, slots=True)
class Offered(Sequence[Option]):
    """Options by the one that they are a part of, and their number of blocks."""

    largest: list[Option]
    numbers: Ints
    blocks: Ints

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Option: ...

    @overload
    def __getitem__(self, index: slice) -> list[Option]: ...

    def __getitem__(self, index: int | slice) -> Option | list[Option]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        largest: Option = self.largest[self.numbers[index]]
        return replace(largest, blocks=int(self.blocks[index]))


@dataclass
class Options:
    """The options of some units, by microbatch size and number of replicas; what was computed is kept."""

    space: Space
    units: list[Unit]
    _stages: dict[tuple[str, int, int, int, int], tuple[float, float, float, float]] = field(default_factory=dict)
    _cuts: dict[tuple[int, int, int, int, int], float] = field(default_factory=dict)
    _rings: dict[tuple[object, ...], float] = field(default_factory=dict)
    _gradients: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    _every: dict[int, list[Option]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        zones = sorted({pool.offer.zone for pool in self.space.pools})
        self.bits = {zone: 1 << number for number, zone in enumerate(zones)}
        self.lost = [preemptions_per_hour(pool.offer, self.space.scenario.catalog) for pool in self.space.pools]
        self.zones = {unit: self._zones(unit) for unit in self.units}
        self.ring_usd = {unit: self._ring_usd(unit) for unit in self.units}
        self.far = {unit.pools[0]: self._far(unit.pools[0]) for unit in self.units}

    def of(self, size: int, replicas: int) -> tuple[Offered, Measures] | None:
        """Return the options that no other one of the same rows equals or beats in every way; None if there is none."""
        if replicas not in self._every:
            self._every[replicas] = [option for unit in self.units for option in self._largest(unit, replicas)]
        largest = self._every[replicas]
        if not largest:
            return None
        numbers = np.repeat(np.arange(len(largest)), [option.blocks for option in largest])
        blocks = np.concatenate([np.arange(1, option.blocks + 1) for option in largest])
        measures = self._measures(largest, numbers, blocks, size, replicas)
        kept = unbeaten(measures)
        return Offered(largest, numbers[kept], blocks[kept]), measures[kept]

    def _zones(self, unit: Unit) -> int:
        return sum(self.bits[self.space.pools[pool].offer.zone] for pool in unit.pools)

    def _largest(self, unit: Unit, replicas: int) -> list[Option]:
        """Return the ways to serve so many replicas, each with as many blocks as there can be."""
        found = []
        deepest = min(MAX_STAGES, self.space.layers)
        for tp in self.space.tp_degrees[unit.pools[0]]:
            slots = unit.devices // tp
            for on_node in sorted({min(replicas, slots // each) for each in range(1, min(slots, deepest) + 1)}):
                nodes_each = -(-replicas // on_node)
                most = min(slots // on_node, deepest)
                for per_node in sorted({1, max(1, most // 2), most}):
                    blocks = unit.blocks(nodes_each, deepest // per_node)
                    if not blocks:
                        continue
                    plain = Option(
                        unit=unit,
                        tp=tp,
                        per_node=per_node,
                        replicas=on_node,
                        nodes_each=nodes_each,
                        blocks=blocks,
                    )
                    found.append(plain)
                    if per_node == most:
                        found += self._with_head(plain)
        return found

    def _with_head(self, plain: Option) -> list[Option]:
        """Return an option with a larger tp for its last stage, which may hold the head of the model."""
        degrees = self.space.tp_degrees[plain.unit.pools[0]]
        room = plain.unit.devices // plain.replicas
        return [replace(plain, head_tp=tp) for tp in degrees if plain.tp < tp <= min(room, _HEAD * plain.tp)]

    def _measures(self, largest: list[Option], numbers: Ints, blocks: Ints, size: int, replicas: int) -> Measures:
        """Return the measures of options with so many blocks each."""
        rows = np.array([self._measured(option, size, replicas) for option in largest], dtype=np.float64)
        first, more = rows[numbers].transpose(1, 2, 0)
        values = first + more * (blocks - 1)
        names = [part.name for part in fields(Measures)]
        found = dict(zip(names, values, strict=False))
        longest = names.index("longest_s")
        found["longest_s"] = np.where(blocks > 1, more[longest], first[longest])
        masks, zones = np.array([(option.unit.mask, self.zones[option.unit]) for option in largest]).T
        return Measures(**found, rows=masks[numbers], zones=zones[numbers])

    def _measured(self, option: Option, size: int, replicas: int) -> list[tuple[float, ...]]:
        """Return the measures, but for the bits, of an option's last block, and what every further block adds to them.

        Of `longest_s` the second one is that of several blocks.
        """
        pool, last = option.unit.pools[0], option.tps[-1]
        stages = option.per_node * min(option.blocks, 2)
        whole_s, layer_s, block_s, room = self._stage(pool, option.tp, size, stages, min(replicas, 2))
        ends = [self._stage(pool, tp, size, stages, min(replicas, 2)) for tp in last]
        most = max(option.per_node if option.blocks > 1 else 0, len(last))
        inside = self._cut_s(pool, pool, option.tp, size, 0) if most > 1 else 0.0
        out = self._cut_s(pool, pool, option.tp, size, option.replicas)
        far = max((self._cut_s(pool, other, option.tp, size, option.replicas) for other in self.far[pool]), default=0.0)
        nbytes, large, tied = self._bytes(option)
        # Short sums take longer per byte: those of a stage's share are asked for.
        share = 1.0 / max(2.0, option.per_node * min(option.blocks, 2.0))
        sum_s = self._ring_s(option, nbytes * share, replicas, flows=most) / share
        # Meanwhile all other stages of a node are summing, too.
        tied_s = self._ring_s(option, tied, 2 * replicas, flows=max(1, most - 1), outside=True) if tied else 0.0
        usd, lost = self.space.rates[pool].expected, self.lost[pool]
        pairs = [
            (len(last), option.per_node),
            (sum(1.0 / end[0] for end in ends), option.per_node / whole_s),
            (min(layer_s, *(end[1] for end in ends)), 0.0),
            (block_s, 0.0),
            (sum_s / min(whole_s, *(end[0] for end in ends)), 0.0),
            (self._ring_s(option, large, replicas, flows=most), 0.0),
            (self.ring_usd[option.unit] * nbytes * 2.0 * (replicas - 1) / replicas, 0.0),
            ((len(last) - 1) * inside, (option.per_node - 1) * inside + out),
            (inside, max(inside, out)),
            (out, 0.0),
            (far, 0.0),
            (sum(end[3] for end in ends), option.per_node * room),
            (tied_s, 0.0),
            (option.nodes_each * usd, option.nodes_each * usd),
            (option.nodes_each, option.nodes_each),
            (option.nodes_each * lost, option.nodes_each * lost),
            (option.tp, 0.0),
            (option.tp, 0.0),
        ]
        return list(zip(*pairs, strict=True))

    def _bytes(self, option: Option) -> tuple[float, float, float]:
        """Return the gradient bytes of all layers, of the largest one, and of a tied weight, which is summed apart."""
        if option.tp not in self._gradients:
            table = self.space.table(option.unit.pools[0], option.tp, 1, recompute=False)
            tied = float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter)
            each = np.diff(table.gradient_prefix_bytes)
            each[[0, -1]] -= tied
            self._gradients[option.tp] = float(each.sum()), float(each.max()), tied
        return self._gradients[option.tp]

    def _stage(self, pool: int, tp: int, size: int, stages: int, sharers: int) -> tuple[float, float, float, float]:
        """Return the compute seconds of the whole model, its longest layer and one in its middle, and how much fits.

        Activations are computed again where one of so many equal stages, the first, has no room to keep them; buffers
        are those of as many pipelines as `sharers`.
        """
        key = (self.space.pools[pool].accelerator.name, tp, size, stages, sharers)
        if key not in self._stages:
            seat, layers = Seat(pool, tp, 0), self.space.layers
            room = (
                float(np.isfinite(self.space.stages_s(seat, size, in_flight=1, replicas=sharers)[0, 1:]).sum()) / layers
            )
            table = self.space.table(pool, tp, size, recompute=False)
            end = -(-layers // stages)
            used = table.memory_bytes(0, end, in_flight=stages, replicas=sharers)
            if used > table.limit_bytes:
                table = self.space.table(pool, tp, size, recompute=True)
            ends = np.arange(1, layers + 1)
            each = np.asarray(table.compute_s(ends - 1, ends))
            self._stages[key] = (float(each.sum()), float(each.max()), float(each[layers // 2]), room)
        return self._stages[key]

    def _cut_s(self, src: int, dst: int, tp: int, size: int, flows: int) -> float:
        """Return the seconds of one microbatch's tensors over a cut; inside a node if no flow shares a card."""
        key = (src, dst, tp, size, flows)
        if key not in self._cuts:
            seats = Seat(src, tp, 0), Seat(dst, min(tp, self.space.pools[dst].devices), 1 if flows else 0)
            self._cuts[key] = float(self.space.boundary(*seats, size, flows=max(1, flows)).max())
        return self._cuts[key]

    def _far(self, pool: int) -> list[int]:
        """Return the first pool of every other zone."""
        found: dict[str, int] = {}
        for index, other in enumerate(self.space.pools):
            if other.offer.zone != self.space.pools[pool].offer.zone:
                found.setdefault(other.offer.zone, index)
        return list(found.values())

    def _ring_s(self, option: Option, nbytes: float, holders: int, *, flows: int, outside: bool = False) -> float:
        """Return the seconds of a gradient sum; `outside`: between nodes even where its block has only one."""
        if holders < 2:
            return 0.0
        pools = option.unit.pools
        inside = option.nodes_each == 1 and not outside
        key = (pools, inside, option.tp, flows, nbytes, holders)
        if key not in self._rings:
            bucket = self.space.scenario.execution.bucket_bytes
            message = min(nbytes, bucket) / holders
            link = max(self._links(option, inside, flows), key=lambda link: link.transfer_s(message))
            self._rings[key] = float(gradient_sync_s(nbytes, holders, link, bucket_bytes=bucket))
        return self._rings[key]

    def _links(self, option: Option, inside: bool, flows: int) -> list[Link]:
        pools = option.unit.pools
        if inside:
            return [self.space.link(pools[0], pools[0], same_node=True, pairs=option.tp)]
        return [
            self.space.link(a, b, same_node=False, pairs=option.tp, flows=flows)
            for a, b in zip(pools, pools[1:] + pools[:1], strict=True)
        ]

    def _ring_usd(self, unit: Unit) -> float:
        """Return the price of one byte over a ring through the zones of a unit."""
        pools = unit.pools
        return sum(self.space.usd_per_byte(a, b) for a, b in zip(pools, pools[1:] + pools[:1], strict=True))
