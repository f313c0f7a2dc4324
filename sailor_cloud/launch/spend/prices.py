"""The prices of a run besides its nodes: traffic, gateways, addresses and buckets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial

from sailor_cloud import catalog, network
from sailor_cloud.catalog import Services
from sailor_cloud.model.offer import Provider
from sailor_cloud.network import EgressPrice, Network
from sailor_cloud.run.folder import RunFolder
from sailor_cloud.run.state import folders_of


@dataclass(frozen=True, kw_only=True)
class UsagePrices:
    """Prices of one command or controller, read once at first use or before: they rarely change."""

    load_network: Callable[[], Network] = network.load
    load_services: Callable[[], Services] = catalog.load_services

    def read(self) -> None:
        """Read all prices now, so that later changes of files can't end a run. Raises DataError."""
        _ = self.services, self._network

    def between(self, src_zone: str, dst_zone: str) -> tuple[EgressPrice, ...]:
        """Return what each side pays for traffic from one zone to another. Raises MissingPriceError."""
        return self._network.egress(src_zone, dst_zone)

    def first_zone(self, provider: Provider) -> tuple[str, str]:
        """Return region and name of a cloud's first zone; see `bucket_place`."""
        return self._network.first_zone(provider)

    @cached_property
    def services(self) -> Services:
        return self.load_services()

    @cached_property
    def _network(self) -> Network:
        return self.load_network()


def prices_of(folder: RunFolder, shared: UsagePrices | None = None) -> UsagePrices:
    """Return a run's prices: from its own folders if it has some, else `shared` or new ones."""
    own = {name: path for name, path in folders_of(folder).items() if path.is_dir()}
    if not own:
        return shared or UsagePrices()
    pricing = own.get("pricing")
    return UsagePrices(
        load_network=partial(network.load, profiles=own.get("network"), pricing=pricing),
        load_services=partial(catalog.load_services, pricing=pricing),
    )
