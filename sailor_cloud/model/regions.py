"""Regions with their location and carbon intensity, and their zones."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sailor_cloud.model.offer import Provider

_EARTH_RADIUS_KM = 6371.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region of a provider. Carbon intensity is that of the grid, in grams of CO2 equivalent per kWh."""

    provider: Provider
    name: str
    location: str
    continent: str
    latitude: float | None
    longitude: float | None
    grid_gco2_per_kwh: float | None
    carbon_free_fraction: float | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A zone and its region; AWS zones have their zone id, which is the same for every account."""

    provider: Provider
    region: str
    name: str


def great_circle_km(src: tuple[float, float], dst: tuple[float, float]) -> float:
    """Return the distance in km between two places, each given by latitude and longitude in degrees."""
    first, second = math.radians(src[0]), math.radians(dst[0])
    half_chord = (
        math.sin((second - first) / 2) ** 2
        + math.cos(first) * math.cos(second) * math.sin(math.radians(dst[1] - src[1]) / 2) ** 2
    )
    return 2 * _EARTH_RADIUS_KM * math.asin(math.sqrt(half_chord))
