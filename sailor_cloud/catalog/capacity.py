"""Capacity other than spot and on-demand: the entries of `capacity.yaml`, as offers with terms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from pydantic import TypeAdapter, ValidationError

from sailor_cloud.catalog import providers
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.job import Job, Resource
from sailor_cloud.model.job_file import faults_of, read_yaml, text_of
from sailor_cloud.model.offer import Confidence, Market, Offer, ZoneConfidence, offer_id
from sailor_cloud.model.untrusted import MOST_JOB_VALUES, check_values

if TYPE_CHECKING:
    from sailor_cloud.catalog.catalog import Catalog

_SOURCE = "capacity.yaml"


def read_capacity(path: Path) -> tuple[Capacity, ...]:
    """Return the entries of a file. Raises RequestError with every fault, each with its place."""
    raw = read_yaml(text_of(path, "capacity file", written_by="import capacity JOB"), origin=str(path))
    check_values(raw, origin=str(path), most=MOST_JOB_VALUES)
    if not isinstance(raw, list):
        raise RequestError(f"capacity file {path} must be a list of entries with name, market, provider, zone, nodes")
    try:
        return TypeAdapter(tuple[Capacity, ...]).validate_python(raw)
    except ValidationError as error:
        raise RequestError(faults_of(error, str(path), Capacity)) from error


def as_yaml(entries: Iterable[Capacity]) -> str:
    """Return the text of a capacity file."""
    documents = [json.loads(entry.model_dump_json(exclude_none=True)) for entry in entries]
    return yaml.safe_dump(documents, sort_keys=False, width=110)


def with_capacity(job: Job, base: Path | None = None) -> Job:
    """Return a job with the content of its capacity file. Raises RequestError if that is wrong or names no zone."""
    named = job.cloud.capacity
    if named is None:
        return job
    entries = read_capacity((base or Path()) / Path(named).expanduser()) if isinstance(named, str) else named
    names = [entry.name for entry in entries]
    problems = [
        Problem(path=f"cloud.capacity: {name}", message="names two entries")
        for name in sorted({name for name in names if names.count(name) > 1})
    ]
    if problems:
        raise RequestError(problems)
    return job.model_copy(update={"cloud": job.cloud.model_copy(update={"capacity": entries})})


def capacity_problems(job: Job, catalog: Catalog) -> Iterator[Problem]:
    """Yield what entries name and the catalog lacks: a zone, or the type's hardware or price."""
    for entry in job.cloud.reserved:
        path = f"cloud.capacity: {entry.name}"
        seller = providers.of(entry.provider)
        if entry.market not in seller.reserves:
            sold = f"it has {', '.join(['on-demand', 'spot', *sorted(seller.reserves)])}"
            yield Problem(path=f"{path}.market", message=f"{entry.provider} has no {entry.market}", hint=sold)
        elif entry.id is None and entry.market not in seller.buys:
            message = f"a {entry.market} of {entry.provider} is used, not bought"
            yield Problem(path=f"{path}.id", message=message, hint="give the name of one that the account has")
        if entry.zone not in catalog.zones(entry.provider):
            yield Problem(path=f"{path}.zone", message=f"{entry.zone!r} is no zone of {entry.provider}")
        elif (like := _similar_offer(entry, catalog)) is None:
            message = f"{entry.instance_type!r} is no instance type of {entry.provider} with an accelerator"
            yield Problem(path=f"{path}.instance_type", message=message)
        elif entry.own_usd_per_hour is None and (like.zone, like.market) != (entry.zone, Market.ON_DEMAND):
            message = f"no on-demand price of {entry.instance_type} is known in {entry.zone}"
            yield Problem(path=path, message=message, hint="give usd_per_hour")


def capacity_offers(job: Job, resource: Resource, zone: str, accelerator: str, catalog: Catalog) -> tuple[Offer, ...]:
    """Return the capacity that an entry of a job's resources allows in a zone, in the order of the file."""
    found = []
    for entry in job.cloud.reserved:
        if entry.zone != zone or not _allows(resource, entry):
            continue
        offer = _offer(entry, catalog)
        if offer is not None and offer.accelerator == accelerator:
            found.append(offer)
    return tuple(found)


def _offer(entry: Capacity, catalog: Catalog) -> Offer | None:
    like = _similar_offer(entry, catalog)
    if like is None:
        return None
    count = str(like.accelerator_count)
    plain = offer_id(entry.provider, entry.zone, entry.instance_type, like.accelerator, count, entry.market)
    offer = replace(
        like,
        id=f"{plain}/{entry.name}",
        zone=entry.zone,
        region=catalog.region_of(entry.zone),
        market=entry.market,
        zone_confidence=ZoneConfidence.SEEN,
        terms=entry.terms,
    )
    own = entry.own_usd_per_hour
    if own is None:
        return offer
    day = entry.as_of or like.as_of_from
    priced = replace(offer, usd_per_hour=own, as_of_from=day, as_of_to=day, source=_SOURCE)
    return replace(priced, confidence=Confidence.STATED, outlier=False, listed=None)


def _similar_offer(entry: Capacity, catalog: Catalog) -> Offer | None:
    """Return an on-demand offer of the type in the same zone, else one of any market and zone."""
    known = catalog.offers(
        provider=entry.provider, markets=[Market.ON_DEMAND], instance_types=[entry.instance_type], zones=[entry.zone]
    ) or catalog.offers(provider=entry.provider, instance_types=[entry.instance_type])
    return known[0] if known else None


def _allows(resource: Resource, entry: Capacity) -> bool:
    if entry.provider != resource.provider or entry.zone not in resource.zones or entry.market not in resource.markets:
        return False
    return resource.instance_types is None or entry.instance_type in resource.instance_types


def groups(job: Job, now: datetime) -> list[tuple[Capacity, ...]]:
    """Return the groups of capacity that are planned together: for each window, all capacity that covers it.

    A window is the start and end of an entry. The first group has no wait and no end. Reservations that a run buys are
    paid for at once, and flex-start queues when nodes are created, so neither of them waits for other capacity.
    """
    times = {
        entry.name: (entry.terms.start_s(now), math.inf if end is None else end)
        for entry in job.cloud.reserved
        if any(_allows(resource, entry) for resource in job.resources)
        if not entry.terms.over(now, entry.market)
        for end in (entry.terms.end_s(now, entry.market),)
    }
    return [
        tuple(
            entry
            for entry in job.cloud.reserved
            if entry.name in times and times[entry.name][0] <= start and times[entry.name][1] >= end
            if times[entry.name][0] == start or entry.id is not None or entry.market is Market.CAPACITY_BLOCK
        )
        for start, end in ((0.0, math.inf), *sorted(set(times.values()) - {(0.0, math.inf)}))
    ]
