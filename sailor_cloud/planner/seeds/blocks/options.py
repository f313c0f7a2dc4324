"""The options of a unit to serve `replicas` pipelines: tp, stages per node and nodes, with their measures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.evaluate.similar_zones import representative_pools
from sailor_cloud.planner.patterns.node_patterns import UnitOptions, UnitOptionsCache, numbered
from sailor_cloud.planner.patterns.option import Offered, Option
from sailor_cloud.planner.patterns.units import Unit
from sailor_cloud.planner.patterns.units import units as units_of
from sailor_cloud.planner.seeds.blocks.looked_up import LookedUp, last_and_more
from sailor_cloud.planner.seeds.blocks.measures import NAMES, Measures, joined, unbeaten
from sailor_cloud.planner.space.space import Seat, Space

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class _Stage(NamedTuple):
    """The compute seconds of the whole model, of its longest layer and of a middle layer; and what fits.

    What fits is the share of the layers between the first and the last one, and how much less with the first and with
    the last.
    """

    whole_s: float
    layer_s: float
    block_s: float
    room: float
    first_less: float
    last_less: float


@dataclass(frozen=True, slots=True)
class _Group:
    """The non-dominated options of units that compete for the same rows, and their measures; all are parts of
    `largest`.

    Zones and rows have the numbers of the space that asked first; `far_s` is left out. `leaving`: the distinct cuts to
    other nodes: devices of a node, tp, flows that share a card. `out`: the cut of each option.
    """

    largest: list[Option]
    numbers: Ints
    blocks: Ints
    measures: Measures
    leaving: list[tuple[int, int, int]]
    out: Ints


@dataclass
class Options:
    """The options of some units, by microbatch size and number of replicas; results are kept for all parts."""

    space: Space
    units: list[Unit]
    _cuts: dict[tuple[int, int, int, int, int], float] = field(default_factory=dict)
    _fars: dict[tuple[int, int, int, int], float] = field(default_factory=dict)
    _offered: dict[tuple[int, int], tuple[Offered, Measures] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        zones = sorted({pool.offer.zone for pool in self.space.pools})
        self.bits = {zone: 1 << number for number, zone in enumerate(zones)}
        self.unit_options = UnitOptionsCache(self.space)
        self.far = {unit.pools[0]: self._far(unit.pools[0]) for unit in self.units}
        self.representatives = representative_pools(self.space)
        known = self.space.known.searches
        self._stages: dict[tuple[object, ...], _Stage] = known.setdefault("stages of options", {})
        self._groups: dict[tuple[object, ...], _Group] = known.setdefault("groups of options", {})
        masks: dict[int, list[Unit]] = {}
        for unit in self.units:
            masks.setdefault(unit.mask, []).append(unit)
        # Units that compete for the same rows, and the units to look up: since options are only rated here, one of
        # several similar zones represents the others.
        self.competing = [(units, [self._representative(unit) for unit in units]) for units in masks.values()]

    def of(self, size: int, replicas: int) -> tuple[Offered, Measures] | None:
        """Return the options that no other one of the same rows equals or beats in every measure; None if none."""
        if (size, replicas) not in self._offered:
            self._offered[size, replicas] = self._of(size, replicas)
        return self._offered[size, replicas]

    def _of(self, size: int, replicas: int) -> tuple[Offered, Measures] | None:
        groups = [(units, self._group(alike, size, replicas)) for units, alike in self.competing]
        groups = [(units, group) for units, group in groups if len(group.numbers)]
        if not groups:
            return None
        largest: list[Option] = []
        there: list[Unit] = []
        parts: list[Measures] = []
        numbers, order = [], []
        for units, group in groups:
            # The same nodes have other units in a part of the space.
            unit_of = {unit.devices: unit for unit in units}
            place = {unit.devices: self.units.index(unit) for unit in units}
            here = [unit_of[option.unit.devices] for option in group.largest]
            each = [self._far_s(unit_of[devices].pools[0], tp, flows, size) for devices, tp, flows in group.leaving]
            far_s = np.array(each)[group.out]
            zones = np.full(len(group.numbers), self._zones(units[0]))
            rows = np.full(len(group.numbers), units[0].mask)
            measures = group.measures.having(far_s=far_s)
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
        key = (self.unit_options.name(units), size, replicas, self.space.zero_stage)
        if key not in self._groups:
            options = self.unit_options.of(units, replicas)
            measures = self._measures(units, options, size, replicas)
            kept = unbeaten(measures)
            used, numbers = np.unique(options.numbers[kept], return_inverse=True)
            largest = [options.largest[index] for index in used]
            leaving, out = numbered([(option.unit.devices, option.tp, option.replicas) for option in largest])
            self._groups[key] = _Group(largest, numbers, options.blocks[kept], measures[kept], leaving, out[numbers])
        return self._groups[key]

    def _representative(self, unit: Unit) -> Unit:
        return replace(unit, pools=(self.representatives[unit.pools[0]],)) if len(unit.pools) == 1 else unit

    def _zones(self, unit: Unit) -> int:
        return sum(self.bits[self.space.pools[pool].offer.zone] for pool in unit.pools)

    def _measures(self, units: Sequence[Unit], options: UnitOptions, size: int, replicas: int) -> Measures:
        """Return the measures of all options, except `rows`, `zones` and `far_s`."""
        sharers = min(replicas, 2)
        stages = np.array(
            [self._stage(units[at].pools[0], tp, size, count, sharers) for at, tp, count in options.stages]
        ).reshape(-1, len(_Stage._fields))
        # The last entry means no cut.
        cuts = np.array(
            [
                *(
                    self._cut_s(units[at].pools[0], units[at].pools[0], tp, size, flows)
                    for at, tp, flows in options.cuts
                ),
                0.0,
            ]
        )
        plain, head = stages[options.plain].T, stages[options.head].T
        *_, first_less, _ = plain
        *_, last_less = head
        times = [*plain[:4], *head[:4], first_less + last_less, cuts[options.inside], cuts[options.out]]
        first, more = last_and_more(LookedUp(*times, *options.fixed), replicas)
        numbers, blocks = options.numbers, options.blocks
        values = first[:, numbers] + more[:, numbers] * (blocks - 1)
        longest = NAMES.index("longest_s")
        values[longest] = np.where(blocks > 1, more[longest, numbers], first[longest, numbers])
        none = np.zeros(len(numbers), dtype=np.int64)
        return Measures(values, none, none)

    def _far_s(self, pool: int, tp: int, flows: int, size: int) -> float:
        """Return the seconds of one microbatch's tensors over the slowest cut from a pool to another zone."""
        key = (pool, tp, size, flows)
        if key not in self._fars:
            each = (self._cut_s(pool, other, tp, size, flows) for other in self.far[pool])
            self._fars[key] = max(each, default=0.0)
        return self._fars[key]

    def _stage(self, pool: int, tp: int, size: int, stages: int, sharers: int) -> _Stage:
        """Return the compute seconds of the whole model, its longest layer and one in its middle, and what fits.

        Activations are recomputed if the first of `stages` equal stages has no memory for them; buffers are those of
        `sharers` pipelines.
        """
        key = (self.space.pools[pool].accelerator.name, tp, size, stages, sharers, self.space.zero_stage)
        if key not in self._stages:
            seat, layers = Seat(pool, tp, 0), self.space.layers
            fits = np.isfinite(self.space.stages_s(seat, size, in_flight=1, replicas=sharers))
            between = layers - 2
            most, first, last = (float(each.sum()) for each in (fits[1, 2:-1], fits[0, 1:-1], fits[1:-1, -1]))
            # If only the first or the last layer prevents a fit, no single stage may count as large enough.
            room = most if fits[0, layers] else min(most, between - 0.5)
            held = self.space.stages(seat, size, sharers).of((0, -(-layers // stages)), stages)
            again = self.space.kinds[-1] if held is None else held[0]
            table = self.space.table(pool, tp, size, recompute=again)
            ends = np.arange(1, layers + 1)
            each = np.asarray(table.compute_s(ends - 1, ends))
            compute = float(each.sum()), float(each.max()), float(each[layers // 2])
            less = (most + 1.0 - first) / between, (most + 1.0 - last) / between
            self._stages[key] = _Stage(*compute, room / between, *less)
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


def options_of(space: Space) -> Options:
    """Return the options of a space, which all of its searches share."""
    if "options" not in space.remembered:
        space.remembered["options"] = Options(space, units_of(space))
    options: Options = space.remembered["options"]
    return options
