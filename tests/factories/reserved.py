"""Capacity with terms for tests: entries of a capacity file, and offers of them."""

from __future__ import annotations

from dataclasses import replace

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Market, Offer


def entry(name: str = "cb1", **changes: object) -> Capacity:
    """A block of two nodes on AWS for a day, unless changed."""
    values: dict[str, object] = {
        "name": name,
        "market": "capacity-block",
        "provider": "aws",
        "zone": "use1-az6",
        "instance_type": "g4dn.xlarge",
        "nodes": 2,
        "usd": 48.0,
        "as_of": "2026-11-20",
        "starts_at": "2026-12-01T11:30:00Z",
        "ends_at": "2026-12-02T11:30:00Z",
    }
    values |= changes
    return Capacity.model_validate({key: value for key, value in values.items() if value is not None})


def reservation(name: str = "odcr", **changes: object) -> Capacity:
    """An On-Demand Capacity Reservation that the run buys."""
    return entry(name, market="reservation", usd=None, starts_at=None, ends_at=None, **changes)


def reserved_offer(of: Capacity, *, like: Offer = AWS_OFFERS[1]) -> Offer:
    """The offer of an entry, at its own price or that of the offer that it is like."""
    own = of.own_usd_per_hour
    return replace(
        like,
        id=f"{like.id}-{of.name}",
        market=Market(of.market),
        terms=of.terms,
        usd_per_hour=like.usd_per_hour if own is None else own,
    )


def aws_reserved_document() -> PlanDocument:
    """Nodes in a block and in a reservation that the run buys, and one in a block that the account has."""
    held = entry("held", usd=None, id="cr-0123456789abcdef0")
    offers = [reserved_offer(one) for one in (entry(), reservation(), held)]
    return cloud_document(*((f"n{number}", offer) for number, offer in enumerate(offers)), image=None)


def gcp_entry(name: str, market: str, **changes: object) -> Capacity:
    """Capacity of one A100 in us-central1-a."""
    place = {"provider": "gcp", "zone": "us-central1-a", "instance_type": "a2-highgpu-1g", "starts_at": None}
    return entry(name, **{**place, "usd": None, "ends_at": None, "market": market, **changes})


def gcp_reserved_document() -> PlanDocument:
    """A flex-start node, one in a reservation, and one in a reservation of calendar mode, which has an end."""
    calendar = gcp_entry("calendar", "reservation", id="calendar-1", ends_at="2026-12-02T11:30:00Z")
    offers = [
        reserved_offer(one, like=GCP_OFFERS[0])
        for one in (gcp_entry("flex", "flex-start"), gcp_entry("standing", "reservation", id="team-a100"), calendar)
    ]
    return cloud_document(*((f"n{number}", offer) for number, offer in enumerate(offers)), image=None)
