"""Refuses plans that must not be bought: not for our engine, old or doubtful prices, unconnected clouds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import permutations

from sailor_cloud.catalog.prices.doubts import age_days, explained, is_stale
from sailor_cloud.errors import DataError, DoubtfulPriceError, Problem, RequestError, StalePriceError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.model.plan import Plan
from sailor_cloud.model.provider import names
from sailor_cloud.network import Network
from sailor_cloud.provision.providers import is_cloud, on_this_machine
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.simulator.engines import SAILOR
from sailor_cloud.units import counted, usd_text


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudTraffic:
    """The price for both payers of 10**9 bytes from one zone of a plan to one on another cloud.

    `usd_per_gb`, `source` and `as_of` are None if the price is unknown.
    """

    src_zone: str
    dst_zone: str
    usd_per_gb: float | None
    source: str | None
    as_of: date | None

    def __str__(self) -> str:
        price = "unknown" if self.usd_per_gb is None else f"{usd_text(self.usd_per_gb)} USD/GB"
        origin = f" ({self.source}, {self.as_of})" if self.source else ""
        return f"{self.src_zone} -> {self.dst_zone}: {price}{origin}"


def traffic_between_clouds(document: PlanDocument, network: Network) -> tuple[CloudTraffic, ...]:
    """Return the price of traffic for each pair of the plan's zones on two clouds, in both directions."""
    zones = sorted({(placed.offer.provider, placed.offer.zone) for placed in placed_nodes(document)})
    pairs = permutations([place for place in zones if not on_this_machine(place[0])], 2)
    return tuple(_traffic(network, src, dst) for (cloud, src), (other, dst) in pairs if cloud != other)


def refuse_what_cannot_run(document: PlanDocument) -> None:
    """Raise RequestError with every reason why a plan is for prediction only: another engine, or no prices."""
    plan = document.plan
    if plan is None:
        return
    problems = [Problem(path="plan", message=message) for message in _other_engine(document, plan)]
    if problems:
        raise RequestError(problems)


def _other_engine(document: PlanDocument, plan: Plan) -> Iterator[str]:
    if document.job.run is not None:
        yield from _unpriced(document)
        return
    if document.engine != SAILOR.name:
        yield (
            f"is for {document.engine}; 'up' runs {SAILOR.name}'s own engine, so plan with --engine {SAILOR.name}, or "
            f"give the job under 'run' the command that starts {document.engine}"
        )
    if plan.zero_stage not in SAILOR.zero_stages:
        yield f"has zero {plan.zero_stage}, which {SAILOR.name}'s own engine does not"
    yield from _unpriced(document)


def _unpriced(document: PlanDocument) -> Iterator[str]:
    for hardware in document.inputs.unpriced:
        yield f"has nodes without a price, {hardware.instance_type} in {hardware.zone}; only offers can be bought"


def refuse_two_clouds(document: PlanDocument, network: Network) -> None:
    """Raise RequestError for a plan on two clouds that can't be bought, with the price of the traffic between them."""
    why = two_clouds_problem(document)
    if why is not None:
        prices = "\n".join(f"  {pair}" for pair in traffic_between_clouds(document, network))
        raise RequestError(
            f"{why}; 'up --dry-run' shows the plan, and a job whose resources name one cloud gives one that can be "
            f"bought\ntraffic between the clouds would cost:\n{prices}"
        )


def two_clouds_problem(document: PlanDocument) -> str | None:
    """Return why a plan on several providers can't be bought; None if it can, or if it has only one provider."""
    job, placed = document.job, placed_nodes(document)
    used = {each.offer.provider for each in placed}
    if len(used) < 2:
        return None
    where = f"the plan has nodes on {' and '.join(name for name in names() if name in used)}, which can't be bought"
    if not all(is_cloud(name) for name in used):
        return f"{where}: no network joins them"
    if job.one_cloud_reason is not None:
        return f"{where}: {job.one_cloud_reason}"
    if not job.checkpoint.to_bucket:
        return f"{where}: the job names no bucket that nodes on both can write checkpoints to (checkpoint.to)"
    assert document.plan is not None, "it has nodes"
    cloud_of = {each.node.id: each.offer.provider for each in placed}
    for pipeline in document.plan.pipelines:
        if len({cloud_of[stage.node] for stage in pipeline.stages}) > 1:
            return f"{where}: pipeline {pipeline.id} is cut between them"
    return None


