"""Where the replicas of a block may run: nodes of one size and accelerator, in one zone or several."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

from sailor_cloud.planner.space.space import Space

# With more zones, units of several zones are only whole regions and all zones.
_ZONES_COMBINED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """Nodes of `devices` devices each; each of the `pools` is in one zone and sells up to its number of `nodes`."""

    accelerator: str
    devices: int
    rows: tuple[int, ...]
    pools: tuple[int, ...]
    nodes: tuple[int, ...]

    @property
    def mask(self) -> int:
        """Rows as bits: units that share a row compete for its devices."""
        return sum(1 << row for row in self.rows)

    def blocks(self, nodes_each: int, most: int) -> int:
        """Return how many blocks of `nodes_each` nodes fit, up to `most`; blocks share no nodes.

        In several zones, all blocks divide their replicas among the zones in the same way.
        """
        for blocks in range(min(most, sum(self.nodes) // nodes_each), 0, -1):
            if sum(nodes // blocks for nodes in self.nodes) >= nodes_each:
                return blocks
        return 0


def units(space: Space) -> list[Unit]:
    """Return the units of a space: the cheapest offer for every row and node size."""
    cheapest: dict[tuple[str, int, int], int] = {}
    for index, pool in enumerate(space.pools):
        key = (pool.accelerator.name, pool.devices, pool.row)
        known = cheapest.get(key)
        if known is None or space.rates[index].expected < space.rates[known].expected:
            cheapest[key] = index
    found: list[Unit] = []
    for name, devices in sorted({key[:2] for key in cheapest}):
        there = sorted((key[2], pool) for key, pool in cheapest.items() if key[:2] == (name, devices))
        for together in _areas(space, tuple(row for row, _ in there)):
            chosen = [(row, pool) for row, pool in there if row in together]
            found.append(
                Unit(
                    accelerator=name,
                    devices=devices,
                    rows=tuple(row for row, _ in chosen),
                    pools=tuple(pool for _, pool in chosen),
                    nodes=tuple(space.pools[pool].max_nodes for _, pool in chosen),
                )
            )
    return found


def _areas(space: Space, rows: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return the sets of rows that form units: each row alone, and several zones."""
    found = [(row,) for row in rows]
    if len(rows) <= _ZONES_COMBINED:
        return found + [chosen for count in range(2, len(rows) + 1) for chosen in combinations(rows, count)]
    regions: dict[str, list[int]] = {}
    for row in rows:
        regions.setdefault(space.scenario.catalog.region_of(space.candidates.rows[row].zone), []).append(row)
    several = [tuple(members) for members in regions.values() if 1 < len(members) < len(rows)]
    return found + several + [rows]
