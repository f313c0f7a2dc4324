"""The options of units for a number of replicas, with everything that does not depend on the microbatch size."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.network import Link
from sailor_cloud.planner.patterns.option import Option
from sailor_cloud.planner.patterns.units import Unit
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import gradient_sync_s, preemptions_per_hour

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_Key = TypeVar("_Key", bound=Hashable)

# Longer pipelines are not searched.
MAX_STAGES = 24
# The largest factor by which the last stage's tp may exceed that of the others.
_HEAD = 4

# The number of a unit, a tp degree, and how many equal stages share a pipeline's layers.
StageKey = tuple[int, int, int]
# The number of a unit, a tp degree, and how many cuts share a network card; 0 inside a node.
CutKey = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class UnitOptions:
    """Options with as many blocks as possible (`largest`), and all options that these contain (`numbers`, `blocks`).

    fixed: the inputs of measures except times of stages and cuts, the last fields of `LookedUp`, [fields, options].
    `stages` and `cuts` have the numbers of stages and cuts, [options] each. An `inside` of -1: no cut inside a block.
    """

    largest: list[Option]
    numbers: Ints
    blocks: Ints
    fixed: Floats
    stages: list[StageKey]
    plain: Ints
    head: Ints
    cuts: list[CutKey]
    inside: Ints
    out: Ints


@dataclass
class UnitOptionsCache:
    """Finds the options of a space's units, and keeps them for all parts of the space."""

    space: Space
    _names: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lost = [preemptions_per_hour(pool.offer, self.space.scenario.catalog) for pool in self.space.pools]
        known = self.space.known.searches
        self._rings: dict[tuple[object, ...], float] = known.setdefault("rings of options", {})
        self._gradients: dict[tuple[int, int], tuple[float, float, float]] = known.setdefault("bytes of options", {})
        self._options: dict[tuple[object, ...], UnitOptions] = known.setdefault("options of units", {})

    def name(self, units: Sequence[Unit]) -> tuple[object, ...]:
        """Return a name of units that is the same in all parts of a space."""
        return tuple((unit.devices, self._numbers(unit.pools), unit.nodes) for unit in units)

    def of(self, units: Sequence[Unit], replicas: int) -> UnitOptions:
        key = (self.name(units), replicas, self.space.zero_stage)
        if key not in self._options:
            self._options[key] = self._build(units, replicas)
        return self._options[key]

    def _build(self, units: Sequence[Unit], replicas: int) -> UnitOptions:
        found = [(at, option) for at, unit in enumerate(units) for option in self._largest(unit, replicas)]
        most = np.array([option.blocks for _, option in found], dtype=np.int64)
        shares = [(at, option, option.per_node * min(option.blocks, 2)) for at, option in found]
        plain = [(at, option.tp, stages) for at, option, stages in shares]
        head = [(at, option.head_tp or option.tp, stages) for at, option, stages in shares]
        stages, stage_numbers = numbered([*plain, *head])
        inside = [(at, option.tp, 0) if _neighbours(option) > 1 else None for at, option in found]
        out = [(at, option.tp, option.replicas) for at, option in found]
        cuts, cut_numbers = numbered([*inside, *out])
        return UnitOptions(
            largest=[option for _, option in found],
            numbers=np.repeat(np.arange(len(found)), most),
            blocks=np.array([count for each in most.tolist() for count in range(1, each + 1)], dtype=np.int64),
            fixed=np.array([self._fixed(option, replicas) for _, option in found], dtype=np.float64).reshape(-1, 11).T,
            stages=stages,
            plain=stage_numbers[: len(found)],
            head=stage_numbers[len(found) :],
            cuts=cuts,
            inside=cut_numbers[: len(found)],
            out=cut_numbers[len(found) :],
        )

    def _largest(self, unit: Unit, replicas: int) -> list[Option]:
        """Return the options to serve a number of replicas, each with as many blocks as possible."""
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
        """Return an option with a larger tp in its last stage, which may hold the head of the model."""
        degrees = self.space.tp_degrees[plain.unit.pools[0]]
        room = plain.unit.devices // plain.replicas
        return [replace(plain, head_tp=tp) for tp in degrees if plain.tp < tp <= min(room, _HEAD * plain.tp)]

    def _fixed(self, option: Option, replicas: int) -> tuple[float, ...]:
        """Return the fixed inputs of an option's measures, the fields of `LookedUp` from `sum_s` on."""
        pool, flows = option.unit.pools[0], _neighbours(option)
        nbytes, large, tied = self._bytes(option)
        # Small messages take longer per byte, so the size is that of a stage's share.
        share = 1.0 / max(2.0, option.per_node * float(min(option.blocks, 2)))
        return (
            self._ring_s(option, nbytes * share, replicas, flows=flows) / share,
            # All other stages of a node reduce at the same time.
            self._ring_s(option, tied, 2 * replicas, flows=max(1, flows - 1), outside=True) if tied else 0.0,
            self._ring_s(option, large, replicas, flows=flows),
            self._ring_usd(option.unit.pools) * nbytes,
            self.space.rates[pool].expected,
            self.lost[pool],
            len(option.last),
            option.per_node,
            option.nodes_each,
            option.head_tp > 0,
            option.tp,
        )

    def _bytes(self, option: Option) -> tuple[float, float, float]:
        """Return the gradient bytes of all layers, of the largest layer, and of a tied weight (reduced alone)."""
        key = (option.tp, self.space.zero_stage)
        if key not in self._gradients:
            table = self.space.table(option.unit.pools[0], option.tp, 1)
            tied = float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter)
            each = np.diff(table.gradient_prefix_bytes)
            each[[0, -1]] -= tied
            self._gradients[key] = float(each.sum()), float(each.max()), tied
        return self._gradients[key]

    def _ring_s(self, option: Option, nbytes: float, holders: int, *, flows: int, outside: bool = False) -> float:
        """Return the seconds of an all-reduce. `outside`: between nodes even if its block has only one."""
        if holders < 2:
            return 0.0
        pools = option.unit.pools
        inside = option.nodes_each == 1 and not outside
        # The last node may have fewer replicas.
        ways_out = holders % option.replicas or option.replicas
        key = (self._numbers(pools), inside, option.tp, ways_out, flows, nbytes, holders)
        if key not in self._rings:
            engine = self.space.scenario.engine
            message = min(nbytes, engine.bucket_bytes) / holders
            links = self._links(option, inside, option.tp * ways_out, flows)
            link = links[0] if len(links) == 1 else max(links, key=lambda link: link.transfer_s(message))
            self._rings[key] = float(gradient_sync_s(nbytes, holders, link, engine=engine))
        return self._rings[key]

    def _links(self, option: Option, inside: bool, pairs: int, flows: int) -> list[Link]:
        pools = option.unit.pools
        if inside:
            return [self.space.link(pools[0], pools[0], same_node=True, pairs=option.tp)]
        return [
            self.space.link(a, b, same_node=False, pairs=pairs, flows=flows)
            for a, b in zip(pools, pools[1:] + pools[:1], strict=True)
        ]

    def _ring_usd(self, pools: tuple[int, ...]) -> float:
        """Return the price of one byte over a ring through the zones of some pools."""
        return sum(self.space.usd_per_byte(a, b) for a, b in zip(pools, pools[1:] + pools[:1], strict=True))

    def _numbers(self, pools: tuple[int, ...]) -> tuple[int, ...]:
        """Return the numbers of pools in the first space."""
        if pools not in self._names:
            self._names[pools] = tuple(self.space.numbers[pool] for pool in pools)
        return self._names[pools]


def _neighbours(option: Option) -> int:
    """Return the most consecutive stages of a pipeline that share a node."""
    return max(option.per_node if option.blocks > 1 else 0, len(option.last))


def numbered(keys: Iterable[_Key | None]) -> tuple[list[_Key], Ints]:
    """Return the distinct keys, and for each key its index among them; -1 for none."""
    numbers: dict[_Key, int] = {}
    found = [-1 if key is None else numbers.setdefault(key, len(numbers)) for key in keys]
    return list(numbers), np.array(found, dtype=np.int64)
