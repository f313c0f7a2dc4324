"""On-Demand Capacity Reservations and Capacity Blocks on AWS: offers, and purchases of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from sailor_cloud.catalog.providers.aws.account import RESERVATION_GONE
from sailor_cloud.errors import MissingPackageError, ProvisionError, RequestError
from sailor_cloud.model.capacity import Capacity
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.provision.live_resources import RUN_LABEL
from sailor_cloud.provision.providers.aws.sweep import boto_client, is_refusal, refusal
from sailor_cloud.provision.rendering.root import PlacedNode, Variables, WantedRoot
from sailor_cloud.units import SECONDS_PER_HOUR, usd_text

if TYPE_CHECKING:
    from sailor_cloud.provision.rendering.rendered_roots import RunValues

# The tag with the name of the entry that something was bought for; the same as in terraform/stacks/aws-capacity.
_NAME_TAG = "sailor-cloud-capacity"
# An offering may exceed the plan's price by this much, for rounding.
_CENT = 0.01


def variables(run: RunValues, region: str, nodes: Sequence[PlacedNode]) -> Variables:
    """Return the variables of the stack `aws-capacity`; the offering is chosen later."""
    offers = {placed.offer.terms.name: placed.offer for placed in nodes if placed.offer.terms is not None}
    counts = Counter(placed.offer.terms.name for placed in nodes if placed.offer.terms is not None)
    reservations, blocks = {}, {}
    for name, offer in sorted(offers.items()):
        what = {"zone": offer.zone, "instance_type": offer.instance_type}
        if offer.market is Market.CAPACITY_BLOCK:
            blocks[name] = {**what, **_block(offer), "offering": None}
        else:
            reservations[name] = {**what, "nodes": counts[name]}
    own = {"region": region, "expires_at": run.expiry, "reservations": reservations, "blocks": blocks}
    return {**run.common(), **own}


def _block(offer: Offer) -> Variables:
    terms = offer.terms
    assert terms is not None
    assert terms.starts_at is not None
    assert terms.ends_at is not None
    usd = round(offer.committed_usd(terms.nodes), 2)
    times = {"starts_at": _text(terms.starts_at), "ends_at": _text(terms.ends_at)}
    return {**times, "nodes": terms.nodes, "usd": usd}


@contextmanager
def _converted_errors(what: str) -> Iterator[None]:
    """Convert errors of boto3 into ours: CredentialsError if AWS rejects the caller, or boto3 is missing."""
    try:
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError as error:
        raise MissingPackageError("boto3", "aws") from error

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        if is_refusal(error):
            raise refusal(what, error) from error
        raise ProvisionError(f"AWS did not {what}: {error}") from error


def _text(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def with_current_offerings(root: WantedRoot, run_id: str) -> WantedRoot:
    """Return the root with the offering of each block, and without blocks that the run has bought already."""
    there = purchased_blocks(root.region, run_id)
    with _converted_errors(f"list capacity blocks in {root.region}"):
        blocks = {
            name: {**block, "offering": offering(root.region, block)["CapacityBlockOfferingId"]}
            for name, block in root.variables["blocks"].items()
            if name not in there
        }
    return replace(root, variables={**root.variables, "blocks": blocks})


def purchased_blocks(region: str, run_id: str) -> dict[str, str]:
    """Return the ids of a run's purchases in a region, by entry name."""
    with _converted_errors(f"list the capacity of {run_id} in {region}"):
        return _bought(region, run_id)


def _bought(region: str, run_id: str) -> dict[str, str]:
    filters = [{"Name": f"tag:{RUN_LABEL}", "Values": [run_id]}]
    found: dict[str, str] = {}
    for page in boto_client(region).get_paginator("describe_capacity_reservations").paginate(Filters=filters):
        for row in page["CapacityReservations"]:
            tags = {tag["Key"]: tag["Value"] for tag in row.get("Tags", [])}
            if tags.get(RUN_LABEL) == run_id and row["State"] not in RESERVATION_GONE and _NAME_TAG in tags:
                found[tags[_NAME_TAG]] = row["CapacityReservationId"]
    return found


