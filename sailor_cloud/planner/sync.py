"""Times the gradient sums of whole sets of pipelines, each sum once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.network import Link
from sailor_cloud.planner.layouts import Layout, Slot
from sailor_cloud.planner.space import Space
from sailor_cloud.simulator import StageTable, gradient_sync_s, ring_flows

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Members = tuple[tuple[int, int, Slot], ...]
_Flows = Mapping[tuple[int, int], int]


@dataclass(frozen=True, slots=True)
class _Sum:
    seconds: float
    usd: float


@dataclass(slots=True)
class SyncTable:
    """Gradient sums of one space; the rule is the simulator's: neighbouring layers with the same holders together."""

    space: Space
    _sums: dict[tuple[object, ...], _Sum] = field(default_factory=dict)

    def of_cuts(self, layout: Layout, cuts: tuple[Ints, ...]) -> tuple[Floats, Floats]:
        """Return seconds and USD of egress per iteration; cuts[p] has shape [plans, stages of pipeline p + 1]."""
        count = len(cuts[0])
        seconds, usd = np.zeros(count), np.zeros(count)
        if len(layout) == 1 and (len(layout[0]) == 1 or not self._table(layout[0][0]).tied_parameters):
            return seconds, usd
        known: dict[tuple[tuple[int, ...], ...], tuple[float, float]] = {}
        for row in range(count):
            key = tuple(tuple(int(layer) for layer in part[row]) for part in cuts)
            if key not in known:
                known[key] = self.of_plan(layout, key)
            seconds[row], usd[row] = known[key]
        return seconds, usd

    def of_plan(self, layout: Layout, cuts: tuple[tuple[int, ...], ...]) -> tuple[float, float]:
        """Return the seconds until all sums are through, and the USD of egress, for one cut per pipeline.

        Sums run from the last layers to the first; each waits until all of its members are through with earlier ones.
        """
        sums: list[tuple[_Members, float]] = []
        for first, end in reversed(list(pairwise(sorted({layer for cut in cuts for layer in cut})))):
            stages = tuple(_stage_of(cut, first) for cut in cuts)
            members = tuple((p, stage, layout[p][stage]) for p, stage in enumerate(stages))
            sums.append((members, self._bytes(layout[0][stages[0]], first, end)))
        tied = self._tied_bytes(layout[0][0])
        if tied:
            ends = [
                (p, stage, slots[stage])
                for p, slots in enumerate(layout)
                for stage in ((0,) if len(slots) == 1 else (0, len(slots) - 1))
            ]
            sums.append((tuple(ends), tied))
        through: dict[tuple[int, int], float] = {}
        rings = [[(member[:2], _node(member[2])) for member in members] for members, _ in sums]
        usd = sum(
            self._add(members, nbytes, flows, through)
            for (members, nbytes), flows in zip(sums, ring_flows(rings), strict=True)
        )
        return max(through.values(), default=0.0), usd

    def _add(self, members: _Members, nbytes: float, flows: _Flows, through: dict[tuple[int, int], float]) -> float:
        """Let the members of one sum wait for the last of them and be through with it; return its USD."""
        if len(members) < 2:
            return 0.0
        slots = tuple(sorted((member[2] for member in members), key=self._ring_key))
        key = (slots, nbytes, tuple(flows[_node(slot)] for slot in slots))
        if key not in self._sums:
            self._sums[key] = self._sum(slots, nbytes, flows)
        found = self._sums[key]
        end_s = max(through.get(member[:2], 0.0) for member in members) + found.seconds
        for member in members:
            through[member[:2]] = end_s
        return found.usd

    def _sum(self, ring: tuple[Slot, ...], nbytes: float, flows: _Flows) -> _Sum:
        bucket = self.space.scenario.execution.bucket_bytes
        pairs = min(slot.tp for slot in ring)
        message = min(nbytes, bucket) / len(ring)
        links: list[Link] = []
        usd = 0.0
        for src, dst in zip(ring, ring[1:] + ring[:1], strict=True):
            same = src.pool == dst.pool and src.instance == dst.instance
            shared = max(flows[_node(src)], flows[_node(dst)])
            links.append(self.space.link(src.pool, dst.pool, same_node=same, pairs=pairs, flows=shared))
            usd += 2.0 * (len(ring) - 1) / len(ring) * nbytes * self.space.usd_per_byte(src.pool, dst.pool)
        slowest = max(links, key=lambda link: link.transfer_s(message))
        return _Sum(float(gradient_sync_s(nbytes, len(ring), slowest, bucket_bytes=bucket)), usd)

    def _ring_key(self, slot: Slot) -> tuple[object, ...]:
        """Order a ring as the simulator does: by provider, region, zone and node."""
        offer = self.space.pools[slot.pool].offer
        region = self.space.scenario.catalog.region_of(offer.zone)
        return (offer.provider, region, offer.zone, offer.accelerator.lower(), slot.pool, slot.instance)

    def _bytes(self, slot: Slot, first: int, end: int) -> float:
        table = self._table(slot)
        ends = (first == 0) + (end == table.layers)
        return float(table.gradient_bytes(first, end)) - self._tied_bytes(slot) * ends

    def _tied_bytes(self, slot: Slot) -> float:
        """Return the gradient bytes of a tied weight, which is summed apart from the layers that hold it."""
        table = self._table(slot)
        return float(table.tied_parameters * table.tp * table.gradient_bytes_per_parameter)

    def _table(self, slot: Slot) -> StageTable:
        return self.space.table(slot.pool, slot.tp, 1, recompute=False)


def _node(slot: Slot) -> tuple[int, int]:
    return (slot.pool, slot.instance)


def _stage_of(cut: tuple[int, ...], layer: int) -> int:
    """Return the stage that holds a layer."""
    return next(stage for stage, end in enumerate(cut[1:]) if layer < end)
