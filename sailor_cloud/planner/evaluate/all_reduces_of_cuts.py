"""Times the all-reduces of many cuts of one layout at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.planner.evaluate.all_reduces import Hops, SyncTable
from sailor_cloud.planner.space.layouts import Layout, Slot
from sailor_cloud.planner.space.space import Space
from sailor_cloud.simulator import gradient_sync_s

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The stage of each pipeline that holds a layer.
_Holders = tuple[int, ...]
# Seconds and USD of an all-reduce by first and end layer, shape [layers + 1, layers + 1] each.
_Times = tuple[Floats, Floats]


@dataclass(slots=True)
class CutSums:
    """The all-reduces of one space, as in `SyncTable`, found by the layers that form one all-reduce."""

    space: Space
    single: SyncTable = field(init=False)
    _times: dict[tuple[object, ...], _Times] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.single = self.space.evaluated.setdefault("sums", SyncTable(self.space))

    def of_cuts(self, layout: Layout, cuts: tuple[Ints, ...]) -> tuple[Floats, Floats]:
        """Return seconds and USD of egress per iteration; cuts[p] has shape [plans, stages of pipeline p + 1]."""
        count = len(cuts[0])
        seconds, usd = np.zeros(count), np.zeros(count)
        if len(layout) == 1 and (len(layout[0]) == 1 or not self.single.tied_bytes(layout[0][0])):
            return seconds, usd
        for rows, sums in _alike(self.space.layers, layout, cuts):
            seconds[rows], usd[rows] = self._along(layout, sums, tuple(part[rows] for part in cuts))
        return seconds, usd

    def _along(self, layout: Layout, sums: list[_Holders], cuts: tuple[Ints, ...]) -> tuple[Floats, Floats]:
        """Return seconds and USD for cuts over which the same stages form the all-reduces, in sequence."""
        through: dict[tuple[int, int], Floats] = {}
        usd = np.zeros(len(cuts[0]))
        for number, (members, hops) in enumerate(self.single.rings(layout, tuple(sums))):
            if hops is None:
                continue
            if number < len(sums):
                first = np.max([cuts[p][:, s] for p, s in members], axis=0)
                end = np.min([cuts[p][:, s + 1] for p, s in members], axis=0)
                taken_s, paid = (table[first, end] for table in self._of_layers(layout[0][members[0][1]], hops))
            else:
                taken_s, paid = self._of_bytes(np.full(len(usd), self.single.tied_bytes(layout[0][0])), hops)
            done = taken_s + np.max([through.get(member, np.zeros(len(usd))) for member in members], axis=0)
            through.update(dict.fromkeys(members, done))
            usd += paid
        return np.max([*through.values(), np.zeros(len(usd))], axis=0), usd

    def _of_layers(self, holder: Slot, hops: Hops) -> _Times:
        """Return the table of an all-reduce; `holder` is any stage of the first pipeline in it."""
        key = (self.space.pools[holder.pool].accelerator.name, holder.tp, hops)
        if key not in self._times:
            first, end = np.triu_indices(self.space.layers + 1, 1)
            seconds, usd = np.zeros((2, self.space.layers + 1, self.space.layers + 1))
            seconds[first, end], usd[first, end] = self._of_bytes(self.single.nbytes(holder, first, end), hops)
            self._times[key] = seconds, usd
        return self._times[key]

    def _of_bytes(self, nbytes: Floats, hops: Hops) -> tuple[Floats, Floats]:
        engine, bucket = self.space.scenario.engine, self.space.bucket_bytes
        paid = 2.0 * (hops.members - 1) / hops.members * nbytes * hops.usd_per_byte
        if hops.zones:
            return self.single.zone_by_zone_s(hops, nbytes), paid
        message = np.minimum(nbytes, bucket) / hops.members
        links = self.single.links(hops)
        slowest = np.argmax([link.transfer_s(message) for link in links], axis=0)
        seconds = np.empty(len(nbytes))
        # Usually one link is the slowest for all sizes.
        for number in sorted(set(slowest.tolist())):
            there = slowest == number
            seconds[there] = gradient_sync_s(
                nbytes[there], hops.members, links[number], engine=engine, bucket_bytes=bucket
            )
        return seconds, paid


def _alike(layers: int, layout: Layout, cuts: tuple[Ints, ...]) -> Iterator[tuple[Ints, list[_Holders]]]:
    """Yield cuts over which the same stages form the all-reduces, with these from the last layers to the first."""
    each = np.arange(layers)
    stages = [(part[:, 1:-1, None] <= each).sum(axis=1) for part in cuts]
    codes = np.zeros((len(cuts[0]), layers), dtype=np.int64)
    for part, slots in zip(stages, layout, strict=True):
        codes = codes * len(slots) + part
    seen = np.zeros((len(codes), int(np.prod([len(slots) for slots in layout]))), dtype=bool)
    seen[np.arange(len(codes))[:, None], codes] = True
    packed = np.packbits(seen, axis=1)
    _, where, which = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    for number, row in enumerate(where):
        holders = [tuple(int(part[row, layer]) for part in stages) for layer in reversed(each)]
        yield np.flatnonzero(which.ravel() == number), list(dict.fromkeys(holders))
