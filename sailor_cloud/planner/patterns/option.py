"""One way in which a unit serves pipelines: tp, stages per node and nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import overload

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.patterns.units import Unit

Ints = NDArray[np.int64]


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
        """The tp degrees of the stages of every block; `head_tp` is that of the last stage, for the model's head."""
        return (*((self.tp,) * self.per_node,) * (self.blocks - 1), self.last)

    @property
    def last(self) -> tuple[int, ...]:
        """The tp degrees of the stages of the last block."""
        if not self.head_tp:
            return (self.tp,) * self.per_node
        room = self.unit.devices // self.replicas - self.head_tp
        return (*(self.tp,) * min(self.per_node - 1, room // self.tp), self.head_tp)

    @property
    def stages(self) -> int:
        return sum(len(block) for block in self.tps)


@dataclass(frozen=True, slots=True)
class Offered(Sequence[Option]):
    """Options, each given by the larger option that contains it, its unit here, and its number of blocks."""

    largest: list[Option]
    units: list[Unit]
    numbers: Ints
    blocks: Ints
    _made: dict[int, Option] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Option: ...

    @overload
    def __getitem__(self, index: slice) -> list[Option]: ...

    def __getitem__(self, index: int | slice) -> Option | list[Option]:
        if isinstance(index, slice):
            return [self[each] for each in range(len(self))[index]]
        if index not in self._made:
            number = int(self.numbers[index])
            way = self.largest[number]
            self._made[index] = Option(
                unit=self.units[number],
                tp=way.tp,
                per_node=way.per_node,
                replicas=way.replicas,
                nodes_each=way.nodes_each,
                blocks=int(self.blocks[index]),
                head_tp=way.head_tp,
            )
        return self._made[index]
