"""Layouts and nodes as text: 'tp=4 pp=2 dp=4 microbatch=1' and '4 x a2-highgpu-8g@us-central1-a'."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from sailor_cloud.catalog import Catalog
from sailor_cloud.catalog.catalog import did_you_mean
from sailor_cloud.errors import DataError, Problem, RequestError
from sailor_cloud.model.offer import Hardware, Market, Offer, Provider
from sailor_cloud.model.plan import PipelineSchedule, Plan, Recompute
from sailor_cloud.simulator.degrees import LAYOUT, NODES, Degrees, NodeGroup, plan_of_degrees, problems_without_nodes
from sailor_cloud.simulator.scenario import Scenario

_NUMBERS = ("tp", "pp", "dp", "microbatch", "zero", "chunks")
_RECOMPUTE, _SCHEDULE = "recompute", "schedule"
_RECOMPUTED = {kind.name.lower(): kind for kind in Recompute}
_SCHEDULES = {each.value: each for each in PipelineSchedule}
# The degrees that are not numbers, with their choices.
_CHOICES = {_RECOMPUTE: tuple(_RECOMPUTED), _SCHEDULE: tuple(_SCHEDULES)}
_GROUP = re.compile(
    r"(?P<count>\d+)\s*x\s*(?P<type>[^\s@:/]+)(?::(?P<devices>[^\s@:/]+))?@(?P<zone>[^\s@:/]+)(?:/(?P<market>[^\s@:/]+))?"
)
_DEVICES = re.compile(r"(?P<count>[1-9]\d*)x(?P<accelerator>.+)")
_FORM = "write COUNT x TYPE@ZONE, as '4 x a2-highgpu-8g@us-central1-a', with /spot behind it for the spot price"


def given_plan(layout: str, nodes: Sequence[str], scenario: Scenario) -> tuple[Plan, Scenario]:
    """Return the plan of a layout on nodes, and the scenario with the nodes' hardware.

    Raises RequestError with all faults of both.
    """
    degrees, problems = parse_layout(layout)
    groups: tuple[NodeGroup, ...] = ()
    try:
        groups = parse_nodes(nodes, scenario.catalog)
    except RequestError as error:
        problems += error.problems
        problems += problems_without_nodes(degrees, scenario) if degrees else ()
    if degrees is not None and groups:
        try:
            plan = plan_of_degrees(degrees, groups, scenario)
        except RequestError as error:
            problems += error.problems
    if problems:
        raise RequestError(problems)
    used = {group.hardware.id: group.hardware for group in groups}
    offers = {name: hardware for name, hardware in used.items() if isinstance(hardware, Offer)}
    unpriced = {name: hardware for name, hardware in used.items() if name not in offers}
    return plan, replace(scenario, offers=offers, unpriced=unpriced)


def parse_layout(text: str) -> tuple[Degrees | None, list[Problem]]:
    """Return the degrees in a text such as 'tp=4 pp=2 dp=4 microbatch=1 zero=1 recompute=full', and every wrong word.

    Commas are allowed between the words. The degrees are None if a number is wrong.
    """
    problems: list[Problem] = []
    words: dict[str, str] = {}
    for word in text.replace(",", " ").split():
        name, _, value = word.partition("=")
        if fault := f"{name} is given twice" if name in words else _fault(word, name, value):
            problems.append(Problem(path=LAYOUT, message=fault))
        words.setdefault(name, value)
    try:
        numbers = {name: int(value) for name, value in words.items() if name in _NUMBERS}
    except ValueError:
        return None, problems
    degrees = Degrees(
        tp=numbers.get("tp", 1),
        pp=numbers.get("pp", 1),
        dp=numbers.get("dp"),
        microbatch_size=numbers.get("microbatch", 1),
        zero_stage=numbers.get("zero"),
        recompute=_RECOMPUTED.get(words.get(_RECOMPUTE, "none"), Recompute.NONE),
        schedule=_SCHEDULES.get(words.get(_SCHEDULE, ""), PipelineSchedule.ONE_F_ONE_B),
        chunks=numbers.get("chunks"),
    )
    return degrees, problems


def _fault(word: str, name: str, value: str) -> str:
    if name in _CHOICES:
        known = ", ".join(f"{name}={choice}" for choice in _CHOICES[name])
        return "" if value in _CHOICES[name] else f"{word!r} is not one of {known}"
    if name not in _NUMBERS:
        return f"{word!r} is not a degree; known: {', '.join([*_NUMBERS, *_CHOICES])}"
    return (
        "" if re.fullmatch(r"\d{1,6}", value) else f"{word!r} needs a whole number of at most six digits, as {name}=2"
    )


def parse_nodes(texts: Sequence[str], catalog: Catalog) -> tuple[NodeGroup, ...]:
    """Return groups of nodes from texts: COUNT x TYPE@ZONE, with /spot for the spot price.

    TYPE is an instance type, TYPE:NxACCELERATOR one with these devices, and NxACCELERATOR a machine without a name. The
    last has no price, nor has the second if the catalog lacks an offer. Raises RequestError with every wrong group.
    """
    if not texts:
        raise RequestError([Problem(path=NODES, message="is empty", hint=_FORM)])
    problems, groups = [], []
    for place, text in enumerate(texts):
        try:
            groups.append(_group(text, catalog))
        except DataError as error:
            problems.append(Problem(path=f"{NODES}[{place}]", message=str(error)))
    if problems:
        raise RequestError(problems)
    return tuple(groups)


def _group(text: str, catalog: Catalog) -> NodeGroup:
    found = _GROUP.fullmatch(text.strip())
    if found is None:
        raise DataError(f"{text!r} is not a group of nodes; {_FORM}")
    if int(found["count"]) < 1:
        raise DataError(f"{text!r} is no node")
    zone = catalog.zone(found["zone"])
    count, name, market = int(found["count"]), found["type"], _market(found["market"])
    alone = _DEVICES.fullmatch(name)
    devices = _devices(found["devices"], catalog) if found["devices"] else None
    if alone is not None and devices is None and alone["accelerator"] in catalog.accelerator_names():
        return NodeGroup(
            count=count, hardware=_unpriced(name, _devices(name, catalog), zone.provider, zone.name, catalog)
        )
    offers = catalog.offers(provider=zone.provider, zones=[zone.name], instance_types=[name])
    if devices is not None:
        offers = tuple(offer for offer in offers if (offer.accelerator_count, offer.accelerator) == devices)
        if not offers and market is None:
            return NodeGroup(count=count, hardware=_unpriced(name, devices, zone.provider, zone.name, catalog))
    return NodeGroup(count=count, hardware=_offer(offers, name, zone.name, market, catalog, zone.provider))


def _market(name: str | None) -> Market | None:
    if name is None:
        return None
    try:
        return Market(name)
    except ValueError:
        raise DataError(f"no market {name!r}; known: {', '.join(Market)}") from None


def _devices(text: str, catalog: Catalog) -> tuple[int, str]:
    found = _DEVICES.fullmatch(text)
    if found is None:
        raise DataError(f"{text!r} names no devices; write NxACCELERATOR, as 8xA100-40")
    return int(found["count"]), catalog.accelerator(found["accelerator"]).name


def _unpriced(name: str, devices: tuple[int, str], provider: Provider, zone: str, catalog: Catalog) -> Hardware:
    count, accelerator = devices
    return Hardware(
        id=f"{provider}/{zone}/{name}/{count}x{accelerator}",
        provider=provider,
        region=catalog.region_of(zone),
        zone=zone,
        instance_type=name,
        accelerator=accelerator,
        accelerator_count=count,
    )


def _offer(
    offers: Sequence[Offer], name: str, zone: str, market: Market | None, catalog: Catalog, provider: Provider
) -> Offer:
    """Return the matching offer: on demand if no market is named and that price exists."""
    if not offers:
        elsewhere = catalog.offers(provider=provider, instance_types=[name])
        if not elsewhere:
            raise DataError(f"no instance type {name!r} of {provider}; {_like(name, catalog, provider)}")
        raise DataError(
            f"no price of {name} in {zone}; {_nearest(elsewhere, zone, market, catalog)}, and "
            f"{name}:{_kinds(elsewhere)[0]}@{zone} names a machine with its devices and without a price"
        )
    kinds = _kinds(offers)
    if len(kinds) > 1:
        raise DataError(f"{name} in {zone} carries {', '.join(kinds)}; name one, as {name}:{kinds[0]}@{zone}")
    by_market = {offer.market: offer for offer in offers}
    if market is None:
        market = Market.ON_DEMAND if Market.ON_DEMAND in by_market else offers[0].market
    if market not in by_market:
        raise DataError(f"no {market} price of {name} in {zone}; known: {', '.join(by_market)}")
    return by_market[market]


def _nearest(elsewhere: Sequence[Offer], zone: str, market: Market | None, catalog: Catalog) -> str:
    """Return a text on the nearest zone that sells a type; on demand, if no market is named and one does."""
    markets = sorted({offer.market for offer in elsewhere}) if market is None else [market]
    markets.sort(key=lambda each: each is not Market.ON_DEMAND)
    kind = elsewhere[0]
    found = (
        catalog.nearest_sold(zone, kind.accelerator, each, instance_types=[kind.instance_type]) for each in markets
    )
    name = next(filter(None, found), None)
    return f"the nearest zone with one is {name}" if name else f"no zone has one {market}"


def _kinds(offers: Sequence[Offer]) -> list[str]:
    return sorted({f"{offer.accelerator_count}x{offer.accelerator}" for offer in offers})


def _like(name: str, catalog: Catalog, provider: Provider) -> str:
    """Return similar names: of accelerators if the name counts devices."""
    counted = _DEVICES.fullmatch(name)
    if counted is not None:
        return f"of accelerators {did_you_mean(counted['accelerator'], catalog.accelerator_names())}"
    return did_you_mean(name, catalog.instance_types(provider))
