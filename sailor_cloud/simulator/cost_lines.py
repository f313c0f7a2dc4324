"""Makes lines of a bill from a quantity and a price of the catalog or of the network."""

from __future__ import annotations

from sailor_cloud.catalog import ServicePrice
from sailor_cloud.model.document import CostKind, CostLine
from sailor_cloud.network import EgressPrice


def cost_line(
    kind: CostKind,
    what: str,
    price: ServicePrice | EgressPrice,
    *,
    expected: float,
    worst: float,
    unit: str | None = None,
    usd_per_unit: float | None = None,
    part: str = "",
) -> CostLine:
    """Return a line for an expected and a worst quantity, at the price's own unit unless another is given.

    part: its name in the ledger, where that is not the text itself.
    """
    if isinstance(price, EgressPrice):
        own_unit, usd = "GB", price.usd_per_gb
    else:
        own_unit, usd = price.unit, price.usd_per_unit
    usd = usd if usd_per_unit is None else usd_per_unit
    return CostLine(
        kind=kind,
        what=what,
        quantity=expected,
        unit=unit or own_unit,
        usd_per_unit=usd,
        usd=expected * usd,
        worst_usd=worst * usd,
        price_source=price.source,
        price_as_of=price.as_of_from,
        # Prices of services and traffic show their age and never expire.
        stale=False,
        part=part or what,
    )
