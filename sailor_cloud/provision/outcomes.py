"""Results of a request for the nodes of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sailor_cloud.errors import NotSoldError, QuotaError, StockoutError
from sailor_cloud.model.offer import Market, Provider
from sailor_cloud.provision.access.nodes import ReachableNode
from sailor_cloud.provision.errors.causes import Fault, error_of
from sailor_cloud.provision.errors.rules import Cause
from sailor_cloud.provision.rendering.root import PlacedNode


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """All nodes of the plan, running; `seconds` is how long it took to get them."""

    nodes: tuple[ReachableNode, ...]
    expires_at: datetime
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusedNodes:
    """Nodes of one offer that the cloud refused, and its message."""

    offer: str
    provider: Provider
    region: str
    zone: str
    instance_type: str
    market: Market
    nodes: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{len(self.nodes)} x {self.instance_type} ({self.market}) in {self.zone}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stockout:
    """Zones had no capacity, or don't sell the type.

    Resources of the refused groups are deleted; all other nodes of the plan stay.
    """

    refused: tuple[RefusedNodes, ...]
    fault: Fault
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaHit:
    """The account's quota does not allow the plan; as with a stockout, the other nodes stay.

    `need` is the plan's use of the quota, in the quota's own unit; None if the provider does not name it.
    `whole_region`: the quota refuses all instance types of the region.
    """

    refused: tuple[RefusedNodes, ...]
    fault: Fault
    limit: float | None
    usage: float | None
    need: float | None
    whole_region: bool
    seconds: float


Outcome = Applied | Stockout | QuotaHit


def applied_or_raise(outcome: Outcome) -> Applied:
    """Return the nodes. Raises StockoutError, NotSoldError or QuotaError with the refused offers."""
    match outcome:
        case Stockout():
            listed = ", ".join(str(refused) for refused in outcome.refused)
            kind = NotSoldError if outcome.fault.cause is Cause.NOT_SOLD else StockoutError
            raise kind(f"no {listed}: {error_of(outcome.fault)}", _offers(outcome.refused))
        case QuotaHit():
            regions = sorted({group.region for group in outcome.refused}) if outcome.whole_region else ()
            message = f"{error_of(outcome.fault)}{_numbers(outcome)}"
            raise QuotaError(message, _offers(outcome.refused), regions=regions)
    return outcome


def grouped(nodes: Sequence[PlacedNode], reasons: dict[str, str]) -> tuple[RefusedNodes, ...]:
    """Return the refused nodes by offer; `reasons` has the messages, by node."""
    found = []
    for offer in {placed.offer.id: placed.offer for placed in nodes if placed.node.id in reasons}.values():
        names = tuple(p.node.id for p in nodes if p.offer.id == offer.id and p.node.id in reasons)
        found.append(
            RefusedNodes(
                offer=offer.id,
                provider=offer.provider,
                region=offer.region,
                zone=offer.zone,
                instance_type=offer.instance_type,
                market=offer.market,
                nodes=names,
                message=reasons[names[0]],
            )
        )
    return tuple(found)


def _offers(refused: tuple[RefusedNodes, ...]) -> tuple[str, ...]:
    return tuple(sorted({group.offer for group in refused}))


def _numbers(hit: QuotaHit) -> str:
    known = (("limit", hit.limit), ("in use", hit.usage), ("needed by the plan", hit.need))
    numbers = ", ".join(f"{name} {value:g}" for name, value in known if value is not None)
    return f" ({numbers})" if numbers else ""
