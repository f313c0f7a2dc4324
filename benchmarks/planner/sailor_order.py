"""Pipelines in an order in which no hop of their gradient sums is slow: a walk over the ways of placing one."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from numpy.typing import NDArray
from sailor_places import Placer, Runs, Zones
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

Floats = NDArray[np.float64]

# Ways that are looked at together, attempts to join a walk that falls apart, and branches of the solver.
_MOST_WAYS = 40
_ATTEMPTS = 4
_NODES = 200


def best_walk(placer: Placer, replicas: int, ways: list[Zones], least_s: float, most_s: float) -> Runs | None:
    """Return pipelines of these ways whose slowest hop is faster than `most_s`, as fast as found; None if none is.

    `least_s`: what no order undercuts.
    """
    if not 1 < len(ways) <= _MOST_WAYS:
        return None
    hops = np.array([[placer.slowest_hop_s(a, b, replicas) for b in ways] for a in ways])
    limits = np.unique(hops[hops < most_s])
    found, low, high = None, int(np.searchsorted(limits, least_s * (1.0 - 1e-9))), len(limits)
    while low < high:
        at = (low + high) // 2
        runs = _walk(placer, replicas, ways, hops <= limits[at])
        if runs is None:
            low = at + 1
        else:
            found, high = runs, at
    return found


def _walk(placer: Placer, replicas: int, ways: list[Zones], allowed: NDArray[np.bool_]) -> Runs | None:
    """Return a walk over allowed hops for which there is room, or None if none was found."""
    count, edges = len(ways), list(zip(*(each.tolist() for each in np.nonzero(allowed)), strict=True))
    used = [placer.used(way) for way in ways]
    rows: list[dict[int, float]] = []
    low: list[float] = []
    high: list[float] = []

    def add(row: dict[int, float], least: float, most: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(most)

    # Columns: how often each hop is taken, where the walk begins, where it ends.
    first, last = len(edges), len(edges) + count
    visits: list[dict[int, float]] = [{first + at: 1.0} for at in range(count)]
    for column, (_, dst) in enumerate(edges):
        visits[dst][column] = 1.0
    for at in range(count):
        row = dict(visits[at])
        for column, (src, _) in enumerate(edges):
            if src == at:
                row[column] = row.get(column, 0.0) - 1.0
        add(row | {last + at: -1.0}, 0.0, 0.0)
    add(dict.fromkeys(range(first, last), 1.0), 1.0, 1.0)
    add(dict.fromkeys(range(last, last + count), 1.0), 1.0, 1.0)
    add(dict.fromkeys(range(first), 1.0), replicas - 1, replicas - 1)
    for place, there in placer.devices.items():
        row = {}
        for at in range(count):
            for column, value in visits[at].items():
                row[column] = row.get(column, 0.0) + value * used[at][place]
        add(row, -np.inf, there)
    for _ in range(_ATTEMPTS):
        taken = _solved(rows, low, high, last + count)
        if taken is None:
            return None
        begin = int(np.argmax(taken[first:last]))
        order, missed = _trail(edges, taken[:first], begin)
        if not missed:
            return tuple((len(list(run)), ways[at]) for at, run in groupby(order))
        # Leave what the walk did not reach, too.
        add(
            {column: 1.0 for column, (src, dst) in enumerate(edges) if src in missed and dst not in missed}, 1.0, np.inf
        )
    return None


def _solved(rows: list[dict[int, float]], low: list[float], high: list[float], width: int) -> NDArray[np.int64] | None:
    entries = [(at, column, value) for at, row in enumerate(rows) for column, value in row.items()]
    numbers, columns, values = zip(*entries, strict=True)
    solved = milp(
        np.zeros(width),
        integrality=np.ones(width),
        bounds=Bounds(0, np.inf),
        constraints=LinearConstraint(csr_matrix((values, (numbers, columns)), shape=(len(rows), width)), low, high),
        options={"node_limit": _NODES},
    )
    return None if solved.x is None else np.round(solved.x).astype(np.int64)


def _trail(edges: list[tuple[int, int]], taken: NDArray[np.int64], begin: int) -> tuple[list[int], set[int]]:
    """Return the ways along a walk that takes every hop as often as wanted, and ways with hops that it can't reach."""
    left: dict[int, list[int]] = {}
    for (src, dst), times in zip(edges, taken.tolist(), strict=True):
        left.setdefault(src, []).extend([dst] * times)
    stack, order = [begin], []
    while stack:
        if left.get(stack[-1]):
            stack.append(left[stack[-1]].pop())
        else:
            order.append(stack.pop())
    return order[::-1], {src for src, following in left.items() if following}


def quick_ways(placer: Placer, ways: list[Zones], runs: Runs, slack: float) -> list[Zones]:
    """Return the ways whose stages send for no longer than those of the runs do, up to a share of it."""
    stages = range(len(placer.stages))
    most = [max(placer.pace_s(stage, way) for _, way in runs) for stage in stages]
    used = {way for _, way in runs}
    quick = [way for way in ways if all(placer.pace_s(s, way) <= most[s] * (1.0 + slack) for s in stages)]
    return sorted(quick, key=lambda way: (way not in used, [placer.pace_s(s, way) for s in stages], way))[:_MOST_WAYS]
