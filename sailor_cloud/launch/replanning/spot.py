"""Spot under a deadline: what a run has seen of spot capacity, and what that adds to the price of a way to go on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.planner.spot_timing import (
    IDLE,
    ON_DEMAND,
    LeastExpectedCost,
    Moment,
    SpotTask,
)
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.run.journal import Entry, Event
from sailor_cloud.units import SECONDS_PER_HOUR

# With more time left a step of the expected costs is longer than a change-over, so that they take no second.
_MOST_STEPS = 400


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """Spot capacity that comes and goes together: an instance type in a zone."""

    zone: str
    instance_type: str

    @classmethod
    def of(cls, offer: Offer) -> Pool:
        return cls(offer.zone, offer.instance_type)


# How many seconds ago each pool was found to have capacity, or to have none; the newest last.
Seen = Mapping[Pool, Sequence[tuple[float, bool]]]


def seen(entries: Iterable[Entry], now: datetime) -> Seen:
    """Return what a run's journal says of spot capacity: nodes that came, nodes that were lost, and refusals."""
    pools: dict[str, Pool] = {}
    found: dict[Pool, list[tuple[float, bool]]] = {}

    def note(pool: Pool, entry: Entry, there: bool) -> None:
        found.setdefault(pool, []).append(((now - entry.ts).total_seconds(), there))

    for entry in entries:
        match entry.event:
            case Event.CREATE_INTENDED if entry.resource == NODE and entry.data.get("market") == Market.SPOT:
                pools[entry.key] = Pool(entry.data["zone"], entry.data["instance_type"])
            case Event.CREATED if entry.resource == NODE and entry.key in pools:
                note(pools[entry.key], entry, True)
            case Event.NODES_LOST:
                for pool in {pools[node] for node in entry.data["nodes"] if node in pools}:
                    note(pool, entry, False)
            case Event.NO_CAPACITY:
                rows = (row for row in entry.data.get("refused", ()) if row[3] == Market.SPOT)
                for pool in {Pool(zone, kind) for kind, _, zone, _ in rows}:
                    note(pool, entry, False)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to go on as the policy sees it: training for `work_s` on nodes of a price, `pools` those on spot.

    `starts`: whether nodes have to be started first. `waits`: whether nothing is bought before capacity is back.
    """

    work_s: float
    usd_per_hour: float
    pools: frozenset[Pool]
    starts: bool
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What a run with a deadline expects of spot capacity. `refused` are pools that can't be asked now.

    `pools` are all that the job allows. `spot` is the way with spot nodes that ways without any may lead back to,
    `on_demand` the one that is left where spot brings nothing; it takes `on_demand_s` from now.
    """

    seen: Seen
    pools: frozenset[Pool]
    refused: frozenset[Pool]
    left_s: float
    change_over_s: float
    spot: Way
    on_demand: Way
    on_demand_s: float
    margin_s: float

    def safe(self, way: Way, wait_s: float) -> bool:
        """Tell whether on-demand can still finish in time if a way brings nothing until the next look."""
        on_demand = not way.pools and not way.waits
        return on_demand or self.on_demand_s + wait_s + self.margin_s <= self.left_s

    def risk_usd(self, way: Way) -> float:
        """Return what losses of spot capacity and its return are expected to add to the price of a way.

        It is less than nothing on demand, where spot may take over later. A plan's spot nodes count as one: what takes
        one of them ends the generation.
        """
        spot = way if way.pools else self.spot
        step_s = max(self.change_over_s, self.left_s / _MOST_STEPS)
        task = SpotTask(
            work_s=way.work_s,
            deadline_s=self.left_s,
            change_over_s=step_s,
            spot_usd_per_hour=spot.usd_per_hour * spot.work_s / way.work_s,
            on_demand_usd_per_hour=self.on_demand.usd_per_hour * self.on_demand.work_s / way.work_s,
        )
        types = {pool.instance_type for pool in spot.pools}
        pools = sorted({pool for pool in self.pools if pool.instance_type in types} | spot.pools)
        up = tuple(pool not in self.refused or (pool in way.pools and not way.starts) for pool in pools)
        policy = LeastExpectedCost(task=task)
        for row in self._history(pools, task.tick_s) or [up]:
            policy.see(row)
        choice = IDLE if way.waits else ON_DEMAND
        if way.pools and not way.waits:
            choice = max((index for index, pool in enumerate(pools) if pool in way.pools), key=policy.hazard)
        there = [index for index, one in enumerate(up) if one]
        best = choice if choice >= 0 else min(there, key=lambda index: (policy.hazard(index), index), default=IDLE)
        moment = Moment(
            tick=0,
            time_left=task.ticks,
            work_left=task.work_ticks,
            held=IDLE if way.starts or way.waits else choice,
            starting=0,
            up=up,
        )
        rate = task.on_demand_usd_per_hour if choice == ON_DEMAND else task.spot_usd_per_hour
        start_s = step_s if way.starts or way.waits else 0.0
        plain_usd = rate * (task.work_ticks * task.tick_s + start_s) / SECONDS_PER_HOUR
        return policy.expected_usd(moment, best)(choice) - plain_usd

    def _history(self, pools: Sequence[Pool], tick_s: float) -> list[tuple[bool, ...]]:
        """Return for each tick until now which pools had capacity; what nobody asked about stays as it was."""
        events = sorted(
            ((ago_s, index, there) for index, pool in enumerate(pools) for ago_s, there in self.seen.get(pool, ())),
            key=lambda event: -event[0],
        )
        if not events:
            return []
        return list(_ticks(events, len(pools), tick_s))


def _ticks(events: Sequence[tuple[float, int, bool]], pools: int, tick_s: float) -> Iterator[tuple[bool, ...]]:
    state = [False] * pools
    position = 0
    for tick in range(math.ceil(events[0][0] / tick_s), -1, -1):
        while position < len(events) and events[position][0] >= tick * tick_s:
            state[events[position][1]] = events[position][2]
            position += 1
        yield tuple(state)
