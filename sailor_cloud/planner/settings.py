"""Settings: a cut of the layers and a set of kinds, within which pipelines are mixed at a known time of their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray

from sailor_cloud.network import Link
from sailor_cloud.planner.chains import Chain, Lanes, cheapest_chains
from sailor_cloud.planner.columns import Column, Columns, columns_over
from sailor_cloud.planner.fixed_cut import chains_over
from sailor_cloud.planner.kinds import Kinds
from sailor_cloud.planner.link_classes import TYPICAL_PIPELINES, link_classes, ring_usd_per_byte, slowest_link
from sailor_cloud.planner.space import Space
from sailor_cloud.simulator import gradient_sync_s

Floats = NDArray[np.float64]

# Bottlenecks looked at per microbatch size.
BOTTLENECKS = 16
# How much cheaper a row's devices are made to find pipelines that stand in it.
_DISCOUNT = 0.2
# With more rows than this, free chains are priced for a few rows at a time only.
_ROWS_PRICED = 8


# The kinds of a chain, by `Kinds.alike`, and its cut.
FreeChain = tuple[frozenset[tuple[int, int]], tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A cut, the kinds that may be used and the slowest link among them; `bytes_each` are the sums of the
    stages, `sync_usd` their egress per iteration if all zones of the kinds are used."""

    cut: tuple[int, ...]
    members: frozenset[int]
    link: Link
    bytes_each: Floats
    sync_usd: float


