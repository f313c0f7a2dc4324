"""The way out of nodes without public addresses: a NAT gateway per region, its address, and what passes through it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from sailor_cloud.catalog import Service, ServicePrice, Services, providers
from sailor_cloud.model.document import CostKind, CostLine
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Offer, Provider
from sailor_cloud.simulator.cost_lines import cost_line
from sailor_cloud.units import GB, GIB

# What a node fetches when it is set up: torch 2.7.1 with its CUDA 12.6 libraries is 2.98 GB of wheels (pip's log of an
# installation from PyPI, 2025-07), deepspeed and the rest a few MB; later releases are taken to be as large. An image
# that has all of it fetches nothing.
SETUP_BYTES = 3.0e9

# Provider and region.
Place = tuple[Provider, str]


def gateways(
    offers: Iterable[Offer], services: Services, network: NetworkAccess
) -> tuple[tuple[ServicePrice, float], ...]:
    """Return what the ways out of some nodes cost by the hour: for each region a gateway and the address that it has.

    Nothing where nodes have addresses of their own. Raises MissingPriceError.
    """
    places = sorted({(offer.provider, offer.region) for offer in offers})
    return tuple(
        (price, price.usd_per_unit)
        for place in places
        if _has_gateway(place, network)
        for service in (Service.NAT_GATEWAY, Service.PUBLIC_ADDRESS)
        for price in (services.price(*place, service),)
    )


def setup_lines(
    offers: Mapping[Offer, int], services: Services, network: NetworkAccess, *, starts: tuple[float, float]
) -> list[CostLine]:
    """Return what the packages of nodes cost on their way through NAT.

    offers: so many nodes of each. starts: how often each node is set up, expected and worst. Left out: the job's data,
    whose size nobody has told, and what is said through the tunnels to the nodes. Raises MissingPriceError.
    """
    nodes = Counter[Place]()
    for offer, count in offers.items():
        nodes[offer.provider, offer.region] += count
    sizes = {
        place: (count * SETUP_BYTES * starts[0], count * SETUP_BYTES * starts[1]) for place, count in nodes.items()
    }
    return _lines(CostKind.ADDRESS, "packages", sizes, services, network)


def checkpoint_nat_lines(
    sizes: Mapping[Place, float], bucket: Place, services: Services, network: NetworkAccess
) -> list[CostLine]:
    """Return what checkpoints cost on their way through NAT; `sizes` are bytes by the region of the nodes.

    Buckets of their own cloud are reached past NAT: those of their own region, on some clouds those of every region.
    """
    passing = {
        place: (nbytes, nbytes)
        for place, nbytes in sizes.items()
        if place[0] is not bucket[0] or (place != bucket and not providers.of(place[0]).nat_free_buckets)
    }
    return _lines(CostKind.CHECKPOINT, "checkpoints", passing, services, network)


def _lines(
    kind: CostKind,
    what: str,
    sizes: Mapping[Place, tuple[float, float]],
    services: Services,
    network: NetworkAccess,
) -> list[CostLine]:
    """Return a line per region; `sizes` are bytes, expected and worst."""
    lines = []
    for place, (expected, worst) in sorted(sizes.items()):
        if _has_gateway(place, network):
            price = services.price(*place, Service.NAT_DATA)
            unit = GIB if price.unit == "GiB" else GB
            told = f"{what} through NAT in {place[1]}"
            lines.append(cost_line(kind, told, price, expected=expected / unit, worst=worst / unit))
    return lines


def _has_gateway(place: Place, network: NetworkAccess) -> bool:
    return network is NetworkAccess.PRIVATE and providers.of(place[0]).bills_services
