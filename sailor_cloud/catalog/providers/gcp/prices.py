"""Reads GCP prices: SKUs from the Cloud Billing Catalog, machine and accelerator types per zone from Compute Engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sailor_cloud.catalog.machine_types import by_name, load_machine_types
from sailor_cloud.catalog.providers.fetched import Fetched, PriceRequest, Progress, Refusal, Shape, make_offer
from sailor_cloud.catalog.providers.gcp.account import GcpAccount, gcp_errors
from sailor_cloud.catalog.providers.gcp.skus import (
    ACCELERATORS,
    Machine,
    attached,
    family_of,
    machine_price,
    part_prices,
)
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.model.regions import Zone

COMPUTE_ENGINE = "services/6F81-5844-456A"
SOURCE = "cloud-billing-catalog"
# Machine types, accelerator types and prices.
_LISTS = 3
_LOCAL_SSD_GIB = 375.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _ZoneTypes:
    machines: list[Machine]
    accelerators: dict[str, int]


def fetch(account: GcpAccount, request: PriceRequest, progress: Progress) -> Fetched:
    """Return the offers of some regions. `missing` names what can't be read; nothing is raised for it."""
    fetched = Fetched()
    zones = _zone_types(account, request.regions, fetched, progress)
    skus = _skus(account, fetched, progress) if zones else []
    if not skus:
        return fetched
    prices, fetched.refused = part_prices(skus)
    types_known = by_name(load_machine_types())
    for zone, types in sorted(zones.items(), key=lambda item: item[0].name):
        if zone.region not in request.known:
            fetched.refused[Refusal.UNKNOWN_REGION] += 1
            continue
        listed = fetched.listed.setdefault(zone, set())
        for machine, accelerator, count in _shapes(types):
            shape = Shape(
                instance_type=machine.name,
                accelerator=ACCELERATORS[accelerator],
                accelerator_count=count,
                vcpus=machine.vcpus,
                memory_gib=machine.memory_gib,
            )
            listed.add((shape.instance_type, shape.accelerator, count))
            known = types_known.get((Provider("gcp"), machine.name))
            for market in (Market.ON_DEMAND, Market.SPOT):
                if known is not None and market not in known.markets:
                    continue
                price = machine_price(machine, accelerator, count, zone.region, market, prices)
                if price is None:
                    fetched.refused[Refusal.NO_PRICE] += 1
                else:
                    day = request.now.date()
                    fetched.offers.append(make_offer(zone, shape, market, price, as_of=day, source=SOURCE))
    return fetched


def sold(account: GcpAccount, offers: Sequence[Offer], missing: list[str]) -> dict[str, bool]:
    """Return by id whether the zones of some offers list their machine and accelerator types."""
    fetched = Fetched()
    regions = frozenset(offer.region for offer in offers)
    zones = _zone_types(account, regions, fetched, lambda what, done, total: None)
    missing += fetched.missing
    listed = {
        zone.name: {(machine.name, ACCELERATORS[card], count) for machine, card, count in _shapes(types)}
        for zone, types in zones.items()
    }
    return {
        offer.id: (offer.instance_type, offer.accelerator, offer.accelerator_count) in listed[offer.zone]
        for offer in offers
        if offer.zone in listed
    }


def _shapes(types: _ZoneTypes) -> Iterator[tuple[Machine, str, int]]:
    for machine in types.machines:
        if machine.accelerator in ACCELERATORS:
            yield machine, machine.accelerator, machine.accelerator_count
        elif not machine.accelerator:
            for accelerator, count in attached(machine, types.accelerators):
                yield machine, accelerator, count


def _zone_types(
    account: GcpAccount, regions: frozenset[str], fetched: Fetched, progress: Progress
) -> dict[Zone, _ZoneTypes]:
    # An incomplete listing counts as nothing: a zone may span pages, and unlisted offers are withdrawn.
    machine_pages: list[tuple[str, Any]] = []
    card_pages: list[tuple[str, Any]] = []
    with gcp_errors("machine types of Compute Engine", fetched.missing), _list_progress(0, progress):
        machine_pages = list(_pages(account.aggregated("MachineTypes"), fetched, progress, "machine types"))
    with gcp_errors("accelerator types of Compute Engine", fetched.missing), _list_progress(1, progress):
        card_pages = list(_pages(account.aggregated("AcceleratorTypes"), fetched, progress, "accelerator types"))
    machines: dict[str, list[Machine]] = {}
    for name, scoped in machine_pages:
        machines.setdefault(name, []).extend(_machines(scoped.machine_types))
    cards: dict[str, dict[str, int]] = {}
    for name, scoped in card_pages:
        known = cards.setdefault(name, {})
        known.update((kind.name, kind.maximum_cards_per_instance) for kind in scoped.accelerator_types)
    zones: dict[Zone, _ZoneTypes] = {}
    for name in sorted(set(machines) & set(cards)):
        zone = Zone(provider=Provider("gcp"), region=name.rpartition("-")[0], name=name)
        if not regions or zone.region in regions:
            zones[zone] = _ZoneTypes(machines=machines[name], accelerators=cards[name])
    if machines and cards:
        for region in sorted(regions - {zone.region for zone in zones}):
            fetched.missing.append(f"gcp {region}: Compute Engine lists no zone of it")
    return zones


@contextmanager
def _list_progress(index: int, progress: Progress) -> Iterator[None]:
    """Report how many of the lists are read; none of them has a known length."""
    progress("gcp lists", index, _LISTS)
    try:
        yield
    finally:
        progress("gcp lists", index + 1, _LISTS)


def _pages(listing: Iterable[Any], fetched: Fetched, progress: Progress, what: str) -> Iterator[tuple[str, Any]]:
    for done, (scope, scoped) in enumerate(listing, start=1):
        progress(f"gcp {what}", done, None)
        zone = scope.removeprefix("zones/")
        if scoped.warning.code == "UNREACHABLE":
            fetched.missing.append(f"gcp {zone}: {what} ({scoped.warning.message or 'zone unreachable'})")
        elif zone != scope:
            yield zone, scoped


def _machines(types: Iterable[Any]) -> Iterator[Machine]:
    for kind in types:
        if family_of(kind.name) is None:
            continue
        own = kind.accelerators[0] if kind.accelerators else None
        yield Machine(
            name=kind.name,
            vcpus=kind.guest_cpus,
            memory_gib=kind.memory_mb / 1024,
            accelerator=own.guest_accelerator_type if own else "",
            accelerator_count=own.guest_accelerator_count if own else 0,
            local_ssd_gib=_LOCAL_SSD_GIB * kind.bundled_local_ssds.partition_count,
        )


def _skus(account: GcpAccount, fetched: Fetched, progress: Progress) -> list[Any]:
    skus: list[Any] = []
    with gcp_errors("prices of the Cloud Billing Catalog", fetched.missing), _list_progress(2, progress):
        for sku in account.skus(COMPUTE_ENGINE):
            skus.append(sku)
            if len(skus) % 500 == 0:
                progress("gcp prices", len(skus), None)
        return skus
    return []  # half a list could price a machine without its more expensive parts
