"""Loads the catalog from a pricing folder: the shipped one, or one that a user names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

from sailor_cloud import resources
from sailor_cloud.catalog.account import account_quotas
from sailor_cloud.catalog.account.quotas import QuotaLimit, load_rules
from sailor_cloud.catalog.catalog import Catalog
from sailor_cloud.catalog.files import snapshot as snapshots
from sailor_cloud.catalog.files.offer_file import OfferBook, offer_files
from sailor_cloud.catalog.files.tables import (
    Source,
    optional,
    parse_date,
    price,
    records,
)
from sailor_cloud.catalog.machine_types import load_machine_types
from sailor_cloud.catalog.prices import changes
from sailor_cloud.catalog.prices.interruptions import BANDS, Interruptions, InterruptionTable
from sailor_cloud.catalog.prices.services import Service, ServicePrice, Services
from sailor_cloud.catalog.providers import tables
from sailor_cloud.catalog.regions import Region, Zone
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Accelerator, Confidence, Provider

T = TypeVar("T")

_ACCELERATOR_COLUMNS = (
    "name",
    "vendor",
    "memory_gib",
    "peak_tflops_fp32",
    "peak_tflops_tf32",
    "peak_tflops_fp16",
    "peak_tflops_bf16",
    "memory_bandwidth_gb_per_s",
    "nvlink_gb_per_s",
    "pcie_generation",
    "compute_capability",
    "source",
    "confidence",
)
_REGION_COLUMNS = (
    "provider",
    "region",
    "location",
    "continent",
    "latitude",
    "longitude",
    "grid_gco2_per_kwh",
    "carbon_free_fraction",
    "source",
)
_SERVICE_COLUMNS = (
    "provider",
    "region",
    "service",
    "usd_per_unit",
    "unit",
    "as_of_from",
    "as_of_to",
    "source",
    "confidence",
)
_ZONE_COLUMNS = ("provider", "region", "zone")
_INTERRUPTION_COLUMNS = (
    "provider",
    "region",
    "instance_type",
    "monthly_interruption_frequency",
    "savings_over_on_demand_pct",
    "as_of",
    "source",
)


def load(root: Path | None = None, *, pricing: Path | None = None) -> Catalog:
    """Return the catalog of the shipped data with this user's refreshed prices over it.

    `root` names another data folder and `pricing` another pricing folder, by default the user's own where the command
    names one; both leave refreshed prices out, and files that `pricing` lacks come from the one under the root. Raises
    DataError; offers of a folder that is named are looked through here, shipped ones where they are asked for.
    """
    pricing = pricing or (resources.folders().pricing if root is None else None)
    home = root or resources.data_root()
    offers = OfferBook.read(offer_files(home, pricing and _existing(pricing)))
    if root is not None or pricing is not None:
        offers.every()
    refreshed = snapshots.latest() if root is None and pricing is None else None
    if refreshed is not None:
        offers = offers.over(refreshed.offers, withdrawn=refreshed.withdrawn)

    def table(name: str, columns: Sequence[str], build: Callable[..., T]) -> list[T]:
        paths = tables("pricing", name, root=home, named=pricing)
        return [row for path in paths for row in records(path, columns, build)]

    zones = table("zones.csv", _ZONE_COLUMNS, _zone)
    if refreshed is not None:
        zones += [row for path in refreshed.folder.glob("zones.csv") for row in records(path, _ZONE_COLUMNS, _zone)]
    return Catalog(
        offers=offers,
        recorded=partial(changes.recorded, tables("pricing", "price_history.csv", root=home, named=pricing)),
        accelerators=table("accelerators.csv", _ACCELERATOR_COLUMNS, _accelerator),
        zones=zones,
        regions=table("regions.csv", _REGION_COLUMNS, _region),
        services=Services(table("services.csv", _SERVICE_COLUMNS, _service)),
        interruptions=InterruptionTable(table("spot_interruptions.csv", _INTERRUPTION_COLUMNS, _interruptions)),
        sources=table("sources.csv", ("id", "citation", "licence"), _source),
        quotas=_quotas(root, pricing),
        machine_types=load_machine_types(root=home, pricing=pricing),
    )


def load_services(*, pricing: Path | None = None) -> Services:
    """Return the prices of disks, addresses and NAT alone, as `load` finds them but without reading the offers."""
    named = pricing or resources.folders().pricing
    paths = tables("pricing", "services.csv", root=resources.data_root(), named=named)
    return Services(row for path in paths for row in records(path, _SERVICE_COLUMNS, _service))


def _quotas(root: Path | None, pricing: Path | None) -> tuple[QuotaLimit, ...]:
    """Return the limits of the account: those of a pricing folder, else this user's own where no data are named."""
    if pricing is None and root is not None:
        return ()
    path = account_quotas.own_file() if pricing is None else pricing / account_quotas.FILE_NAME
    if not path.is_file():
        return ()
    return account_quotas.limits(account_quotas.read(path), load_rules(root))


def _existing(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; --pricing wants one with files as in pricing/README.md")
    return folder


def _accelerator(
    name: str,
    vendor: str,
    memory_gib: str,
    fp32: str,
    tf32: str,
    fp16: str,
    bf16: str,
    memory_bandwidth: str,
    nvlink: str,
    pcie: str,
    capability: str,
    source: str,
    confidence: str,
) -> Accelerator:
    return Accelerator(
        name=name,
        vendor=vendor,
        memory_gib=float(memory_gib),
        peak_tflops_fp32=optional(fp32),
        peak_tflops_tf32=optional(tf32),
        peak_tflops_fp16=optional(fp16),
        peak_tflops_bf16=optional(bf16),
        memory_bandwidth_gb_per_s=float(memory_bandwidth),
        nvlink_gb_per_s=optional(nvlink),
        pcie_generation=int(pcie) if pcie else None,
        compute_capability=optional(capability),
        source=source,
        confidence=Confidence(confidence),
    )


def _zone(provider: str, region: str, zone: str) -> Zone:
    return Zone(provider=Provider(provider), region=region, name=zone)


def _region(
    provider: str,
    region: str,
    location: str,
    continent: str,
    latitude: str,
    longitude: str,
    carbon: str,
    carbon_free: str,
    source: str,
) -> Region:
    return Region(
        provider=Provider(provider),
        name=region,
        location=location,
        continent=continent,
        latitude=optional(latitude),
        longitude=optional(longitude),
        grid_gco2_per_kwh=optional(carbon),
        carbon_free_fraction=optional(carbon_free),
        source=source,
    )


def _service(
    provider: str,
    region: str,
    service: str,
    usd_per_unit: str,
    unit: str,
    as_of_from: str,
    as_of_to: str,
    source: str,
    confidence: str,
) -> ServicePrice:
    return ServicePrice(
        provider=Provider(provider),
        region=region,
        service=Service(service),
        usd_per_unit=price(usd_per_unit),
        unit=unit,
        as_of_from=parse_date(as_of_from),
        as_of_to=parse_date(as_of_to),
        source=source,
        confidence=Confidence(confidence),
    )


def _interruptions(
    provider: str, region: str, instance_type: str, band: str, saving_pct: str, as_of: str, source: str
) -> Interruptions:
    low, high = BANDS[band]
    return Interruptions(
        provider=Provider(provider),
        region=region,
        instance_type=instance_type,
        low=low,
        high=high,
        saving=float(saving_pct) / 100 if saving_pct else None,
        as_of=parse_date(as_of),
        source=source,
    )


def _source(source_id: str, citation: str, licence: str) -> Source:
    return Source(id=source_id, citation=citation, licence=licence)
