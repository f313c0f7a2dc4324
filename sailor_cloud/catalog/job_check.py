"""Checks the names in a job's resources against the catalog."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from pydantic import ValidationError

from sailor_cloud.catalog import providers
from sailor_cloud.catalog.capacity import capacity_problems
from sailor_cloud.catalog.catalog import Catalog, did_you_mean
from sailor_cloud.errors import Problem
from sailor_cloud.model.job import Job, Resource
from sailor_cloud.model.provider import CLUSTERS
from sailor_cloud.resources import folders


def resource_problems(job: Job, catalog: Catalog) -> list[Problem]:
    """Return every zone, accelerator and instance type that a job names and the provider lacks."""
    return [
        *(
            problem
            for index, resource in enumerate(job.resources)
            for problem in _problems(f"resources[{index}]", resource, catalog)
        ),
        *capacity_problems(job, catalog),
    ]


def unknown_names(raw: Any, origin: str, catalog: Catalog) -> list[Problem]:
    """Return the unknown names in the resources of a job file of which other fields are wrong."""
    entries = raw.get("resources") if isinstance(raw, dict) else None
    return [
        problem
        for index, entry in enumerate(entries if isinstance(entries, list) else ())
        if (resource := _readable(entry)) is not None and resource.provider not in CLUSTERS
        for problem in _problems(f"{origin}: resources[{index}]", resource, catalog)
    ]


def _readable(entry: Any) -> Resource | None:
    """Return an entry of a job's resources without its wrong fields; None if it needs one of them."""
    try:
        return Resource.model_validate(entry)
    except ValidationError as error:
        wrong = {fault["loc"][0] for fault in error.errors() if fault["loc"]}
    if not isinstance(entry, dict) or not wrong & entry.keys():
        return None
    return _readable({name: value for name, value in entry.items() if name not in wrong})


def _problems(path: str, resource: Resource, catalog: Catalog) -> Iterator[Problem]:
    provider = resource.provider
    zones = catalog.zones(provider)
    elsewhere = {zone: catalog.zone(zone).provider for zone in catalog.zones()}
    for index, zone in enumerate(resource.zones):
        if zone in zones:
            continue
        if zone in elsewhere:
            message = f"{zone!r} is a zone of {elsewhere[zone]}, not of {provider}"
            yield Problem(path=f"{path}.zones[{index}]", message=message)
        else:
            hint = providers.of(provider).zone_hint(zone, map(catalog.zone, zones))
            yield _unknown(f"{path}.zones[{index}]", zone, f"zone of {provider}", zones, hint)
    here = catalog.offers(provider=provider, zones=resource.zones)
    sold = {offer.market for offer in here}
    if not any(market in sold or market.has_terms for market in resource.markets):
        # Parsing all prices of a provider takes a while.
        sold = {offer.market for offer in catalog.offers(provider=provider)}
        if sold.isdisjoint(resource.markets) and sold:
            hint = f"markets: [{', '.join(sorted(sold))}]"
            message = f"{provider} does not sell on {resource.markets[0]}"
            yield Problem(path=f"{path}.markets", message=message, hint=hint)
    unknown = set(resource.accelerators) - {offer.accelerator for offer in here}
    offered = {offer.accelerator for offer in catalog.offers(provider=provider)} if unknown else set()
    for accelerator in resource.accelerators:
        if accelerator in unknown - offered:
            what = f"accelerator offered by {provider}{_source()}"
            yield _unknown(f"{path}.accelerators.{accelerator}", accelerator, what, offered)
    absent = set(resource.instance_types or ()) - {offer.instance_type for offer in here}
    types = catalog.instance_types(provider) if absent else ()
    for index, instance_type in enumerate(resource.instance_types or ()):
        if instance_type in absent and instance_type not in types:
            what = f"instance type of {provider} with an accelerator{_source()}"
            yield _unknown(f"{path}.instance_types[{index}]", instance_type, what, types)


def _source() -> str:
    """Return where the offers come from, if that is the user's own folder, which may have few."""
    pricing = folders().pricing
    return "" if pricing is None else f" in {pricing}, whose offers replace the shipped ones"


def _unknown(path: str, name: str, what: str, known: Collection[str], hint: str = "") -> Problem:
    return Problem(path=path, message=f"{name!r} is not a known {what}", hint=hint or did_you_mean(name, known))
