"""Spot under a deadline: a run's observations of spot capacity, and how the policy continues."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from itertools import takewhile

from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.planner.spot_timing import longest_wait, settled_after
from sailor_cloud.provision.bookkeeping import NODE
from sailor_cloud.run.journal import Entry, Event


@dataclass(frozen=True, slots=True, order=True)
class Pool:
    """Spot capacity that comes and goes together: an instance type in a zone."""

    zone: str
    instance_type: str

    @classmethod
    def of(cls, offer: Offer) -> Pool:
        return cls(offer.zone, offer.instance_type)


# Observations of each pool: seconds ago, and whether it had capacity; the newest last.
SpotHistory = Mapping[Pool, Sequence[tuple[float, bool]]]


def spot_history(entries: Iterable[Entry], now: datetime) -> SpotHistory:
    """Return a journal's observations of spot capacity: created nodes, lost nodes, and refusals."""
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


class Kind(StrEnum):
    """The kinds of continuations, in the policy's order of preference."""

    SPOT = "spot"
    WAIT = "wait"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """One way to continue, as the spot policy sees it: `work_s` of training at a price, on some spot `pools`.

    `starts`: whether nodes must start first. `wait_s`: seconds without purchases, until capacity may be back.
    """

    work_s: float
    usd_per_hour: float
    pools: frozenset[Pool]
    starts: bool
    wait_s: float = 0.0

    @property
    def kind(self) -> Kind:
        return Kind.WAIT if self.wait_s else Kind.SPOT if self.pools else Kind.ON_DEMAND


@dataclass(frozen=True, slots=True, kw_only=True)
class SpotOutlook:
    """A run's knowledge of spot capacity under a deadline.

    `on_demand` is the fallback if spot brings nothing; it takes `on_demand_s` from now. `change_over_s` passes between
    an order and training. `trains_on_demand`: whether the plan that trains now has no spot node.
    """

    spot_history: SpotHistory
    remaining_s: float
    change_over_s: float
    on_demand: Continuation
    on_demand_s: float
    margin_s: float
    trains_on_demand: bool

    def is_deadline_safe(self, continuation: Continuation) -> bool:
        """Whether on-demand can still finish in time if a continuation brings nothing until the next check."""
        return (
            continuation.kind is Kind.ON_DEMAND
            or self.on_demand_s + continuation.wait_s + self.margin_s <= self.remaining_s
        )

    def chosen(self, continuations: Collection[Continuation]) -> Kind:
        """Return the kind that the policy chooses among the kinds of these continuations."""
        allowed = {continuation.kind for continuation in continuations if self._allowed(continuation)}
        return next((kind for kind in Kind if kind in allowed), Kind.ON_DEMAND)

    def _allowed(self, continuation: Continuation) -> bool:
        if continuation.kind is Kind.ON_DEMAND or not self.is_deadline_safe(continuation):
            return continuation.kind is Kind.ON_DEMAND
        settled = settled_after(
            continuation.usd_per_hour * continuation.work_s, self.on_demand.usd_per_hour * self.on_demand.work_s
        )
        if continuation.kind is Kind.WAIT:
            waited_s = max(self._absent_s(pool) for pool in continuation.pools)
            slack_s = self.remaining_s - self.on_demand_s + waited_s
            return settled < math.inf and waited_s + continuation.wait_s <= longest_wait(slack_s, self.change_over_s)
        if not self.trains_on_demand:
            return settled < math.inf
        # The age of capacity is unknown before it is bought. It was absent when it was last refused or lost.
        since_s = min(self._found_absent_s(pool) for pool in continuation.pools)
        return since_s >= settled * self.change_over_s

    def _absent_s(self, pool: Pool) -> float:
        """Return the seconds that a pool has been without capacity."""
        absent = [*takewhile(lambda one: not one[1], reversed(self.spot_history.get(pool, ())))]
        return absent[-1][0] if absent else 0.0

    def _found_absent_s(self, pool: Pool) -> float:
        """Return the seconds since a pool was last found without capacity."""
        return next((ago_s for ago_s, there in reversed(self.spot_history.get(pool, ())) if not there), math.inf)
