"""What keeping checkpoints costs: object storage by size and time, requests that write, and traffic on the way."""

from __future__ import annotations

from collections import defaultdict

from sailor_cloud.catalog import Service, providers
from sailor_cloud.model.document import CostKind, CostLine
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.model.parts import checkpoint_traffic_part
from sailor_cloud.simulator.cost_lines import cost_line
from sailor_cloud.simulator.gateways import checkpoint_nat_lines
from sailor_cloud.simulator.layout import Layout
from sailor_cloud.units import GB, GIB, HOURS_PER_MONTH, SECONDS_PER_HOUR

# Weights and two moments in fp32.
CHECKPOINT_BYTES_PER_PARAMETER = 12
# Large objects are written in parts, each a request; obstore's default size, assumption.
PART_BYTES = 5.0 * 2**20


def checkpoint_lines(layout: Layout, *, training_hours: float, kept_hours: tuple[float, float]) -> list[CostLine]:
    """Return the lines of a run's checkpoints; nothing where they are kept in a folder, whose disk is on the bill.

    kept_hours: how long the newest ones are kept, expected and worst. They are written by the first pipeline to a
    bucket in the region of the first node of the bucket's cloud, the user's own included, whose region isn't known
    here; from nodes of one cloud to a bucket of another at the price between the first zones of both. Left out:
    reading back (below 10 % of the writes' price), and traffic from local nodes, which no cloud bills.
    """
    store = _store(layout)
    if store is None:
        return []
    provider, region, zone = store
    job = layout.scenario.job
    services = layout.scenario.catalog.services
    sizes = _bytes_by_zone(layout)
    saved, saves = sum(sizes.values()), max(1.0, training_hours * SECONDS_PER_HOUR / job.checkpoint.every)
    storage = services.price(provider, region, Service.OBJECT_STORAGE)
    kept = job.checkpoint.keep * saved / GIB
    writes = saves * (saved / PART_BYTES + sum(seat.tp for seat in layout.pipelines[0])) / 1000.0
    months, worst_months = (hours / HOURS_PER_MONTH for hours in kept_hours)
    kind, what = CostKind.CHECKPOINT, f"{job.checkpoint.keep} checkpoints kept in {provider} {region}"
    requests = services.price(provider, region, Service.OBJECT_WRITES)
    lines = [
        cost_line(kind, what, storage, expected=kept * months, worst=kept * worst_months),
        cost_line(kind, "writing checkpoints", requests, expected=writes, worst=writes),
    ]
    catalog = layout.scenario.catalog
    for src, nbytes in sorted(sizes.items()):
        if not providers.of(catalog.zone(src).provider).bills_services or catalog.region_of(src) == region:
            continue
        moved = saves * nbytes / GB
        for price in layout.scenario.network.egress(src, zone):
            part = checkpoint_traffic_part(src, region, price.payer_zone)
            lines.append(cost_line(kind, part, price, expected=moved, worst=moved))
    by_region: dict[tuple[Provider, str], float] = defaultdict(float)
    for src, nbytes in sizes.items():
        by_region[catalog.zone(src).provider, catalog.region_of(src)] += saves * nbytes
    return lines + checkpoint_nat_lines(by_region, (provider, region), services, job.cloud.network)


def _store(layout: Layout) -> tuple[Provider, str, str] | None:
    """Return provider, region and a zone of it of the bucket, or None where there is none."""
    scenario = layout.scenario
    offers = [scenario.offer(node.offer) for node in layout.plan.nodes]
    place = scenario.job.checkpoint.to
    if place is None:
        home: Offer = offers[0]
        return (home.provider, home.region, home.zone) if providers.of(home.provider).bucket_scheme else None
    scheme, separator, _ = place.partition("://")
    provider = providers.of_buckets(scheme) if separator else None
    if provider is None:
        return None
    near = next((offer for offer in offers if offer.provider is provider), None)
    if near is not None:
        return (provider, near.region, near.zone)
    zones = sorted(zone for zone in scenario.catalog.zones() if scenario.catalog.zone(zone).provider is provider)
    return (provider, scenario.catalog.region_of(zones[0]), zones[0])


def _bytes_by_zone(layout: Layout) -> dict[str, float]:
    sizes: dict[str, float] = {}
    for seat in layout.pipelines[0]:
        parameters = float(seat.table.parameters(seat.stage.first_layer, seat.stage.end_layer)) * seat.tp
        sizes[seat.place.zone] = sizes.get(seat.place.zone, 0.0) + parameters * CHECKPOINT_BYTES_PER_PARAMETER
    return sizes
