"""How often a provider preempts spot instances, if it says so."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date

from sailor_cloud.model.offer import Market, Offer, Provider

# The bands of the AWS Spot Instance Advisor: lowest and highest share of instances interrupted in a month.
BANDS = {
    "<5%": (0.0, 0.05),
    "5-10%": (0.05, 0.10),
    "10-15%": (0.10, 0.15),
    "15-20%": (0.15, 0.20),
    ">20%": (0.20, 1.0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruptions:
    """The share of spot instances of a type that a region preempts in a month is between `low` and `high`.

    `saving` is the provider's figure of how far spot is below on-demand, as a share of on-demand.
    """

    provider: Provider
    region: str
    instance_type: str
    low: float
    high: float
    saving: float | None
    as_of: date
    source: str


class InterruptionTable:
    """Interruptions by provider, region and instance type."""

    def __init__(self, rows: Iterable[Interruptions]) -> None:
        self._rows = {(row.provider, row.region, row.instance_type): row for row in rows}

    def of(self, offer: Offer) -> Interruptions | None:
        """Return how often an offer is preempted; None for on-demand, and if it is unknown."""
        if offer.market is not Market.SPOT:
            return None
        return self._rows.get((offer.provider, offer.region, offer.instance_type))
