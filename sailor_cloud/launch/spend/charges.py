"""Charges by quantity: each has a line of its own, which goes to the ledger once, at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime

from sailor_cloud.model.document import CostKind, CostLine
from sailor_cloud.model.parts import part_of
from sailor_cloud.network import EgressPrice
from sailor_cloud.run.ledger import Ledger, LedgerLine
from sailor_cloud.simulator.bill import cost_line
from sailor_cloud.units import GB

# Notes on the source of a line's quantity.
METERED = "metered"
AS_PLANNED = "by the plan's figures"


def planned_charge(line: CostLine, *, quantity: float, note: str, prefix: str = "") -> LedgerLine:
    """Return the ledger line for a quantity that a line of the plan foresees, at its price."""
    return LedgerLine(
        kind=line.kind,
        key=f"{prefix}{line.what}",
        what=f"{prefix}{line.what}, {note}",
        quantity=quantity,
        unit=line.unit,
        usd_per_unit=line.usd_per_unit,
        usd=quantity * line.usd_per_unit,
        price_source=line.price_source,
        price_as_of=line.price_as_of,
        open=True,
        part=part_of(line),
    )


def traffic_charge(kind: CostKind, part: str, price: EgressPrice, *, nbytes: float, prefix: str = "") -> LedgerLine:
    """Return the ledger line for measured bytes from one zone to another."""
    quantity = nbytes / GB
    line = cost_line(kind, part, price, expected=quantity, worst=quantity)
    return planned_charge(line, quantity=quantity, note=METERED, prefix=prefix)


def total_usd(charges: Iterable[LedgerLine]) -> float:
    return math.fsum(charge.usd for charge in charges)


def charge_all(ledger: Ledger, charges: Iterable[LedgerLine], *, at: datetime) -> None:
    """Add charges to the ledger; existing ones stay as they are."""
    for one in charges:
        ledger.charge(
            one.key,
            kind=one.kind,
            what=one.what,
            part=one.part,
            quantity=one.quantity,
            unit=one.unit,
            usd_per_unit=one.usd_per_unit,
            price_source=one.price_source,
            price_as_of=one.price_as_of,
            at=at,
        )
