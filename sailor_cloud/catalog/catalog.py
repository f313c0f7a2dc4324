"""The catalog: accelerators, offers, zones and service prices, and queries over them."""

from __future__ import annotations

import copy
import dataclasses
import difflib
import math
from collections.abc import Callable, Collection, Iterable
from datetime import date
from typing import TYPE_CHECKING

from sailor_cloud.catalog import providers
from sailor_cloud.catalog.account.quotas import QuotaLimit
from sailor_cloud.catalog.files.offer_file import OfferBook
from sailor_cloud.catalog.files.tables import Source
from sailor_cloud.catalog.machine_types import MachineType, by_name
from sailor_cloud.catalog.prices.doubts import Doubts
from sailor_cloud.catalog.prices.interruptions import InterruptionTable
from sailor_cloud.catalog.prices.services import Services
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Accelerator, Market, Offer, Provider
from sailor_cloud.model.regions import Region, Zone, great_circle_km

if TYPE_CHECKING:
    from pandas import DataFrame

    from sailor_cloud.catalog.prices.changes import PricePoint
    from sailor_cloud.model.job import Cloud


class Catalog:
    """Everything that can be bought, in the order of offer ids."""

    def __init__(
        self,
        *,
        offers: OfferBook,
        accelerators: Iterable[Accelerator],
        zones: Iterable[Zone],
        regions: Iterable[Region],
        services: Services,
        interruptions: InterruptionTable,
        sources: Iterable[Source],
        recorded: Callable[[], Iterable[PricePoint]],
        quotas: Iterable[QuotaLimit] = (),
        machine_types: Iterable[MachineType] = (),
    ) -> None:
        self.services = services
        self.interruptions = interruptions
        self._quotas = tuple(quotas)
        self._offers = offers
        self._accelerators = {accelerator.name: accelerator for accelerator in accelerators}
        self._zones = {zone.name: zone for zone in zones}
        self._regions = {(region.provider, region.name): region for region in regions}
        self._sources = {source.id: source for source in sources}
        self._machine_types = by_name(machine_types)
        self._doubtful = True
        by_region: dict[tuple[Provider, str], list[str]] = {}
        for zone in self._zones.values():
            by_region.setdefault((zone.provider, zone.region), []).append(zone.name)
        self._doubts = Doubts(offers, by_region, interruptions, recorded)

    def offers(
        self,
        *,
        provider: Provider | None = None,
        zones: Iterable[str] | None = None,
        accelerators: Iterable[str] | None = None,
        markets: Iterable[Market] | None = None,
        instance_types: Iterable[str] | None = None,
        max_usd_per_hour: float | None = None,
        priced_since: date | None = None,
    ) -> tuple[Offer, ...]:
        """Return the offers that meet all given conditions, at the price that plans count, sorted by id.

        `priced_since` keeps offers whose price is of that day or later, by the older of its dates.
        """
        conditions = (
            ("accelerator", None if accelerators is None else frozenset(accelerators)),
            ("market", None if markets is None else frozenset(markets)),
            ("instance_type", None if instance_types is None else frozenset(instance_types)),
            ("provider", None if provider is None else frozenset([provider])),
        )
        wanted = [(name, allowed) for name, allowed in conditions if allowed is not None]
        found = (
            self._doubts.with_counted_price(offer)
            for offer in self._offers.offers_in(zones)
            if all(getattr(offer, name) in allowed for name, allowed in wanted)
        )
        return tuple(
            offer
            for offer in found
            if (max_usd_per_hour is None or offer.usd_per_hour <= max_usd_per_hour)
            and (priced_since is None or offer.as_of_from >= priced_since)
            and (self._doubtful or offer.listed is None)
        )

    def frame(self) -> DataFrame:
        """Return the offers as a pandas frame, one row each, with the columns of the price files, id and `listed`."""
        import pandas

        return pandas.DataFrame([dataclasses.asdict(offer) for offer in self.offers()])

    def offer(self, offer_id: str) -> Offer:
        """Return an offer by its id. Raises DataError."""
        found = self._offers.find(offer_id)
        if found is None:
            raise DataError(f"no offer {offer_id!r} in the catalog; 'sailor-cloud prices list' shows all")
        return self._doubts.with_counted_price(found)

    def on_demand_usd_per_hour(self, offer: Offer) -> float | None:
        """Return the on-demand price of the same node, as in `Doubts.on_demand`; None if it is unknown."""
        found = self._doubts.on_demand(offer)
        return None if found is None else found.usd_per_hour

    def why_not_sold(self, offer: Offer) -> str | None:
        """Return why an offer's type can't be bought in its market at any price, or None if it can."""
        known = self._machine_types.get((offer.provider, offer.instance_type))
        return None if known is None else known.why_not(offer.market)

    def nearest_sold(
        self, zone: str, accelerator: str, market: Market, *, instance_types: Collection[str] | None = None
    ) -> str | None:
        """Return the nearest other zone of the same provider with a price of an accelerator; None if there is none.

        Zones of the same region come first, then the nearest region; ties go by name.
        """
        here = self.zone(zone)
        others = [found for found in self._zones.values() if found.provider is here.provider and found.name != zone]
        for within in (True, False):
            names = [other.name for other in others if (other.region == here.region) is within]
            sold = {
                offer.zone
                for offer in self._offers.offers_in(names)
                if (offer.accelerator, offer.market) == (accelerator, market)
                and (instance_types is None or offer.instance_type in instance_types)
            }
            if sold:
                return min(sold, key=lambda name: (self._distance_km(zone, name), name))
        return None

    def _distance_km(self, src: str, dst: str) -> float:
        """Return the distance of two zones' regions; infinity if a location is unknown."""
        places = []
        for zone in (self._zones[src], self._zones[dst]):
            region = self._regions.get((zone.provider, zone.region))
            if region is None or region.latitude is None or region.longitude is None:
                return math.inf
            places.append((region.latitude, region.longitude))
        return great_circle_km(*places)

    def quotas(self, cloud: Cloud) -> tuple[QuotaLimit, ...]:
        """Return the known limits of the accounts that a job names."""
        return tuple(limit for limit in self._quotas if limit.project == providers.of(limit.provider).account_of(cloud))

    def with_quotas(self, quotas: Iterable[QuotaLimit]) -> Catalog:
        """Return the same catalog for an account with these limits."""
        copied = copy.copy(self)
        copied._quotas = tuple(quotas)
        return copied

    def without_doubtful(self) -> Catalog:
        """Return the same catalog, whose `offers` leaves out those with a doubted price."""
        copied = copy.copy(self)
        copied._doubtful = False
        return copied

    def accelerator(self, name: str) -> Accelerator:
        """Return an accelerator by name. Raises DataError that names close ones."""
        found = self._accelerators.get(name)
        if found is None:
            raise DataError(f"no accelerator {name!r}; {did_you_mean(name, self._accelerators)}")
        return found

    def accelerator_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._accelerators))

    def instance_types(self, provider: Provider | None = None) -> tuple[str, ...]:
        offers = self._offers.offers_in()
        return tuple(sorted({offer.instance_type for offer in offers if provider in (None, offer.provider)}))

    def zones(self, provider: Provider | None = None) -> tuple[str, ...]:
        return tuple(sorted(zone.name for zone in self._zones.values() if provider in (None, zone.provider)))

    def zone(self, name: str) -> Zone:
        """Return a zone by name. Raises DataError that names close ones."""
        found = self._zones.get(name)
        if found is None:
            raise DataError(f"no zone {name!r}; {did_you_mean(name, self._zones)}")
        return found

    def region_of(self, zone: str) -> str:
        """Return the region of a zone. Raises DataError."""
        return self.zone(zone).region

    def regions(self, provider: Provider | None = None) -> tuple[Region, ...]:
        return tuple(self._regions[key] for key in sorted(self._regions) if provider in (None, key[0]))

    def region(self, provider: Provider, name: str) -> Region:
        """Return a region with its location and carbon intensity. Raises DataError."""
        found = self._regions.get((provider, name))
        if found is None:
            names = [key[1] for key in self._regions if key[0] == provider]
            raise DataError(f"no region {name!r} of {provider}; {did_you_mean(name, names)}")
        return found

    def source(self, source_id: str) -> Source:
        """Return the source of an offer or price by its id; a figure that was just read names its API itself."""
        return self._sources.get(source_id) or Source(id=source_id, citation=source_id, licence="figures only")


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that differ from a name only in case or in what follows a hyphen, such as the memory."""
    lower = name.lower()
    same = sorted(match for match in known if match.lower() == lower)
    return same or sorted(match for match in known if match.lower().startswith(f"{lower}-"))


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a hint with the names that begin alike or are close, else all of a short list."""
    close = similar_names(name, known)[:3] or difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    names = sorted(known)
    shown = ", ".join(names[:40])
    return f"known: {shown}" + (f" and {len(names) - 40} more" if len(names) > 40 else "")
