"""Puts pipelines of kinds on real nodes: which instances to buy, and which stage stands where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from sailor_cloud.model.offer import Market
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.layouts import Slot
from sailor_cloud.planner.space import Space


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring stages of one pipeline in one row, wanted on one node."""

    pipeline: int
    first: int
    tps: tuple[int, ...]

    @property
    def devices(self) -> int:
        return sum(self.tps)


def pack(
    kinds: Kinds, pipelines: Sequence[Sequence[int]], markets: dict[int, Market]
) -> tuple[tuple[Slot, ...], ...] | None:
    """Return the slots of every pipeline's stages, or None where a row has no nodes for them.

    pipelines: the kind of every stage. markets: where each row buys. Nodes are the cheapest set that covers a row's
    devices; neighbouring stages of a pipeline share a node while they fit, the largest runs first.
    """
    places: dict[tuple[int, int], Slot] = {}
    for row in sorted({kinds.members[kind].row for stages in pipelines for kind in stages}):
        pools = [
            index
            for index, pool in enumerate(kinds.space.pools)
            if pool.row == row and pool.offer.market is markets[row]
        ]
        largest = max((kinds.space.pools[index].devices for index in pools), default=0)
        runs = [run for p, stages in enumerate(pipelines) for run in _runs(kinds, stages, p, row, largest)]
        if any(tp > largest for run in runs for tp in run.tps):
            return None
        filled = _fill(kinds.space, row, pools, runs)
        if filled is None:
            return None
        places.update(filled)
    return tuple(tuple(places[p, s] for s in range(len(stages))) for p, stages in enumerate(pipelines))


def _runs(kinds: Kinds, stages: Sequence[int], pipeline: int, row: int, largest: int) -> list[_Run]:
    runs: list[_Run] = []
    for stage, member in enumerate(stages):
        kind = kinds.members[member]
        if kind.row != row:
            continue
        last = runs[-1] if runs else None
        if last is not None and last.first + len(last.tps) == stage and last.devices + kind.tp <= largest:
            runs[-1] = _Run(pipeline, last.first, (*last.tps, kind.tp))
        else:
            runs.append(_Run(pipeline, stage, (kind.tp,)))
    return runs


def _fill(space: Space, row: int, pools: list[int], runs: list[_Run]) -> dict[tuple[int, int], Slot] | None:
    """Return the slots of runs on the cheapest nodes that take them; runs are split before a larger set is tried."""
    needed = sum(run.devices for run in runs)
    kinds = tuple((space.pools[index].devices, space.rates[index].expected, index) for index in pools)
    singles = [_Run(run.pipeline, run.first + i, (tp,)) for run in runs for i, tp in enumerate(run.tps)]
    for devices in range(needed, space.candidates.rows[row].devices + 1):
        nodes = cheapest_cover(kinds, devices)
        if nodes is None:
            continue
        for wanted in (runs, singles):
            filled = _place(space, nodes, wanted)
            if filled is not None:
                return filled
    return None


def _place(space: Space, nodes: tuple[int, ...], runs: list[_Run]) -> dict[tuple[int, int], Slot] | None:
    """Put the largest runs first on the fullest node that takes them."""
    counts: dict[int, int] = {}
    free: list[list[int]] = []
    for pool in nodes:
        free.append([space.pools[pool].devices, pool, counts.get(pool, 0)])
        counts[pool] = counts.get(pool, 0) + 1
    places: dict[tuple[int, int], Slot] = {}
    for run in sorted(runs, key=lambda run: (-run.devices, run.pipeline, run.first)):
        fitting = [node for node in free if node[0] >= run.devices]
        if not fitting:
            return None
        node = min(fitting, key=lambda node: (node[0], node[1], node[2]))
        node[0] -= run.devices
        for offset, tp in enumerate(run.tps):
            places[run.pipeline, run.first + offset] = Slot(node[1], node[2], tp)
    used = {(slot.pool, slot.instance) for slot in places.values()}
    return places if len(used) == len(nodes) else None


@lru_cache(maxsize=4096)
def cheapest_cover(kinds: tuple[tuple[int, float, int], ...], devices: int) -> tuple[int, ...] | None:
    """Return the pools of the cheapest nodes with exactly so many devices, fewest nodes among equals; None if none.

    kinds: devices, USD per hour and pool of each kind of node.
    """
    best: list[tuple[float, int, tuple[int, ...]] | None] = [(0.0, 0, ())]
    for total in range(1, devices + 1):
        options = []
        for size, usd, pool in kinds:
            before = best[total - size] if size <= total else None
            if before is not None:
                options.append((round(before[0] + usd, 9), before[1] + 1, tuple(sorted((*before[2], pool)))))
        best.append(min(options, default=None))
    found = best[devices]
    return None if found is None else found[2]
