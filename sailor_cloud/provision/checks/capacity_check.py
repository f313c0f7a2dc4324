"""Checks with the account, before any purchase, the capacity that a plan uses or buys separately."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from sailor_cloud.catalog.account.reservations import Reservation, read_reservations
from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.offer import Offer
from sailor_cloud.provision import providers
from sailor_cloud.provision.rendering.root import placed_nodes
from sailor_cloud.units import SECONDS_PER_HOUR, usd_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SeparatePurchase:
    """Capacity that a plan buys separately, at its total price until `ends_at`; `cancellable` can end earlier."""

    offer: Offer
    nodes: int
    usd: float
    ends_at: datetime
    cancellable: bool

    def __str__(self) -> str:
        what = f"{self.nodes} x {self.offer.instance_type} in {self.offer.zone}, {self.offer.market}"
        costs = f"{what}: {usd_text(self.usd)} USD"
        if self.cancellable:
            return f"{costs} until {self.ends_at:%Y-%m-%d %H:%M} UTC unless cancelled before"
        begins = self.offer.terms.starts_at if self.offer.terms is not None else None
        span = "" if begins is None else f"from {begins:%Y-%m-%d %H:%M} UTC "
        return f"{costs} at once, {span}to {self.ends_at:%Y-%m-%d %H:%M} UTC, not refundable"


def bought_separately(document: PlanDocument, expires_at: datetime) -> tuple[SeparatePurchase, ...]:
    """Return the capacity that a plan buys separately, ordered by offer id, with total prices."""
    if document.plan is None:
        return ()
    nodes = Counter(placed.offer for placed in placed_nodes(document) if placed.offer.bought_separately)
    found = []
    for offer, count in sorted(nodes.items(), key=lambda item: item[0].id):
        terms = offer.terms
        assert terms is not None
        whole = terms.nodes if not offer.cancellable else count
        ends_at = terms.ends_at or expires_at
        hours = (ends_at - document.as_of).total_seconds() / SECONDS_PER_HOUR
        usd = offer.committed_usd(count)
        if offer.cancellable:
            usd = max(usd, count * offer.usd_per_hour * hours)
        found.append(
            SeparatePurchase(offer=offer, nodes=whole, usd=usd, ends_at=ends_at, cancellable=offer.cancellable)
        )
    return tuple(found)


def check_capacity(document: PlanDocument, now: datetime) -> None:
    """Raise RequestError for a missing or too small reservation, and for a block that is not offered.

    What can't be read is no refusal: the purchase itself will fail if necessary.
    """
    placed = [node for node in placed_nodes(document) if node.offer.terms is not None]
    if problems := [*_held_problems(document, Counter(node.offer for node in placed), now)]:
        raise RequestError(problems)
    apart = sorted({node.offer.id: node.offer for node in placed if node.offer.bought_separately}.items())
    refused = [
        Problem(path=f"plan.nodes of {name}", message=why)
        for name, offer in apart
        if (why := providers.of(offer.provider).capacity_problem(offer))
    ]
    if refused:
        raise RequestError(refused)


def _held_problems(document: PlanDocument, used: Counter[Offer], now: datetime) -> Iterator[Problem]:
    held = {offer: count for offer, count in used.items() if offer.terms is not None and offer.terms.held}
    if not held:
        return
    read = read_reservations({(offer.provider, offer.region) for offer in held}, cloud=document.job.cloud)
    if read.missing:
        return
    for offer, count in sorted(held.items(), key=lambda item: item[0].id):
        terms = offer.terms
        assert terms is not None
        path, short = f"cloud.capacity: {terms.name}.id", terms.held.rpartition("/")[2]
        found = next((row for row in read.rows if (row.provider, row.id) == (offer.provider, short)), None)
        if found is None:
            known = ", ".join(row.id for row in read.rows if row.provider == offer.provider)
            hint = f"it has {known}" if known else "'sailor-cloud quota' shows what an account has reserved"
            yield Problem(path=path, message=f"the account has no reservation {short!r} in {offer.region}", hint=hint)
        elif why := _mismatch(found, offer, count, now):
            yield Problem(path=path, message=f"reservation {short!r} {why}")


def _mismatch(found: Reservation, offer: Offer, count: int, now: datetime) -> str:
    if (found.zone, found.instance_type) != (offer.zone, offer.instance_type):
        return f"is of {found.instance_type} in {found.zone}, not of {offer.instance_type} in {offer.zone}"
    begun = found.starts_at is None or found.starts_at <= now
    free = found.free if begun else found.count
    if free < count:
        return f"has {free} of {found.count} nodes free, the plan takes {count}"
    return ""
