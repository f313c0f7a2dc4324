"""What a run has used besides the hours in its ledger: traffic, checkpoints, and packages for its nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from sailor_cloud.launch.spend import checkpoint_storage, egress
from sailor_cloud.launch.spend.charges import AS_PLANNED, planned_charge
from sailor_cloud.launch.spend.prices import UsagePrices
from sailor_cloud.launch.telemetry.generation_log import RecordedGeneration
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Offer
from sailor_cloud.provision.cleanup.leftovers import is_bucket
from sailor_cloud.run.journal import Entry
from sailor_cloud.run.ledger import LedgerLine
from sailor_cloud.run.state import fold
from sailor_cloud.simulator.bill import setup_lines


def charges(
    document: PlanDocument, legs: Sequence[RecordedGeneration], prices: UsagePrices, *, until: datetime
) -> tuple[LedgerLine, ...]:
    """Return all charges until some time. `document` is the confirmed plan; it has the prices of storage."""
    return (
        *egress.charges(legs, prices),
        *checkpoint_storage.charges(document, legs, prices, until=until),
        *_packages(document, legs, prices),
    )


def _packages(document: PlanDocument, legs: Sequence[RecordedGeneration], prices: UsagePrices) -> Iterator[LedgerLine]:
    """Yield the planned NAT traffic for the packages of all nodes that ever trained; nothing measures it."""
    network = document.job.cloud.network
    if network is not NetworkAccess.PRIVATE:
        return
    nodes: dict[str, Offer] = {}
    for leg in legs:
        offers = leg.document.inputs.offers_by_id()
        nodes |= {node.id: offers[node.offer] for node in leg.document.plan.nodes} if leg.document.plan else {}
    for line in setup_lines(Counter(nodes.values()), prices.services, network, starts=(1.0, 1.0)):
        yield planned_charge(line, quantity=line.quantity, note=AS_PLANNED)


def bucket_end(entries: Iterable[Entry], now: datetime) -> datetime:
    """Return when the run's own bucket ended; `now` if it exists still or never existed."""
    ends = [row.gone_at for row in fold(entries).resources if is_bucket(row.resource) and row.gone_at is not None]
    return min([*ends, now])
