"""The results of a provider's price APIs, and why some rows are refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from enum import StrEnum

from sailor_cloud.model.job import Cloud
from sailor_cloud.model.offer import Confidence, Market, Offer, ZoneConfidence, offer_id
from sailor_cloud.model.regions import Zone

# Called with what is being read, how much of it is done and, if known, the total.
Progress = Callable[[str, int, int | None], None]


class Refusal(StrEnum):
    """Why a row from an API is refused."""

    ZERO_PRICE = "price is zero"
    BELOW_ONE_PERCENT = "spot price under 1 % of on-demand"
    ABOVE_ON_DEMAND = "spot price above on-demand"
    TOO_OLD = "older than 90 days"
    OLDER_THAN_KNOWN = "older than the price that is known"
    IMPLAUSIBLE = "far from what the accelerator costs anywhere"
    INCOMPLETE = "a field is missing"
    UNKNOWN_SKU = "unknown SKU of an accelerator"
    UNKNOWN_TYPE = "unknown instance type"
    UNKNOWN_REGION = "unknown region"
    NO_PRICE = "no price for a part of the instance"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """An instance type with its accelerators."""

    instance_type: str
    accelerator: str
    accelerator_count: int
    vcpus: int
    memory_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceRequest:
    """Which of a provider's prices to read: those of some `regions`, of all if none is named.

    `known` are the regions of the catalog, `shapes` its instance types with a single kind of accelerator.
    """

    regions: frozenset[str]
    known: frozenset[str]
    shapes: Mapping[str, Shape]
    cloud: Cloud
    now: datetime


@dataclass(slots=True)
class Fetched:
    """Offers read from one provider.

    `listed` holds the shapes of every zone whose list of types was read completely; offers outside it are withdrawn.
    `unreachable` has the host and the reason of those entries of `missing` whose host did not answer.
    """

    offers: list[Offer] = field(default_factory=list)
    refused: Counter[Refusal] = field(default_factory=Counter)
    missing: list[str] = field(default_factory=list)
    unreachable: dict[str, tuple[str, str]] = field(default_factory=dict)
    listed: dict[Zone, set[tuple[str, str, int]]] = field(default_factory=dict)


def make_offer(zone: Zone, shape: Shape, market: Market, usd_per_hour: float, *, as_of: date, source: str) -> Offer:
    """Return an offer with a price that was read from the zone's provider on a day."""
    name = offer_id(
        zone.provider, zone.name, shape.instance_type, shape.accelerator, str(shape.accelerator_count), market.value
    )
    return Offer(
        id=name,
        provider=zone.provider,
        region=zone.region,
        zone=zone.name,
        instance_type=shape.instance_type,
        accelerator=shape.accelerator,
        accelerator_count=shape.accelerator_count,
        vcpus=shape.vcpus,
        memory_gib=shape.memory_gib,
        market=market,
        usd_per_hour=round(usd_per_hour, 9),
        as_of_from=as_of,
        as_of_to=as_of,
        source=source,
        confidence=Confidence.HIGH,
        zone_confidence=ZoneConfidence.SEEN,
    )


def shapes_of(offers: Iterable[Offer]) -> Mapping[str, Shape]:
    """Return the shape of every instance type with only one kind of accelerator, by instance type."""
    return {
        offer.instance_type: Shape(
            instance_type=offer.instance_type,
            accelerator=offer.accelerator,
            accelerator_count=offer.accelerator_count,
            vcpus=offer.vcpus,
            memory_gib=offer.memory_gib,
        )
        for offer in offers
    }
