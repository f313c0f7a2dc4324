"""Offers as rows of a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

from sailor_cloud.catalog.providers import of, own_data
from sailor_cloud.catalog.tables import (
    OFFER_COLUMNS,
    OFFER_DEFAULTS,
    parse_date,
    price,
    read_rows,
    records,
    yes_or_no,
)
from sailor_cloud.durable import written
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Confidence, Market, Offer, Provider, ZoneConfidence, offer_id


def sibling_id(offer: Offer, zone: str, market: Market) -> str:
    """Return the name of the offer of the same node in some zone and market."""
    count = str(offer.accelerator_count)
    return offer_id(offer.provider, zone, offer.instance_type, offer.accelerator, count, market.value)


def offer_files(root: Path, pricing: Path | None = None) -> list[Path]:
    """Return the price files of a pricing folder, else those under a data folder and providers' own.

    Raises DataError where there is none.
    """
    named = [] if pricing is None else sorted(pricing.glob("offers/*.csv"))
    shipped = (root / "pricing", *own_data("pricing"))
    files = named or [path for folder in shipped for path in sorted(folder.glob("offers/*.csv"))]
    if not files:
        raise DataError(f"no offers in {root / 'pricing' / 'offers'}; reinstall sailor-cloud")
    return files


def read_offers(path: Path) -> Iterator[Offer]:
    """Yield the offers of one file. Raises DataError with file and line."""
    return records(path, OFFER_COLUMNS, offer_of, OFFER_DEFAULTS)


def offer_rows(path: Path) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield the lines of one file with their number, as text that `offer_of` takes. Raises as `read_rows` does."""
    return enumerate(read_rows(path, OFFER_COLUMNS, OFFER_DEFAULTS), start=2)


def write_offers(path: Path, offers: Iterable[Offer]) -> None:
    """Write offers to a new file, through to the disk; reading it gives them back exactly."""
    with written(path) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(OFFER_COLUMNS)
        writer.writerows(_row(offer) for offer in offers)


def _row(offer: Offer) -> tuple[str, ...]:
    return (
        offer.provider,
        offer.region,
        offer.zone,
        offer.instance_type,
        offer.accelerator,
        str(offer.accelerator_count),
        str(offer.vcpus),
        repr(offer.memory_gib).removesuffix(".0"),
        offer.market.value,
        repr(offer.usd_per_hour),
        offer.as_of_from.isoformat(),
        offer.as_of_to.isoformat(),
        offer.source,
        offer.confidence.value,
        offer.zone_confidence.value,
        "yes" if offer.outlier else "no",
    )


def offer_of(
    provider: str,
    region: str,
    zone: str,
    instance_type: str,
    accelerator: str,
    count: str,
    vcpus: str,
    memory_gib: str,
    market: str,
    usd_per_hour: str,
    as_of_from: str,
    as_of_to: str,
    source: str,
    confidence: str,
    zone_confidence: str,
    outlier: str,
) -> Offer:
    """Return the offer of a line. Raises ValueError or KeyError."""
    return Offer(
        id=offer_id(provider, zone, instance_type, accelerator, count, market),
        provider=Provider(provider),
        region=region,
        zone=zone,
        instance_type=instance_type,
        accelerator=accelerator,
        accelerator_count=int(count),
        vcpus=int(vcpus),
        memory_gib=float(memory_gib),
        market=Market(market),
        usd_per_hour=_price(provider, usd_per_hour),
        as_of_from=parse_date(as_of_from),
        as_of_to=parse_date(as_of_to),
        source=source,
        confidence=Confidence(confidence),
        zone_confidence=ZoneConfidence(zone_confidence),
        outlier=yes_or_no(outlier),
    )


def _price(provider: str, text: str) -> float:
    if text in ("0", "0.0") and of(Provider(provider)).may_be_free:
        return 0.0
    return price(text)
