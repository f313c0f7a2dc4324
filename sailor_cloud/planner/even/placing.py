"""Puts even pipelines on nodes of real zones and judges them exactly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import permutations, product

from sailor_cloud.model.offer import Market
from sailor_cloud.planner.assess import Assessor, Shape
from sailor_cloud.planner.draft import Draft
from sailor_cloud.planner.even.costs import Chain
from sailor_cloud.planner.even.mixes import Mix
from sailor_cloud.planner.even.rings import Group
from sailor_cloud.planner.even.tables import Tables
from sailor_cloud.planner.goals import Figure, Target
from sailor_cloud.planner.packing import pack

# Orders in which zones are filled that are tried at most.
_MOST_ORDERS = 6


@dataclass(slots=True)
class Placing:
    """Judges chains of groups; what was judged before is remembered by the assessor."""

    tables: Tables
    target: Target
    assessor: Assessor = field(init=False)

    def __post_init__(self) -> None:
        self.assessor = Assessor(self.tables.space, self.target)

    def best(self, size: int, replicas: int, chain: Chain) -> Draft | None:
        """Return the best draft of a chain's replicas over zones and markets, or None where none keeps the limits."""
        groups = [self.tables.group(k) for k in chain.kinds]
        return self._best(size, chain.cut, [groups] * replicas)

    def best_mix(self, mix: Mix) -> Draft | None:
        """Return the best draft of pipelines over one cut, or None where none keeps the limits."""
        rows = [[self.tables.group(k) for k in kinds] for count, kinds in mix.pipelines for _ in range(count)]
        return self._best(mix.size, mix.cut, rows)

    def _best(self, size: int, cut: tuple[int, ...], rows: list[list[Group]]) -> Draft | None:
        """Return the best draft over zones and markets. rows: the groups of each pipeline's stages."""
        every = [group for groups in rows for group in groups]
        found: list[tuple[tuple[object, ...], Draft]] = []
        for seats in self._placements(rows):
            for markets in self._markets(every):
                draft = self._draft(size, cut, seats, markets)
                if draft is not None and self.assessor.keeps(draft):
                    found.append((draft.order(), draft))
                    if self.target.goal is Figure.ITERATION_S:
                        # Markets come cheapest first, and no other is faster.
                        break
        if not found:
            return None
        return min(found, key=lambda entry: entry[0])[1]

    def _draft(
        self, size: int, cut: tuple[int, ...], seats: list[tuple[int, ...]], markets: dict[int, Market]
    ) -> Draft | None:
        slots = pack(self.tables.kinds, seats, markets)
        if slots is None:
            return None
        return self.assessor.draft([Shape(slots=row, cut=cut, microbatch_size=size) for row in slots], even=True)

    def _placements(self, rows: list[list[Group]]) -> Iterator[list[tuple[int, ...]]]:
        """Yield the kinds of every pipeline's stages: whole pipelines in zones taken in some order, then the rest."""
        zones = sorted({self._zone(k) for groups in rows for group in groups for k in group.members})
        seen = set()
        tried = 0
        for count in range(1, len(zones) + 1):
            for order in permutations(zones, count):
                if tried == _MOST_ORDERS:
                    return
                tried += 1
                filled = self._fill(rows, order)
                if filled is not None and tuple(sorted(filled)) not in seen:
                    seen.add(tuple(sorted(filled)))
                    yield filled

    def _fill(self, rows: list[list[Group]], zones: tuple[str, ...]) -> list[tuple[int, ...]] | None:
        offered = self.tables.space.candidates.rows
        members = {self.tables.kinds.members[k].row for groups in rows for group in groups for k in group.members}
        free = {row: offered[row].devices for row in members}
        filled: list[tuple[int, ...]] = []
        waiting = rows
        for zone in zones:
            left: list[list[Group]] = []
            for number, groups in enumerate(waiting):
                # Where one pipeline finds no room, an equal one behind it finds none either.
                full = number > 0 and bool(left) and left[-1] == groups == waiting[number - 1]
                taken = None if full else self._take(groups, (zone,), free)
                if taken is None:
                    left.append(groups)
                else:
                    filled.append(taken)
            waiting = left
        for groups in waiting:
            taken = self._take(groups, zones, free)
            if taken is None:
                return None
            filled.append(taken)
        return filled

    def _take(self, groups: list[Group], zones: tuple[str, ...], free: dict[int, int]) -> tuple[int, ...] | None:
        """Take devices of one pipeline, a stage where the one before it stands if it can; None if there is no room."""
        left, chosen, at = dict(free), [], zones[0]
        for group in groups:
            able = [
                k
                for zone in (at, *zones)
                for k in group.members
                if self._zone(k) == zone and left[self.tables.kinds.members[k].row] >= group.tp
            ]
            if not able:
                return None
            chosen.append(able[0])
            left[self.tables.kinds.members[able[0]].row] -= group.tp
            at = self._zone(able[0])
        free.update(left)
        return tuple(chosen)

    def _zone(self, member: int) -> str:
        return self.tables.space.candidates.rows[self.tables.kinds.members[member].row].zone

    def _markets(self, groups: list[Group]) -> Iterator[dict[int, Market]]:
        """Yield where each row buys: one market per accelerator of the groups, every combination."""
        rows = self.tables.space.candidates.rows
        names = sorted({group.accelerator for group in groups})
        there = [
            sorted({pool.offer.market for pool in self.tables.space.pools if pool.accelerator.name == name})
            for name in names
        ]
        for choice in sorted(product(*there), key=lambda chosen: (self._usd(names, chosen), chosen)):
            market = dict(zip(names, choice, strict=True))
            yield {number: market[row.accelerator] for number, row in enumerate(rows) if row.accelerator in market}

    def _usd(self, names: list[str], chosen: tuple[Market, ...]) -> float:
        """Return the price of one device of each accelerator, to rank markets by."""
        space = self.tables.space
        return sum(
            min(
                rate.expected / pool.devices
                for pool, rate in zip(space.pools, space.rates, strict=True)
                if pool.accelerator.name == name and pool.offer.market is market
            )
            for name, market in zip(names, chosen, strict=True)
        )
