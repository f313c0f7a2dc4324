"""Regions, with where they are and how clean their electricity is, and their zones."""

from __future__ import annotations

from dataclasses import dataclass

from sailor_cloud.model.offer import Provider


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
    """A zone and the region that it is part of; AWS zones go by zone id, which is the same for every account."""

    provider: Provider
    region: str
    name: str
