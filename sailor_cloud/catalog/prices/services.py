"""Prices of what a run needs besides instances: public addresses, NAT, disks and object storage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from enum import StrEnum

from sailor_cloud.errors import MissingPriceError
from sailor_cloud.model.offer import Confidence, Provider


class Service(StrEnum):
    """`nat-gateway` and `public-address` are hourly; disks and `object-storage` are monthly and per GiB.

    `nat-data` is per GB or GiB, `object-writes` per 1,000 requests that write.
    """

    PUBLIC_ADDRESS = "public-address"
    NAT_GATEWAY = "nat-gateway"
    NAT_DATA = "nat-data"
    DISK_BALANCED = "disk-balanced"
    DISK_SSD = "disk-ssd"
    DISK_HYPERDISK = "disk-hyperdisk"
    OBJECT_STORAGE = "object-storage"
    OBJECT_WRITES = "object-writes"


EVERY_REGION = "*"
# The billing names of boot disks, by the clouds' names of their types; unlisted types count as balanced disks.
BOOT_DISKS = {
    "gp3": Service.DISK_BALANCED,
    "pd-balanced": Service.DISK_BALANCED,
    "hyperdisk-balanced": Service.DISK_HYPERDISK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePrice:
    """A list price; `unit` is hour, GiB-month, GiB, GB or 1000 requests."""

    provider: Provider
    region: str
    service: Service
    usd_per_unit: float
    unit: str
    as_of_from: date
    as_of_to: date
    source: str
    confidence: Confidence


class Services:
    """Service prices by provider, region and service; a provider-wide price applies to every region without its own."""

    def __init__(self, prices: Iterable[ServicePrice]) -> None:
        self._prices = {(price.provider, price.region, price.service): price for price in prices}

    def price(self, provider: Provider, region: str, service: Service) -> ServicePrice:
        """Return the price of a service. Raises MissingPriceError."""
        for place in (region, EVERY_REGION):
            found = self._prices.get((provider, place, service))
            if found is not None:
                return found
        known = sorted({key[1] for key in self._prices if key[0] == provider and key[2] == service})
        where = f"known regions: {', '.join(known)}" if known else f"no region of {provider} has one"
        raise MissingPriceError(f"no price for {service} in {provider} {region}; {where}")

    def all(self) -> tuple[ServicePrice, ...]:
        """Return every price, by provider, region and service."""
        return tuple(self._prices[key] for key in sorted(self._prices))
