"""The catalog: accelerators, offers, zones and service prices, and questions about them."""

from __future__ import annotations

import copy
import difflib
import itertools
from collections.abc import Collection, Iterable
from datetime import date
from typing import TYPE_CHECKING

from sailor_cloud.catalog.interruptions import InterruptionTable
from sailor_cloud.catalog.regions import Region, Zone
from sailor_cloud.catalog.services import Services
from sailor_cloud.catalog.tables import Source
from sailor_cloud.errors import DataError
from sailor_cloud.model.offer import Accelerator, Market, Offer, Provider

if TYPE_CHECKING:
    from pandas import DataFrame

    from sailor_cloud.catalog.account_quotas import QuotaLimit


class Catalog:
    """All that can be bought, held as a frame with one row per offer, in the order of offer ids."""

    def __init__(
        self,
        *,
        offers: Iterable[Offer],
        accelerators: Iterable[Accelerator],
        zones: Iterable[Zone],
        regions: Iterable[Region],
        services: Services,
        interruptions: InterruptionTable,
        sources: Iterable[Source],
        quotas: Iterable[QuotaLimit] = (),
    ) -> None:
        self.services = services
        self.interruptions = interruptions
        self._quotas = tuple(quotas)
        self._offers = _in_order(offers)
        self._frame = _frame_of(self._offers)
        self._accelerators = {accelerator.name: accelerator for accelerator in accelerators}
        self._zones = {zone.name: zone for zone in zones}
        self._regions = {(region.provider, region.name): region for region in regions}
        self._sources = {source.id: source for source in sources}

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
        """Return the offers that meet every condition given, sorted by id.

        `priced_since` keeps offers whose price is of that day or younger, counted from the older end of its dates.
        """
        frame = self._frame
        keep = frame["usd_per_hour"].le(float("inf") if max_usd_per_hour is None else max_usd_per_hour)
        if provider is not None:
            keep &= frame["provider"].eq(str(provider))
        for column, wanted in (
            ("zone", zones),
            ("accelerator", accelerators),
            ("market", markets),
            ("instance_type", instance_types),
        ):
            if wanted is not None:
                keep &= frame[column].isin([str(value) for value in wanted])
        if priced_since is not None:
            keep &= frame["as_of_from"].ge(priced_since.isoformat())
        return tuple(self._offers[row] for row in keep.to_numpy().nonzero()[0])

    def offer(self, offer_id: str) -> Offer:
        """Return an offer by its id. Raises DataError."""
        row = self._frame["id"].searchsorted(offer_id)
        if row < len(self._offers) and self._offers[row].id == offer_id:
            return self._offers[row]
        raise DataError(f"no offer {offer_id!r} in the catalog; run 'sailor-cloud prices list' for what there is")

    def quotas(self, *, project: str | None = None) -> tuple[QuotaLimit, ...]:
        """Return the known limits of the account; of those of Google Cloud the ones that were read for a project."""
        wanted = project or ""
        return tuple(limit for limit in self._quotas if limit.provider is not Provider.GCP or limit.project == wanted)

    def with_quotas(self, quotas: Iterable[QuotaLimit]) -> Catalog:
        """Return the same catalog for an account with these limits."""
        twin = copy.copy(self)
        twin._quotas = tuple(quotas)
        return twin

    def accelerator(self, name: str) -> Accelerator:
        """Return an accelerator by name. Raises DataError that names close ones."""
        found = self._accelerators.get(name)
        if found is None:
            raise DataError(f"no accelerator {name!r}; {did_you_mean(name, self._accelerators)}")
        return found

    def accelerator_names(self) -> tuple[str, ...]:
        return tuple(sorted(self._accelerators))

    def instance_types(self, provider: Provider | None = None) -> tuple[str, ...]:
        frame = self._frame if provider is None else self._frame[self._frame["provider"] == str(provider)]
        return tuple(sorted(frame["instance_type"].unique()))

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
        """Return what a `source` of an offer or price stands for; a figure that was just read names its API itself."""
        return self._sources.get(source_id) or Source(id=source_id, citation=source_id, licence="figures only")


def _in_order(offers: Iterable[Offer]) -> tuple[Offer, ...]:
    ordered = sorted(offers, key=lambda offer: offer.id)
    for before, after in itertools.pairwise(ordered):
        if before.id == after.id:
            raise DataError(f"two prices for {after.id}: {before.usd_per_hour} and {after.usd_per_hour} USD/h")
    return tuple(ordered)


def _frame_of(offers: Iterable[Offer]) -> DataFrame:
    import pandas

    return pandas.DataFrame(
        [
            (
                offer.id,
                str(offer.provider),
                offer.zone,
                offer.instance_type,
                offer.accelerator,
                str(offer.market),
                offer.usd_per_hour,
                offer.as_of_from.isoformat(),
            )
            for offer in offers
        ],
        columns=["id", "provider", "zone", "instance_type", "accelerator", "market", "usd_per_hour", "as_of_from"],
    )


def did_you_mean(name: str, known: Collection[str]) -> str:
    """Return a hint that names close names first, then all of a short list."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(repr(match) for match in close)}?"
    names = sorted(known)
    shown = ", ".join(names[:40])
    return f"known: {shown}" + (f" and {len(names) - 40} more" if len(names) > 40 else "")
