"""The price of a plan's GPUs at providers where this program buys nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sailor_cloud.catalog.prices.elsewhere import ElsewherePrice, prices_elsewhere, totals
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.tables import plain_table

_MOST = 3


def elsewhere_line(document: PlanDocument) -> str:
    """Return the cheapest providers that list all GPUs of a plan; empty if there is none, or if we have no price."""
    if document.plan is None or document.cost is None:
        return ""
    offers = document.inputs.offers_by_id()
    devices: Counter[str] = Counter()
    ours = 0.0
    for node in document.plan.nodes:
        offer = offers[node.offer]
        devices[offer.accelerator] += offer.accelerator_count
        ours += offer.usd_per_hour
    found = totals(devices, prices_elsewhere())
    if not found:
        return ""
    shown = found[:_MOST]
    named = ", ".join(f"{total.provider} {text.usd(total.usd_per_hour)}" for total in shown)
    dates = sorted({total.as_of.isoformat() for total in shown if total.as_of})
    notes = [f"listed {' and '.join(dates)}"] if dates else []
    notes += ["some without a date"] if any(total.as_of is None for total in shown) else []
    return f"{named} USD/h for these GPUs ({', '.join(notes)}), here {text.usd(ours)}; sailor-cloud can't buy there"


def elsewhere_report(rows: Sequence[ElsewherePrice], limit: int = 0) -> RenderableType:
    """Return a table with a row per provider, accelerator and market: the cheapest `limit`, or all if it is 0."""
    if not rows:
        return Text("no price meets these conditions")
    table = plain_table("provider", "accelerator", "market", "per GPU", "as of", "source", "note", numbers=("per GPU",))
    cheapest = sorted(rows, key=lambda row: (row.usd_per_gpu_hour, row.provider, row.accelerator))
    for row in cheapest[: limit or None]:
        as_of = "undated" if row.as_of is None else row.as_of.isoformat()
        usd = text.usd(row.usd_per_gpu_hour)
        table.add_row(row.provider, row.accelerator, row.market.value, usd, as_of, row.source, row.note)
    return Group(table, Text("USD per GPU and hour. Shown to compare: nothing is bought there."))
