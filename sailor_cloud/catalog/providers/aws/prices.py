"""Reads AWS prices: on-demand from the Price List, spot from the spot price history, zones from the offerings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from sailor_cloud.catalog.providers.aws.account import AwsAccount, aws_errors
from sailor_cloud.catalog.providers.fetched import Fetched, PriceRequest, Progress, Refusal, Shape, make_offer
from sailor_cloud.model.offer import Market, Offer, Provider
from sailor_cloud.model.regions import Zone

PRICE_LIST = "aws-price-list-api"
SPOT_HISTORY = "ec2-spot-price-history"
_TYPES = ("p*", "g*")
# A spot price that has not changed for this long is a placeholder, not a market.
OLDEST_DAYS = 90
# Local and Wavelength zones have other networks and prices; ids of a region's regular zones look like use1-az1.
_ZONE_ID = re.compile(r"[a-z0-9]+-az\d+")


def fetch(account: AwsAccount, request: PriceRequest, progress: Progress) -> Fetched:
    """Return the offers of some regions, or of all regions of the account if none is named.

    Accelerators of instance types come from the request's shapes, since EC2's figures are wrong for several; other
    types are refused and counted. `missing` names what can't be read; nothing is raised for it.
    """
    fetched = Fetched()
    wanted: Iterable[str] = sorted(request.regions)
    if not request.regions:
        with aws_errors("the list of regions", fetched.missing):
            wanted = account.regions()
    names = tuple(wanted)
    for done, region in enumerate(names):
        progress("aws regions", done, len(names))
        if region in request.known:
            _fetch_region(account, region, request.shapes, request.now, fetched)
        else:
            fetched.refused[Refusal.UNKNOWN_REGION] += 1
    progress("aws regions", len(names), len(names))
    return fetched


def sold(account: AwsAccount, offers: Sequence[Offer], missing: list[str]) -> dict[str, bool]:
    """Return by id whether the zones of some offers list their instance types."""
    found: dict[str, bool] = {}
    for region in sorted({offer.region for offer in offers}):
        here = [offer for offer in offers if offer.region == region]
        with aws_errors(f"{region}: instance type offerings", missing):
            pairs = set(account.offered_types(region, sorted({offer.instance_type for offer in here})))
            found.update((offer.id, (offer.instance_type, offer.zone) in pairs) for offer in here)
    return found


def _fetch_region(
    account: AwsAccount, region: str, shapes: Mapping[str, Shape], now: datetime, fetched: Fetched
) -> None:
    pairs: tuple[tuple[str, str], ...] = ()
    with aws_errors(f"{region}: instance type offerings", fetched.missing):
        pairs = tuple(account.offered_types(region, _TYPES))
    offered: dict[Zone, set[str]] = {}
    for instance_type, zone_id in pairs:
        if _ZONE_ID.fullmatch(zone_id):
            zone = Zone(provider=Provider("aws"), region=region, name=zone_id)
            offered.setdefault(zone, set()).add(instance_type)
    if not offered:
        return
    types = sorted(set().union(*offered.values()))
    unknown = [name for name in types if name not in shapes]
    fetched.refused[Refusal.UNKNOWN_TYPE] += len(unknown)
    for zone, names in offered.items():
        found = (shapes[name] for name in names if name in shapes)
        fetched.listed[zone] = {(s.instance_type, s.accelerator, s.accelerator_count) for s in found}
    _on_demand(account, region, shapes, offered, now, fetched)
    _spot(account, region, [name for name in types if name in shapes], shapes, offered, now, fetched)


def _on_demand(
    account: AwsAccount,
    region: str,
    shapes: Mapping[str, Shape],
    offered: Mapping[Zone, set[str]],
    now: datetime,
    fetched: Fetched,
) -> None:
    prices: dict[str, float] = {}
    with aws_errors(f"{region}: prices of the Price List", fetched.missing):
        for text in account.products(region):
            found = _product_price(text)
            if found is None:
                fetched.refused[Refusal.INCOMPLETE] += 1
            elif found[1] <= 0:
                fetched.refused[Refusal.ZERO_PRICE] += 1
            else:
                prices[found[0]] = max(found[1], prices.get(found[0], 0.0))
        for zone, names in offered.items():
            for name in sorted(names & set(prices) & set(shapes)):
                shape, price, day = shapes[name], prices[name], now.date()
                offer = make_offer(zone, shape, Market.ON_DEMAND, price, as_of=day, source=PRICE_LIST)
                fetched.offers.append(offer)


def _spot(
    account: AwsAccount,
    region: str,
    types: list[str],
    shapes: Mapping[str, Shape],
    offered: Mapping[Zone, set[str]],
    now: datetime,
    fetched: Fetched,
) -> None:
    if not types:
        return
    zones = {zone.name: zone for zone in offered}
    newest: dict[tuple[str, str], Mapping[str, Any]] = {}
    with aws_errors(f"{region}: spot prices", fetched.missing):
        ids = account.zone_ids(region)
        for row in account.spot_prices(region, types, now):
            zone_id = row.get("AvailabilityZoneId") or ids.get(row.get("AvailabilityZone", ""))
            if zone_id is None or not row.get("SpotPrice") or row.get("Timestamp") is None:
                fetched.refused[Refusal.INCOMPLETE] += 1
                continue
            key = (row["InstanceType"], zone_id)
            if key not in newest or row["Timestamp"] > newest[key]["Timestamp"]:
                newest[key] = row
    for (name, zone_id), row in sorted(newest.items()):
        if zone_id not in zones or name not in shapes:
            continue
        if (now - row["Timestamp"]).days > OLDEST_DAYS:
            fetched.refused[Refusal.TOO_OLD] += 1
            continue
        # The timestamp is that of the last change; a history from now on contains the current price.
        price, day = float(row["SpotPrice"]), now.date()
        offer = make_offer(zones[zone_id], shapes[name], Market.SPOT, price, as_of=day, source=SPOT_HISTORY)
        fetched.offers.append(offer)


def _product_price(text: str) -> tuple[str, float] | None:
    """Return the instance type and hourly on-demand price of a product, None if a field is missing."""
    try:
        product = json.loads(text)
        name = product["product"]["attributes"]["instanceType"]
        dimensions = [
            dimension
            for term in product["terms"]["OnDemand"].values()
            for dimension in term["priceDimensions"].values()
            if dimension["unit"] == "Hrs"
        ]
        return name, max(float(dimension["pricePerUnit"]["USD"]) for dimension in dimensions)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
