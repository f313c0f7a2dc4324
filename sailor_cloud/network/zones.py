"""Zones, as far as traffic between them depends on where they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from sailor_cloud.catalog.regions import great_circle_km
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Provider


class Scope(StrEnum):
    """How far two zones are apart, as far as prices go."""

    SAME_ZONE = "same-zone"
    OTHER_ZONE = "other-zone"
    OTHER_REGION = "other-region"
    OTHER_CLOUD = "other-cloud"


@dataclass(frozen=True, slots=True, kw_only=True)
class ZoneInfo:
    """A zone with the place and, for GCP, the egress group of its region."""

    name: str
    provider: Provider
    region: str
    egress_group: str
    latitude: float | None
    longitude: float | None


def scope_of(src: ZoneInfo, dst: ZoneInfo) -> Scope:
    if src.name == dst.name:
        return Scope.SAME_ZONE
    if src.provider is not dst.provider:
        return Scope.OTHER_CLOUD
    return Scope.OTHER_ZONE if src.region == dst.region else Scope.OTHER_REGION


def distance_km(src: ZoneInfo, dst: ZoneInfo) -> float:
    """Return the great-circle distance between two regions. Raises DataError where a location is not known."""
    if src.latitude is None or src.longitude is None or dst.latitude is None or dst.longitude is None:
        raise DataError(f"the location of {src.region} or {dst.region} is not known")
    return great_circle_km((src.latitude, src.longitude), (dst.latitude, dst.longitude))
