"""Divides quotas among zones and markets, for searches that only support limits of rows and pools."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sailor_cloud.planner.space.candidates import Candidates
from sailor_cloud.planner.space.space import Space

# Devices of one row in one market.
_Lot = tuple[int, str]


def apportioned(space: Space) -> tuple[Space, ...]:
    """Return parts of a space in which limits of rows keep the quotas; the space itself if none can be exceeded.

    A lot is the part of a row in one market. Quotas go to the lots in three ways: cheap ones first; cheap ones of the
    largest zone first; and node by node in turn. Together the parts contain the plans that use few lots and those that
    use all alike. Both markets of a row share its limit, so `keeps_quotas` checks what a part still permits.
    """
    if not space.candidates.quotas:
        return (space,)
    lots = sorted({(pool.row, pool.offer.market.value) for pool in space.pools})
    rate = {lot: min(_rates(space, lot)) for lot in lots}
    zone = {lot: space.candidates.rows[lot[0]].zone for lot in lots}
    cheap = sorted(lots, key=lambda lot: (rate[lot], lot))
    most = {place: sum(_room(space, {}, lot) for lot in lots if zone[lot] == place) for place in zone.values()}
    largest = min(most, key=lambda place: (-most[place], place))
    near = sorted(cheap, key=lambda lot: zone[lot] != largest)
    shares = [_in_order(space, cheap), _in_order(space, near), _in_turn(space, lots)]
    distinct = {tuple(share.get(lot, 0) for lot in lots): share for share in shares}
    return tuple(_part(space, share) for share in distinct.values() if any(share.values()))


def _in_order(space: Space, order: Sequence[_Lot]) -> dict[_Lot, int]:
    """Give every lot all it can use before the next one gets any."""
    share: dict[_Lot, int] = {}
    for lot in order:
        share[lot] = _room(space, share, lot)
    return share


def _in_turn(space: Space, lots: Sequence[_Lot]) -> dict[_Lot, int]:
    """Give lots the devices of their largest node in turn while there is room."""
    share = dict.fromkeys(lots, 0)
    open_lots = list(lots)
    while open_lots:
        for lot in list(open_lots):
            room = _room(space, {**share, lot: 0}, lot) - share[lot]
            sizes = [size for size in _sizes(space, lot) if size <= room]
            if sizes:
                share[lot] += max(sizes)
            else:
                open_lots.remove(lot)
    return share


def _room(space: Space, share: dict[_Lot, int], lot: _Lot) -> int:
    """Return the devices that a lot may have beside those of other lots."""
    candidates = space.candidates
    room = float(candidates.rows[lot[0]].devices - sum(count for (row, _), count in share.items() if row == lot[0]))
    for quota, each in _most_expensive(candidates, lot):
        others = math.fsum(
            count * dict(_most_expensive(candidates, other)).get(quota, 0.0)
            for other, count in share.items()
            if other != lot
        )
        room = min(room, (candidates.quotas[quota].remaining - others) / each)
    return max(0, math.floor(room + 1e-6))


def _most_expensive(candidates: Candidates, lot: _Lot) -> list[tuple[int, float]]:
    """Return the quotas of a lot, each with the most that one of its devices takes."""
    pools = [pool for pool in candidates.pools if (pool.row, pool.offer.market.value) == lot]
    found = []
    for number, quota in enumerate(candidates.quotas):
        each = max(quota.units(pool.offer) / pool.devices for pool in pools)
        if each > 0:
            found.append((number, each))
    return found


def _sizes(space: Space, lot: _Lot) -> list[int]:
    return [pool.devices for pool in space.pools if (pool.row, pool.offer.market.value) == lot]


def _rates(space: Space, lot: _Lot) -> list[float]:
    return [
        rate.expected / pool.devices
        for pool, rate in zip(space.pools, space.rates, strict=True)
        if (pool.row, pool.offer.market.value) == lot
    ]


def _part(space: Space, share: dict[_Lot, int]) -> Space:
    """Return the space whose rows and pools are limited to their shares."""
    kept = [
        index
        for index, pool in enumerate(space.pools)
        if share.get((pool.row, pool.offer.market.value), 0) >= pool.devices
    ]
    pools = tuple(
        replace(pool, max_nodes=min(pool.max_nodes, share[pool.row, pool.offer.market.value] // pool.devices))
        for pool in (space.pools[index] for index in kept)
    )
    rows = tuple(
        replace(row, devices=min(row.devices, sum(count for (number, _), count in share.items() if number == index)))
        for index, row in enumerate(space.candidates.rows)
    )
    return Space(
        scenario=space.scenario,
        candidates=replace(space.candidates, pools=pools, rows=rows),
        tp_degrees=tuple(space.tp_degrees[index] for index in kept),
        rates=tuple(space.rates[index] for index in kept),
        zero_stage=space.zero_stage,
        known=space.known,
        numbers=tuple(space.numbers[index] for index in kept),
        even_layers=space.even_layers,
        even_batches=space.even_batches,
    )