def refuse_prices(document: PlanDocument, today: date, *, allow_stale: bool, allow_doubtful: bool) -> None:
    """Raise StalePriceError or DoubtfulPriceError with all prices of a plan that are not good enough to buy at."""
    refused: list[StalePriceError | DoubtfulPriceError] = []
    try:
        if not allow_stale:
            refuse_stale_prices(document, today)
    except StalePriceError as error:
        refused.append(error)
    try:
        if not allow_doubtful:
            refuse_doubtful_prices(document)
    except DoubtfulPriceError as error:
        refused.append(error)
    if refused:
        raise type(refused[0])("\n".join(map(str, refused)))


def refuse_stale_prices(document: PlanDocument, today: date) -> None:
    """Raise StalePriceError if a cloud node's price is too old for a purchase."""
    offers = _cloud_offers(document)
    stale = [offer for offer in offers if is_stale(offer, today)]
    if stale:
        listed = "\n".join(
            f"  {offer.id}: {usd_text(offer.usd_per_hour)} USD/h of {offer.as_of_from}, "
            f"{age_days(offer, today)} days old"
            for offer in stale
        )
        raise StalePriceError(
            f"{len(stale)} of the plan's {len(offers)} offers have stale prices:\n{listed}\n"
            "get today's with 'sailor-cloud prices refresh' and plan again, or give --allow-stale to buy anyway"
        )


def refuse_stale_offers(offers: Sequence[Offer], today: date) -> None:
    """Raise StalePriceError if everything that a job may buy is on clouds and has too old prices."""
    if any(on_this_machine(offer.provider) or not is_stale(offer, today) for offer in offers):
        return
    newest = max((offer.as_of_from for offer in offers), default=None)
    if newest is not None:
        doubtful = sum(offer.listed is not None for offer in offers)
        among = (
            f"; buying at {counted(doubtful, 'doubtful price')} among them needs --allow-doubtful" if doubtful else ""
        )
        raise StalePriceError(
            f"all {len(offers)} offers that the job may buy have stale prices, the newest of {newest}; "
            f"get today's with 'sailor-cloud prices refresh', or give --allow-stale to buy anyway{among}"
        )


def refuse_doubtful_prices(document: PlanDocument) -> None:
    """Raise DoubtfulPriceError if the listed price of a cloud node is in doubt."""
    offers = _cloud_offers(document)
    doubted = [explained(offer) for offer in offers if offer.listed is not None]
    if doubted:
        listed = "\n".join(f"  {line}" for line in doubted)
        raise DoubtfulPriceError(
            f"{len(doubted)} of the plan's {len(offers)} offers have doubtful prices:\n{listed}\n"
            "get the provider's own with 'sailor-cloud prices refresh' and plan again, or give --allow-doubtful to buy "
            "anyway"
        )


def _cloud_offers(document: PlanDocument) -> list[Offer]:
    offers = {placed.offer.id: placed.offer for placed in placed_nodes(document)}
    return [offer for _, offer in sorted(offers.items()) if not on_this_machine(offer.provider)]


def _traffic(network: Network, src: str, dst: str) -> CloudTraffic:
    try:
        prices = network.egress(src, dst)
    except DataError:
        return CloudTraffic(src_zone=src, dst_zone=dst, usd_per_gb=None, source=None, as_of=None)
    return CloudTraffic(
        src_zone=src,
        dst_zone=dst,
        usd_per_gb=sum(price.usd_per_gb for price in prices),
        source=", ".join(sorted({price.source for price in prices})) or None,
        as_of=min((price.as_of_from for price in prices), default=None),
    )
