"""Capacity for a job besides spot and on-demand: reservations of its accounts, and offers of clouds."""

from __future__ import annotations

import re
from datetime import datetime

from sailor_cloud.catalog import Catalog
from sailor_cloud.catalog.account.reservations import Reservation, ReservationKind, read_reservations
from sailor_cloud.catalog.providers import of as sold_by
from sailor_cloud.errors import CredentialsError, ProvisionError
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.job import Job
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.provision import providers


def found_capacity(job: Job, catalog: Catalog, days: int, now: datetime) -> tuple[tuple[Capacity, ...], list[str]]:
    """Return the entries for a job's zones and accelerators, and notes on what could not be read.

    Reservations of the account come first. Blocks have as many nodes as the job allows in a zone.
    """
    kinds: dict[tuple[str, str], tuple[Offer, int]] = {}
    for entry in job.resources:
        if not sold_by(entry.provider).reserves:
            continue
        for name, most in entry.accelerators.items():
            for offer in catalog.offers(
                provider=entry.provider, zones=entry.zones, accelerators=[name], instance_types=entry.instance_types
            ):
                if offer.accelerator_count <= most:
                    kinds[offer.zone, offer.instance_type] = (offer, most // offer.accelerator_count)
    places = {(offer.provider, offer.region) for offer, _ in kinds.values()}
    read = read_reservations(sorted(places), cloud=job.cloud)
    held = [_held(row) for row in read.rows if (row.zone, row.instance_type) in kinds and row.free]
    missing, offered = list(read.missing), dict[str, Capacity]()
    regional = {(o.provider, o.region, o.instance_type, nodes): None for o, nodes in kinds.values()}
    for provider, region, instance_type, nodes in sorted(regional):
        try:
            blocks = providers.of(provider).capacity_offers(region, instance_type, nodes, days, now)
        except (CredentialsError, ProvisionError) as error:
            missing.append(str(error))
            continue
        offered |= {block.name: block for block in blocks if (block.zone, block.instance_type) in kinds}
    return (*held, *offered.values()), missing


def _held(row: Reservation) -> Capacity:
    block = row.kind is ReservationKind.CAPACITY_BLOCK
    return Capacity(
        name=re.sub("[^a-z0-9]+", "-", row.id.lower()).strip("-")[:40],
        market=Market.CAPACITY_BLOCK if block else Market.RESERVATION,
        provider=row.provider,
        zone=row.zone,
        instance_type=row.instance_type,
        nodes=row.count if row.starts_at is not None else row.free,
        id=row.id,
        starts_at=row.starts_at if block else None,
        ends_at=row.ends_at,
    )
