"""What the traffic between zones has cost so far, by the plan's own figures; nobody meters the bytes themselves yet."""

from __future__ import annotations

import math
from collections.abc import Iterable

from sailor_cloud.clock import Clock
from sailor_cloud.launch.record import Leg
from sailor_cloud.model.document import CostKind, CostLine, PlanDocument
from sailor_cloud.run.ledger import Ledger


def usd_per_step(document: PlanDocument) -> float:
    """Return the price of one iteration's traffic."""
    steps = document.job.training.steps
    return math.fsum(line.usd for line in _lines(document)) / steps if steps else 0.0


def usd(legs: Iterable[Leg]) -> float:
    """Return the price of all iterations that were done, those done twice included."""
    return math.fsum(usd_per_step(leg.document) * leg.monitor.steps_done for leg in legs)


def charge(ledger: Ledger, legs: Iterable[Leg], clock: Clock) -> None:
    """Charge each generation's traffic once."""
    for leg in legs:
        steps, done = leg.document.job.training.steps, leg.monitor.steps_done
        if not steps or not done:
            continue
        prefix = f"generation {leg.generation}: " if leg.generation > 1 else ""
        for line in _lines(leg.document):
            ledger.charge(
                f"{prefix}{line.what}",
                kind=line.kind,
                what=f"{prefix}{line.what}",
                quantity=line.quantity * done / steps,
                unit=line.unit,
                usd_per_unit=line.usd_per_unit,
                price_source=line.price_source,
                price_as_of=line.price_as_of,
                at=clock.now(),
            )


def _lines(document: PlanDocument) -> list[CostLine]:
    if document.cost is None:
        return []
    return [line for line in document.cost.lines if line.kind is CostKind.EGRESS]
