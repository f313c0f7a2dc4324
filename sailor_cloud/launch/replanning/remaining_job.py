"""The remaining job of a run: its steps and limits, and the devices that are still available."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from sailor_cloud.launch.replanning.refusals import Choice
from sailor_cloud.launch.spend.lifetime import Remaining
from sailor_cloud.model.job import Goal, Job, Resource
from sailor_cloud.model.offer import Market, Offer
from sailor_cloud.model.plan import Node
from sailor_cloud.units import SECONDS_PER_HOUR


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Running nodes (`survivors`), choices that can't be bought now (`blocked`), and all known offers."""

    survivors: tuple[Node, ...]
    blocked: frozenset[Choice]
    offers: Mapping[str, Offer]

    def held(self, zone: str, accelerator: str) -> Counter[tuple[Market, str]]:
        """Return the running devices in a zone, by market and instance type."""
        found: Counter[tuple[Market, str]] = Counter()
        for node in self.survivors:
            offer = self.offers[node.offer]
            if (offer.zone, offer.accelerator) == (zone, accelerator):
                found[offer.market, offer.instance_type] += node.devices
        return found

    def types(self, entry: Resource, zone: str, accelerator: str, market: Market) -> tuple[set[str], set[str]]:
        """Return the instance types that an entry allows, and those of them that can be bought now."""
        known = {
            offer.instance_type
            for offer in self.offers.values()
            if (offer.zone, offer.accelerator, offer.market) == (zone, accelerator, market)
            and (entry.instance_types is None or offer.instance_type in entry.instance_types)
        }
        return known, {name for name in known if Choice(name, accelerator, zone, market) not in self.blocked}


def remaining_job(
    job: Job, devices: Devices, left: Remaining, *, only_survivors: bool, limits: bool = True
) -> Job | None:
    """Return the remaining job, or None if no devices are available for it.

    Of a blocked type only the running devices count. Without `limits` the job asks for the cheapest plan, whatever its
    cost. A plan for the remaining job meets its limits in expectation, without a probability.
    """
    entries = [
        part
        for entry in job.resources
        for zone in entry.zones
        for name, most in entry.accelerators.items()
        for part in _entries(entry, zone, name, most, devices, only_survivors=only_survivors)
    ]
    if not entries:
        return None
    changes = {"budget_usd": left.usd if limits else None, "deadline": left.seconds if limits else None}
    changes["probability"] = None
    if limits:
        changes["max_usd_per_hour"] = _highest_rate(job, left)
    constraints = job.constraints.model_copy(update=changes)
    training = job.training.model_copy(update={"steps": left.steps})
    goal = job.goal if limits else Goal.MINIMIZE_COST
    return job.model_copy(
        update={"resources": tuple(entries), "constraints": constraints, "training": training, "goal": goal}
    )


def _highest_rate(job: Job, left: Remaining) -> float | None:
    """Return the highest USD per hour: the remaining money must last until the nodes shut themselves down."""
    rates = [job.constraints.max_usd_per_hour]
    if left.usd_alone is not None and left.life_s > 0:
        rates.append(left.usd_alone / (left.life_s / SECONDS_PER_HOUR))
    return min((rate for rate in rates if rate is not None), default=None)


def _entries(
    entry: Resource, zone: str, accelerator: str, most: int, devices: Devices, *, only_survivors: bool
) -> Iterator[Resource]:
    """Yield one entry for what can be bought, and one for each blocked type that runs; together at most `most`."""
    markets, allowed = ((), None) if only_survivors else _open(entry, zone, accelerator, devices)
    kept = {
        (market, kind): number
        for (market, kind), number in sorted(devices.held(zone, accelerator).items())
        if market in entry.markets
        and (entry.instance_types is None or kind in entry.instance_types)
        and (market not in markets or (allowed is not None and kind not in allowed))
    }
    for place, number in kept.items():
        here = min(number, most)
        most -= here
        if here:
            yield _entry(entry, zone, accelerator, here, (place[0],), (place[1],))
    if markets and most > 0:
        yield _entry(entry, zone, accelerator, most, markets, allowed)


def _open(
    entry: Resource, zone: str, accelerator: str, devices: Devices
) -> tuple[tuple[Market, ...], tuple[str, ...] | None]:
    """Return the markets on which something can be bought now and, if only some types can be bought, those types.

    An entry has the same types on all its markets. If these differ, the common types are used, or only the first
    market: slightly less than available, and never more devices than the job allows.
    """
    found: dict[Market, set[str]] = {}
    whole = True
    for market in entry.markets:
        known, free = devices.types(entry, zone, accelerator, market)
        whole &= known == free
        if free or not known:
            found[market] = free
    priced = [free for free in found.values() if free]
    if whole or not priced:
        return tuple(found), entry.instance_types
    common = set.intersection(*priced)
    if common:
        return tuple(found), tuple(sorted(common))
    first = next(market for market in found if found[market])
    return (first,), tuple(sorted(found[first]))


def _entry(
    entry: Resource,
    zone: str,
    accelerator: str,
    most: int,
    markets: tuple[Market, ...],
    types: Collection[str] | None,
) -> Resource:
    return entry.model_copy(
        update={
            "zones": (zone,),
            "accelerators": {accelerator: most},
            "markets": markets,
            "instance_types": None if types is None else tuple(types),
        }
    )