def offering(region: str, block: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return AWS's offer for a block. Raises RequestError if there is none, or it costs more."""
    starts_at, ends_at = (datetime.fromisoformat(block[name]) for name in ("starts_at", "ends_at"))
    zones = zone_ids(region)
    found = [
        row
        for row in offerings(region, block["instance_type"], block["nodes"], starts_at, ends_at)
        if (zones.get(row["AvailabilityZone"]), row["StartDate"], row["EndDate"]) == (block["zone"], starts_at, ends_at)
    ]
    what = f"{block['nodes']} x {block['instance_type']} in {block['zone']} from {block['starts_at']}"
    hint = "'sailor-cloud import capacity JOB -o FILE' lists what is offered now"
    if not found:
        raise RequestError(f"AWS offers no capacity block of {what} to {block['ends_at']}; {hint}")
    cheapest = min(found, key=lambda row: float(row["UpfrontFee"]))
    fee = float(cheapest["UpfrontFee"])
    if cheapest.get("CurrencyCode", "USD") != "USD" or fee > block["usd"] + _CENT:
        unit = cheapest.get("CurrencyCode", "USD")
        raise RequestError(
            f"the capacity block of {what} costs {usd_text(fee)} {unit} now, "
            f"the plan says {usd_text(block['usd'])} USD; {hint}"
        )
    return cheapest


def offerings(
    region: str, instance_type: str, nodes: int, starts_at: datetime, ends_at: datetime
) -> Iterable[Mapping[str, Any]]:
    """Yield the blocks of this many nodes offered within some time, each as long as that time."""
    # Blocks are sold by the day; the first and the last day need not be complete.
    hours = 24 * max(1, round((ends_at - starts_at).total_seconds() / SECONDS_PER_HOUR / 24))
    yield from offerings_between(region, instance_type, nodes, hours, starts_at, ends_at)


def offerings_between(
    region: str, instance_type: str, nodes: int, hours: int, earliest: datetime, latest: datetime
) -> Iterable[Mapping[str, Any]]:
    """Yield the blocks of this many nodes and hours that begin and end between two times."""
    pages = boto_client(region).get_paginator("describe_capacity_block_offerings")
    asked = {"InstanceType": instance_type, "InstanceCount": nodes, "CapacityDurationHours": hours}
    for page in pages.paginate(**asked, StartDateRange=earliest, EndDateRange=latest):
        yield from page["CapacityBlockOfferings"]


def block_offers(region: str, instance_type: str, nodes: int, days: int, now: datetime) -> list[Capacity]:
    """Return the blocks of this many nodes and days that AWS offers in the next eight weeks, earliest first."""
    with _converted_errors(f"list capacity blocks in {region}"):
        zones, latest = zone_ids(region), now + timedelta(weeks=8)
        rows = list(offerings_between(region, instance_type, nodes, 24 * days, now, latest))
    found = []
    for row in sorted(rows, key=lambda row: (row["StartDate"], float(row["UpfrontFee"]))):
        if row.get("CurrencyCode", "USD") != "USD":
            continue
        begins = row["StartDate"].astimezone(UTC)
        zone = zones[row["AvailabilityZone"]]
        values = {
            "name": f"block-{zone}-{nodes}x{days}d-{begins:%m%d-%H%M}",
            "market": Market.CAPACITY_BLOCK,
            "provider": "aws",
            "zone": zone,
            "instance_type": instance_type,
            "nodes": nodes,
            "usd": float(row["UpfrontFee"]),
            "as_of": now.date(),
            "starts_at": begins,
            "ends_at": row["EndDate"].astimezone(UTC),
        }
        found.append(Capacity.model_validate(values))
    return found


def zone_ids(region: str) -> dict[str, str]:
    """Return the ids of zones by this account's names."""
    found = boto_client(region).describe_availability_zones()["AvailabilityZones"]
    return {zone["ZoneName"]: zone["ZoneId"] for zone in found}


def problem(offer: Offer) -> str:
    """Return why a block can't be bought; empty if AWS offers it."""
    if offer.market is not Market.CAPACITY_BLOCK:
        return ""
    try:
        with _converted_errors(f"list capacity blocks in {offer.region}"):
            offering(offer.region, {**_block(offer), "zone": offer.zone, "instance_type": offer.instance_type})
    except RequestError as error:
        return str(error)
    return ""
