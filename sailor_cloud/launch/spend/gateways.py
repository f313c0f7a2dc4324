"""The hourly cost of gateways of private networks, which a run pays in addition to its nodes.

Their times come from the journal, so every rewrite of the books gives the same amounts.
"""

from __future__ import annotations

from collections.abc import Iterable

from sailor_cloud.catalog import Service
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.model.offer import Provider
from sailor_cloud.model.provider import names
from sailor_cloud.provision import providers
from sailor_cloud.run.journal import Entry
from sailor_cloud.run.ledger import Ledger
from sailor_cloud.run.state import ResourceState, fold
from sailor_cloud.simulator import service_kind, service_part


def charge_gateways(ledger: Ledger, entries: Iterable[Entry], prices: UsagePrices) -> None:
    """Charge every gateway from its creation, or its request if no creation was recorded, until its end."""
    for row in fold(entries).resources:
        since = row.created_at or (row.intended_at if row.live else None)
        for service in _services(row) if since is not None else ():
            assert since is not None
            key = f"{row.resource}/{row.key}/{service}"
            place = Provider(row.data["provider"]), row.data["region"]
            price = prices.services.price(*place, service)
            ledger.open_item(
                key,
                kind=service_kind(service),
                what=f"{service} in {place[1]}",
                part=service_part(service),
                usd_per_hour=price.usd_per_unit,
                since=since,
                price_source=price.source,
                price_as_of=price.as_of_from,
            )
            if row.gone_at is not None:
                ledger.close_item(key, at=row.gone_at)


def _services(row: ResourceState) -> tuple[Service, ...]:
    """Return the services that a resource is billed as; addresses of nodes are charged with their nodes."""
    provider = row.data.get("provider")
    return providers.of(provider).hourly_services(row.resource, row.key) if provider in names() else ()
