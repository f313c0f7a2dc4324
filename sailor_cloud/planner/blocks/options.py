"""How a unit may serve so many replicas: tp, stages per node and nodes, with what that brings and costs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.network import Link
from sailor_cloud.planner.blocks.looked_up import LookedUp, last_and_more
from sailor_cloud.planner.blocks.measures import NAMES, Measures, joined, unbeaten
from sailor_cloud.planner.blocks.option import Offered, Option
from sailor_cloud.planner.blocks.units import Unit
from sailor_cloud.planner.space import Seat, Space
from sailor_cloud.planner.twins import first_twins
from sailor_cloud.simulator import gradient_sync_s, preemptions_per_hour

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# Longer pipelines than this are not looked at.
MAX_STAGES = 24
# How much larger the tp of the last stage may be than that of the others.
_HEAD = 4


# The compute seconds of the whole model, of its longest layer and of one in its middle, and how much of it fits.
_Stage = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Group:
    """The unbeaten options of units that compete for the same rows, and their measures; all are parts of `largest`.

    Zones and rows are numbered as the space did that they were first asked in, and `far_s` is left out.
    """

    largest: list[Option]
    numbers: Ints
    blocks: Ints
    measures: Measures


@dataclass
class Options:
    """The options of some units, by microbatch size and number of replicas; what was computed is kept for all parts."""

    space: Space
    units: list[Unit]
    _cuts: dict[tuple[int, int, int, int, int], float] = field(default_factory=dict)
    _fars: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    _names: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        zones = sorted({pool.offer.zone for pool in self.space.pools})
        self.bits = {zone: 1 << number for number, zone in enumerate(zones)}
        self.lost = [preemptions_per_hour(pool.offer, self.space.scenario.catalog) for pool in self.space.pools]
        self.far = {unit.pools[0]: self._far(unit.pools[0]) for unit in self.units}
        self.twins = first_twins(self.space)
        known = self.space.known.searches
        self._stages: dict[tuple[object, ...], _Stage] = known.setdefault("stages of options", {})
        self._rings: dict[tuple[object, ...], float] = known.setdefault("rings of options", {})
        self._gradients: dict[tuple[int, int], tuple[float, float, float]] = known.setdefault("bytes of options", {})
        self._groups: dict[tuple[object, ...], _Group] = known.setdefault("groups of options", {})
        masks: dict[int, list[Unit]] = {}
        for unit in self.units:
            masks.setdefault(unit.mask, []).append(unit)
        self.competing = list(masks.values())

    def of(self, size: int, replicas: int) -> tuple[Offered, Measures] | None:
        """Return the options that no other one of the same rows equals or beats in every way; None if there is none."""
        groups = [(units, self._group(units, size, replicas)) for units in self.competing]
        groups = [(units, group) for units, group in groups if len(group.numbers)]
        if not groups:
            return None
        largest: list[Option] = []
        there: list[Unit] = []
        parts: list[Measures] = []
        numbers, order = [], []
        for units, group in groups:
            # A part of the space has units of its own that stand for the same nodes.
            unit_of = {unit.devices: unit for unit in units}
            place = {unit.devices: self.units.index(unit) for unit in units}
            here = [unit_of[option.unit.devices] for option in group.largest]
            far_s = np.array(
                [self._far_s(unit.pools[0], option, size) for unit, option in zip(here, group.largest, strict=True)]
            )
            zones = np.full(len(group.numbers), self._zones(units[0]))
            rows = np.full(len(group.numbers), units[0].mask)
            measures = group.measures.having(far_s=far_s[group.numbers])
            parts.append(Measures(measures.values, rows, zones))
            numbers.append(group.numbers + len(largest))
            order.append(np.array([place[unit.devices] for unit in here])[group.numbers])
            largest += group.largest
            there += here
        sequence = np.argsort(np.concatenate(order), kind="stable")
        blocks = np.concatenate([group.blocks for _, group in groups])
        offered = Offered(largest, there, np.concatenate(numbers)[sequence], blocks[sequence])
        return offered, joined(parts)[sequence]

    def _group(self, units: list[Unit], size: int, replicas: int) -> _Group:
        # Only rated here, so of zones that are nearly alike the first one stands for the others.
        if len(units[0].pools) == 1:
            units = [replace(unit, pools=(self.twins[unit.pools[0]],)) for unit in units]
        nodes = tuple((unit.devices, self._numbers(unit.pools), unit.nodes) for unit in units)
        key = (nodes, size, replicas, self.space.zero_stage)
        if key not in self._groups:
            largest = [option for unit in units for option in self._largest(unit, replicas)]
            numbers = np.repeat(np.arange(len(largest)), np.array([each.blocks for each in largest], dtype=np.int64))
            blocks = np.array([count for option in largest for count in range(1, option.blocks + 1)], dtype=np.int64)
            measures = self._measures(largest, numbers, blocks, size, replicas)
            kept = unbeaten(measures)
            used, numbers = np.unique(numbers[kept], return_inverse=True)
            self._groups[key] = _Group([largest[index] for index in used], numbers, blocks[kept], measures[kept])
        return self._groups[key]

    def _numbers(self, pools: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of pools in the first space."""
        if pools not in self._names:
            self._names[pools] = tuple(self.space.numbers[pool] for pool in pools)
        return self._names[pools]

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
        """Return the measures of options with so many blocks each, but for `rows`, `zones` and `far_s`."""
        found = np.array([self._looked_up(option, size, replicas) for option in largest], dtype=np.float64)
        first, more = last_and_more(LookedUp(*found.reshape(-1, len(LookedUp._fields)).T), replicas)
        values = first[:, numbers] + more[:, numbers] * (blocks - 1)
        longest = NAMES.index("longest_s")
        values[longest] = np.where(blocks > 1, more[longest, numbers], first[longest, numbers])
        none = np.zeros(len(numbers), dtype=np.int64)
        return Measures(values, none, none)

    def _looked_up(self, option: Option, size: int, replicas: int) -> LookedUp[float]:
        """Return what an option's measures follow from."""
        pool, tp, last = option.unit.pools[0], option.tp, len(option.last)
        repeated = min(option.blocks, 2)
        stages, sharers = option.per_node * repeated, min(replicas, 2)
        plain = self._stage(pool, tp, size, stages, sharers)
        most = max(option.per_node if option.blocks > 1 else 0, last)
        nbytes, large, tied = self._bytes(option)
        # Short sums take longer per byte: those of a stage's share are asked for.
        share = 1.0 / max(2.0, option.per_node * float(repeated))
        return LookedUp(
            *plain,
            *(self._stage(pool, option.head_tp, size, stages, sharers) if option.head_tp else plain),
            self._cut_s(pool, pool, tp, size, 0) if most > 1 else 0.0,
            self._cut_s(pool, pool, tp, size, option.replicas),
            self._ring_s(option, nbytes * share, replicas, flows=most) / share,
            # Meanwhile all other stages of a node are summing, too.
            self._ring_s(option, tied, 2 * replicas, flows=max(1, most - 1), outside=True) if tied else 0.0,
            self._ring_s(option, large, replicas, flows=most),
            self._ring_usd(option.unit.pools) * nbytes,
            self.space.rates[pool].expected,
            self.lost[pool],
            last,
            option.per_node,
            option.nodes_each,
            option.head_tp > 0,
            tp,
        )

    def _far_s(self, pool: int, option: Option, size: int) -> float:
        """Return the seconds of one microbatch's tensors over a cut from a pool to another zone, the slowest one."""
        if not self.far[pool]:
            return 0.0
        key = (pool, option.tp, size, option.replicas)
        if key not in self._fars:
            each = (self._cut_s(pool, other, option.tp, size, option.replicas) for other in self.far[pool])
            self._fars[key] = max(each, default=0.0)
        return self._fars[key]

    def _bytes(self, option: Option) -> tuple[float, float, float]:
        """Return the gradient bytes of all layers, of the largest one, and of a tied weight, which is summed apart."""
        key = (option.tp, self.space.zero_stage)
        if key not in self._gradients:
            table = self.space.table(option.unit.pools[0], option.tp, 1, recompute=False)
            tied = float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter)
            each = np.diff(table.gradient_prefix_bytes)
            each[[0, -1]] -= tied
            self._gradients[key] = float(each.sum()), float(each.max()), tied
        return self._gradients[key]

    def _stage(self, pool: int, tp: int, size: int, stages: int, sharers: int) -> _Stage:
        """Return the compute seconds of the whole model, its longest layer and one in its middle, and how much fits.

        Activations are computed again where one of so many equal stages, the first, has no room to keep them; buffers
        are those of as many pipelines as `sharers`.
        """
        key = (self.space.pools[pool].accelerator.name, tp, size, stages, sharers, self.space.zero_stage)
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
        key = (self._numbers(pools), inside, option.tp, flows, nbytes, holders)
        if key not in self._rings:
            bucket = self.space.scenario.execution.bucket_bytes
            message = min(nbytes, bucket) / holders
            links = self._links(option, inside, flows)
            link = links[0] if len(links) == 1 else max(links, key=lambda link: link.transfer_s(message))
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

    def _ring_usd(self, pools: tuple[int, ...]) -> float:
        """Return the price of one byte over a ring through the zones of some pools."""
        return sum(self.space.usd_per_byte(a, b) for a, b in zip(pools, pools[1:] + pools[:1], strict=True))
