"""Enumerates the ways to place pipelines on a few nodes, without duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sailor_cloud.planner.space.candidates import Candidates
from sailor_cloud.planner.space.quotas import keeps_quotas
from sailor_cloud.simulator import cut_flows


class Slot(NamedTuple):
    """The place of one stage: `tp` devices of the `instance`-th node of a pool.

    Slots and seats are hashed and compared a million times in a search; tuples are the fastest for that.
    """

    pool: int
    instance: int
    tp: int


Layout = tuple[tuple[Slot, ...], ...]


def card_flows(layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Return, per pipeline and cut, how many cuts of the layout share the network card of either node."""
    return cut_flows([[(slot.pool, slot.instance) for slot in slots] for slots in layout])


@dataclass(slots=True)
class _Walk:
    """The nodes and devices in use at a point of the tree of layouts."""

    candidates: Candidates
    tp_degrees: tuple[tuple[int, ...], ...]
    max_stages: int
    max_pipelines: int
    max_nodes: int
    free: dict[tuple[int, int], int] = field(default_factory=dict)
    opened: list[int] = field(default_factory=list)
    row_devices: list[int] = field(default_factory=list)
    closed: list[tuple[Slot, ...]] = field(default_factory=list)


def enumerate_layouts(
    candidates: Candidates,
    tp_degrees: Sequence[Sequence[int]],
    *,
    max_stages: int,
    max_pipelines: int,
    max_nodes: int | None,
) -> Iterator[Layout]:
    """Yield every set of pipelines on disjoint devices of nodes within the limits, up to renaming equal nodes.

    tp_degrees: the degrees allowed in each pool. Pipelines are in ascending order, and nodes of a pool are first used
    in the order of their numbers. The smallest renaming of a layout has both properties, so none is lost.
    """
    walk = _Walk(
        candidates,
        tuple(tuple(sorted(degrees)) for degrees in tp_degrees),
        max_stages,
        max_pipelines,
        max_nodes if max_nodes is not None else sum(pool.max_nodes for pool in candidates.pools),
    )
    walk.opened = [0] * len(candidates.pools)
    walk.row_devices = [0] * len(candidates.rows)
    yield from _extend(walk, ())


def _extend(walk: _Walk, current: tuple[Slot, ...]) -> Iterator[Layout]:
    """Yield the layouts that continue from the closed pipelines and the one being built."""
    if current and (not walk.closed or current >= walk.closed[-1]):
        walk.closed.append(current)
        yield tuple(walk.closed)
        if len(walk.closed) < walk.max_pipelines:
            yield from _extend(walk, ())
        walk.closed.pop()
    if len(current) == walk.max_stages:
        return
    for slot in _next_slots(walk):
        candidate = (*current, slot)
        if walk.closed and candidate < walk.closed[-1][: len(candidate)]:
            continue
        place = (slot.pool, slot.instance)
        opens = place not in walk.free
        devices = walk.candidates.pools[slot.pool].devices
        row = walk.candidates.pools[slot.pool].row
        if opens:
            walk.free[place] = devices
            walk.opened[slot.pool] += 1
            walk.row_devices[row] += devices
        walk.free[place] -= slot.tp
        yield from _extend(walk, candidate)
        walk.free[place] += slot.tp
        if opens:
            del walk.free[place]
            walk.opened[slot.pool] -= 1
            walk.row_devices[row] -= devices


def _next_slots(walk: _Walk) -> list[Slot]:
    """Return the places for the next stage: on nodes in use, or on the next new node of a pool."""
    slots = [
        Slot(pool, instance, tp)
        for (pool, instance), free in sorted(walk.free.items())
        for tp in walk.tp_degrees[pool]
        if tp <= free
    ]
    if sum(walk.opened) < walk.max_nodes:
        for number, pool in enumerate(walk.candidates.pools):
            room = walk.candidates.rows[pool.row].devices - walk.row_devices[pool.row]
            if walk.opened[number] < pool.max_nodes and pool.devices <= room and _quotas_allow(walk, number):
                slots += [Slot(number, walk.opened[number], tp) for tp in walk.tp_degrees[number] if tp <= pool.devices]
    return slots


def _quotas_allow(walk: _Walk, pool: int) -> bool:
    """Return whether the account's quotas leave room for one more node of a pool."""
    if not walk.candidates.quotas:
        return True
    nodes = Counter(dict(enumerate(walk.opened)))
    nodes[pool] += 1
    return keeps_quotas(walk.candidates, nodes)