@dataclass
class Settings:
    """The settings of a space, and the pipelines known for each cut."""

    kinds: Kinds
    cuts: int
    columns: dict[tuple[int, ...], dict[Chain, Column]] = field(default_factory=dict)
    _syncs: dict[tuple[tuple[int, ...], Link, int], float] = field(default_factory=dict)
    _links: dict[tuple[frozenset[int], int], Link] = field(default_factory=dict)
    # By cut and kinds: of how many columns of the cut these are the ones of the kinds.
    _among: dict[tuple[tuple[int, ...], frozenset[int]], tuple[int, Columns | None]] = field(default_factory=dict)

    @classmethod
    def of(cls, space: Space, *, cuts: int) -> Settings:
        """Return the settings of a space, the same ones for every target: pipelines don't depend on it.

        Those with another number of `cuts` share all that is known of a cut.
        """
        known: dict[int, Settings] = space.remembered.setdefault("settings", {})
        if cuts not in known:
            other = next(iter(known.values()), None)
            known[cuts] = cls(Kinds.of(space), cuts=cuts) if other is None else replace(other, cuts=cuts)
        return known[cuts]

    @cached_property
    def alike(self) -> frozenset[tuple[int, int]]:
        """The kinds, with one name for those that are the same in another zone."""
        return frozenset(self.kinds.alike)

    @cached_property
    def sizes(self) -> list[int]:
        return self.kinds.sizes()

    def every(self) -> list[Setting]:
        """Return every cut that free chains prefer with every set of kinds that may sum their gradients together."""
        classes = [(members, ring_usd_per_byte(self.kinds, members)) for _, members in link_classes(self.kinds)]
        found = []
        for cut in self._cuts():
            table = self._bytes(cut)
            for members, usd_per_byte in classes:
                found.append(
                    Setting(
                        cut=cut,
                        members=members,
                        link=self._link(members, len(cut) - 1),
                        bytes_each=table,
                        sync_usd=float(table.sum()) * usd_per_byte,
                    )
                )
        self._time_sums(found)
        return found

    def sync_s(self, setting: Setting, pipelines: int) -> float:
        """Return the seconds of the longest sum if so many pipelines take part."""
        key = (setting.cut, setting.link, pipelines)
        if key not in self._syncs:
            engine = self.kinds.space.scenario.engine
            each = gradient_sync_s(setting.bytes_each, pipelines, setting.link, engine=engine)
            self._syncs[key] = float(np.max(each))
        return self._syncs[key]

    def _time_sums(self, settings: Sequence[Setting]) -> None:
        """Enter what `sync_s` is asked for first, of all cuts with the same link at once."""
        engine = self.kinds.space.scenario.engine
        by_link: dict[Link, dict[tuple[int, ...], Floats]] = {}
        for setting in settings:
            by_link.setdefault(setting.link, {})[setting.cut] = setting.bytes_each
        for (link, cuts), pipelines in product(by_link.items(), (2, TYPICAL_PIPELINES)):
            each = gradient_sync_s(np.concatenate(list(cuts.values())), pipelines, link, engine=engine)
            begins = np.cumsum([0, *(len(part) for part in cuts.values())])[:-1]
            for cut, seconds in zip(cuts, np.maximum.reduceat(each, begins).tolist(), strict=True):
                self._syncs[cut, link, pipelines] = seconds

    def columns_of(self, setting: Setting) -> Columns | None:
        """Return a cut's columns that use the setting's kinds only; None where there is none."""
        if setting.cut not in self.columns:
            self.columns[setting.cut] = {}
            self.add(setting.cut, {size: self._first_lanes(size, setting.cut) for size in self.sizes})
        known = self.columns[setting.cut]
        key = (setting.cut, setting.members)
        if key not in self._among or self._among[key][0] != len(known):
            chosen = [found for found in known.values() if setting.members.issuperset(found.chain.kinds)]
            self._among[key] = len(known), Columns.of(chosen) if chosen else None
        return self._among[key][1]

    def apart(self, setting: Setting) -> Settings:
        """Return the settings with the columns of one setting's cut that all searches know, free to find more."""
        self.columns_of(setting)
        return replace(self, columns={setting.cut: dict(self.columns[setting.cut])}, _among={})

    def add(self, cut: tuple[int, ...], lanes: Mapping[int, Lanes]) -> bool:
        """Enter the cheapest chains over a cut of some lanes by microbatch size; False if all of them are known.

        Sizes that have lanes have as many each.
        """
        known = self.columns[cut]
        asked = [(times, lanes[size]) for size in lanes if (times := self.kinds.times(size)) and lanes[size].count]
        found = chains_over(self.kinds, [times for times, _ in asked], cut, [each for _, each in asked])
        fresh = [chain for chains in found for chain in chains if chain not in known]
        known.update(zip(fresh, columns_over(self.kinds, cut, fresh), strict=True))
        return bool(fresh)

    def _link(self, members: frozenset[int], stages: int) -> Link:
        """Return the slowest link of a ring, its card shared with the other stages that stand on the node."""
        key = (members, stages)
        if key not in self._links:
            self._links[key] = slowest_link(self.kinds, members, stages=stages)
        return self._links[key]

    def _bytes(self, cut: tuple[int, ...]) -> Floats:
        first = self.kinds.members[0]
        table = self.kinds.space.table(first.pool, first.tp, 1, recompute=False)
        return np.asarray(table.gradient_bytes(np.array(cut[:-1]), np.array(cut[1:])), dtype=np.float64)

    def _cuts(self) -> list[tuple[int, ...]]:
        """Return the cuts that free chains prefer, the most frequent of each number of stages."""
        seen = Counter(cut for _, cut in self._free_chains())
        stages: dict[int, list[tuple[int, ...]]] = {}
        for cut, _ in sorted(seen.items(), key=lambda entry: (-entry[1], entry[0])):
            stages.setdefault(len(cut) - 1, []).append(cut)
        return [cut for count in sorted(stages) for cut in stages[count][: self.cuts]]

    def _free_chains(self) -> list[FreeChain]:
        """Return the chains that are cheapest where any cut is allowed.

        A part of a space that was asked for them has those of its chains that stand in the part, or in zones that are
        like its own.
        """
        return self.known_chains() or self.enter([chain for size in self.sizes for chain in self.free_chains(size)])

    def known_chains(self) -> list[FreeChain]:
        """Return the free chains that are known of this space or of one that it is a part of."""
        for whole, every in self._known_chains():
            found = [entry for entry in every if entry[0] <= self.alike]
            if whole >= self.alike and found:
                return found
        return []

    def enter(self, chains: list[FreeChain]) -> list[FreeChain]:
        """Keep the free chains of all sizes, and return them."""
        self._known_chains().append((self.alike, chains))
        return chains

    def free_chains(self, size: int) -> list[FreeChain]:
        """Return the free chains of one microbatch size."""
        times, names, layers = self.kinds.times(size), self.kinds.alike, self.kinds.space.layers
        assert times is not None
        lanes = self._first_lanes(size, None)
        if not lanes.count:
            return []
        shape = (len(self.kinds), layers + 1, layers + 1)
        chains = [
            chain
            for allowed in self._allowed()
            for chain in cheapest_chains(self.kinds, times, np.broadcast_to(allowed, shape), lanes).chains
        ]
        return [
            (frozenset(names[member] for member in chain.kinds), chain.cut) for chain in chains if chain is not None
        ]

    def _allowed(self) -> list[NDArray[np.bool_]]:
        """Return the stages [first, end) that a chain may be made of; where layers are even, by the shortest ones."""
        space = self.kinds.space
        if not space.even_layers:
            return [space.holding(1, space.layers)]
        return [space.holding(length, length + 1) for length in space.shortest(self.kinds.max_stages)]

    def _known_chains(self) -> list[tuple[frozenset[tuple[int, int]], list[FreeChain]]]:
        space = self.kinds.space
        known: list[tuple[frozenset[tuple[int, int]], list[FreeChain]]]
        known = space.known.searches.setdefault(f"free chains {space.zero_stage}, even {space.even_layers}", [])
        return known

    def _first_lanes(self, size: int, cut: tuple[int, ...] | None) -> Lanes:
        """Return lanes without prices from a master: devices equal, and each row's at a discount."""
        times = self.kinds.times(size)
        assert times is not None
        if cut is None:
            busy = times.compute_s[0]
        else:
            busy = np.stack([times.compute_s[0, :, first, end] for first, end in pairwise(cut)])
        finite = busy[np.isfinite(busy)]
        if not finite.size:
            nothing = np.zeros(0)
            return Lanes(bottleneck_s=nothing, fill_price=nothing, device_price=self._device_prices[:, :0])
        bottleneck = np.geomspace(finite.min() * 1.5, finite.max() * 2.0, BOTTLENECKS)
        every = np.repeat(bottleneck, self._device_prices.shape[1] // BOTTLENECKS)
        return Lanes(bottleneck_s=every, fill_price=0.3 / every, device_price=self._device_prices)

    @cached_property
    def _device_prices(self) -> Floats:
        """The prices of first lanes, [rows, lanes]: for each bottleneck devices equal, and each row's at a discount."""
        rows = len(self.kinds.space.candidates.rows)
        used = sorted({kind.row for kind in self.kinds.members})
        prices = [np.ones(rows)]
        prices += [np.where(np.arange(rows) == row, _DISCOUNT, 1.0) for row in used[:_ROWS_PRICED]]
        return np.tile(np.array(prices).T, BOTTLENECKS)
