"""Capacity that an account has reserved; this program uses it but never buys or cancels it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sailor_cloud.catalog import providers
from sailor_cloud.errors import CredentialsError
from sailor_cloud.model.job import Cloud
from sailor_cloud.model.offer import Provider


class ReservationKind(StrEnum):
    """AWS On-Demand Capacity Reservations and Capacity Blocks, reservations of Compute Engine."""

    ON_DEMAND = "on-demand"
    CAPACITY_BLOCK = "capacity-block"
    GCP = "reservation"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """Reserved instances of a type in a zone, of which `free` are not running; times are None if there is no end.

    `taken_unasked`: on-demand nodes of the type and zone use it automatically. Others must be named.
    """

    provider: Provider
    region: str
    zone: str
    id: str
    kind: ReservationKind
    instance_type: str
    count: int
    free: int
    state: str
    starts_at: datetime | None
    ends_at: datetime | None
    taken_unasked: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """An account's reservations, and what could not be read."""

    rows: tuple[Reservation, ...]
    missing: tuple[str, ...]


def read_reservations(
    places: Iterable[tuple[Provider, str]],
    *,
    cloud: Cloud | None = None,
    progress: Callable[[int, int, str], None] = lambda done, of, what: None,
) -> Reservations:
    """Return the account's reservations in regions of providers; `missing` names refusals."""
    regions: dict[Provider, list[str]] = {}
    for provider, region in places:
        if region and region not in regions.setdefault(provider, []):
            regions[provider].append(region)
    missing: list[str] = []
    rows: list[Reservation] = []
    for done, (provider, names) in enumerate(regions.items()):
        progress(done, len(regions), f"reservations of {provider}")
        try:
            rows += providers.of(provider).reservations(names, cloud or Cloud(), missing)
        except CredentialsError as error:
            missing.append(str(error))
    ordered = sorted(rows, key=lambda row: (row.provider, row.zone, row.instance_type, row.id))
    return Reservations(rows=tuple(ordered), missing=tuple(missing))
