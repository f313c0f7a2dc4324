"""What providers have billed for a run, beside its ledger."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sailor_cloud.provision.account import Billed
from sailor_cloud.report import text
from sailor_cloud.report.tables import plain_table


def bill_report(bills: Sequence[Billed], spent_usd: float) -> RenderableType:
    """Return each bill by service, how old it is, and what of the ledger's `spent_usd` is not billed yet."""
    if not bills:
        return Text("no cloud has a bill for this run")
    parts = [part for bill in bills for part in _parts(bill)]
    if any(bill.until for bill in bills):
        left = max(0.0, spent_usd - math.fsum(bill.ledger_usd for bill in bills))
        parts.append(Text(f"not billed yet: {_usd(left)} of the ledger"))
    return Group(*parts)


def _parts(bill: Billed) -> list[RenderableType]:
    notes = [Text(f"note: {note}") for note in bill.notes]
    if bill.until is None:
        told = bill.switch_on or "nothing with the run's tag is in the bill yet; look again tomorrow"
        return [Text(f"{bill.provider} has billed nothing that can be found: {told}"), *notes]
    table = plain_table(f"billed by {bill.provider}", bill.currency, numbers=(bill.currency,))
    for service, amount in bill.lines:
        table.add_row(service, text.usd(amount))
    until = f"{bill.until:%Y-%m-%d %H:%M} UTC"
    lines = [
        f"billed until {until}: {text.usd(bill.total)} {bill.currency}; ledger until then: {_usd(bill.ledger_usd)}"
    ]
    if bill.final_until is not None and bill.final_until < bill.until:
        lines.append(f"the provider may still change what was used after {bill.final_until:%Y-%m-%d %H:%M} UTC")
    return [table, *(Text(line) for line in lines), *notes]


def _usd(amount: float) -> str:
    return f"{text.usd(amount)} USD"
