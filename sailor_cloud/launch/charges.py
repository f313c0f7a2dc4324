"""What a run pays for by quantity: a line of its own each, charged to the ledger once, at the end."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime

from sailor_cloud.model.document import CostKind, CostLine
from sailor_cloud.run.ledger import Ledger, LedgerLine

# How a line says where its quantity comes from.
METERED = "metered"
AS_PLANNED = "by the plan's figures"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """A quantity at a price. `part` is the line of the plan's bill that it belongs to."""

    key: str
    kind: CostKind
    what: str
    part: str
    quantity: float
    unit: str
    usd_per_unit: float
    price_source: str
    price_as_of: date

    @property
    def usd(self) -> float:
        return self.quantity * self.usd_per_unit

    def line(self) -> LedgerLine:
        """Return the line that the ledger will have; what it is for goes on."""
        return LedgerLine(
            kind=self.kind,
            key=self.key,
            what=self.what,
            quantity=self.quantity,
            unit=self.unit,
            usd_per_unit=self.usd_per_unit,
            usd=self.usd,
            price_source=self.price_source,
            price_as_of=self.price_as_of,
            open=True,
            part=self.part,
        )


def planned(line: CostLine, *, quantity: float, prefix: str = "", note: str = "") -> Charge:
    """Return a charge at the price of a line of the plan."""
    return Charge(
        key=f"{prefix}{line.what}",
        kind=line.kind,
        what=f"{prefix}{line.what}" + (f", {note}" if note else ""),
        part=line.what,
        quantity=quantity,
        unit=line.unit,
        usd_per_unit=line.usd_per_unit,
        price_source=line.price_source,
        price_as_of=line.price_as_of,
    )


def total_usd(charges: Iterable[Charge]) -> float:
    return math.fsum(charge.usd for charge in charges)


def charge_all(ledger: Ledger, charges: Iterable[Charge], *, at: datetime) -> None:
    """Put charges into the ledger; those that it has already stay as they are."""
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
