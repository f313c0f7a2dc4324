"""Money and history of runs for a terminal or a pipe."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from sailor_cloud.provision.account import ProviderBill
from sailor_cloud.report import text
from sailor_cloud.report.tables import plain_table
from sailor_cloud.run.history import PastRun, Sum
from sailor_cloud.run.progress import RunCosts


def cost_report(costs: RunCosts) -> RenderableType:
    """Return the ledger and its projected total."""
    numbers = ("quantity", "USD each", "USD")
    table = plain_table("spent on", *numbers, "price from", numbers=numbers)
    for line in costs.lines:
        still = " (continues)" if line.open else ""
        price = f"{line.price_source}, {line.price_as_of}"
        table.add_row(
            f"{line.what}{still}",
            text.measure(line.quantity, line.unit),
            text.usd(line.usd_per_unit),
            text.usd(line.usd),
            price,
        )
    budget = f" of {text.usd(costs.budget_usd)} USD budget" if costs.budget_usd is not None else ""
    lines = [f"spent {text.usd(costs.spent_usd)} USD{budget}, now {text.usd(costs.usd_per_hour)} USD/h"]
    if costs.projected_usd is not None:
        planned_note = f" (planned {text.usd(costs.planned_usd)} USD)" if costs.planned_usd is not None else ""
        lines.append(f"at the end of the training {text.usd(costs.projected_usd)} USD{planned_note}")
    harm = (Text(str(harm), style="bold yellow") for harm in costs.damage)
    return Group(table, *(Text(line) for line in lines), *harm)


def history_report(runs: Sequence[PastRun], *, job: str | None = None) -> RenderableType:
    """Return a table with a row per run, newest last; `job` is the only one shown."""
    if not runs:
        return Text(_none_ended(job))
    numbers = ("steps", "generations", "nodes", "s/iteration", "planned", "USD", "planned USD")
    table = plain_table("run", "outcome", "took", *numbers, numbers=numbers, whole=("run",))
    for run in runs:
        outcome = run.outcome if run.clean else f"{run.outcome}, NOT ALL GONE"
        table.add_row(
            run.run_id,
            outcome,
            text.seconds((run.ended_at - run.started_at).total_seconds()),
            f"{run.steps}/{run.steps_planned}" if run.steps_planned else str(run.steps),
            str(run.generations),
            str(run.nodes),
            _number(run.measured_iteration_s),
            _number(run.planned_iteration_s),
            text.usd(run.spent_usd),
            text.usd(run.planned_usd),
        )
    return table


def sums_report(rows: Sequence[Sum], by: str, *, job: str | None = None) -> RenderableType:
    """Return a table with a row per owner, project or month."""
    if not rows:
        return Text(_none_ended(job))
    table = plain_table(by, "runs", "USD", "not all gone", numbers=("runs", "USD", "not all gone"), whole=(by,))
    for row in rows:
        table.add_row(row.name, str(row.runs), text.usd(row.spent_usd), str(row.not_clean) if row.not_clean else "")
    return table


def _none_ended(job: str | None) -> str:
    return "no run has ended yet" if job is None else f"no run of job {job!r} has ended yet"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def bill_report(bills: Sequence[ProviderBill], spent_usd: float) -> RenderableType:
    """Return each bill by service, its age, and the part of the ledger's `spent_usd` that is not billed yet."""
    if not bills:
        return Text("no cloud has a bill for this run")
    parts = [part for bill in bills for part in _parts(bill)]
    if any(bill.until for bill in bills):
        left = max(0.0, spent_usd - math.fsum(bill.ledger_usd for bill in bills))
        parts.append(Text(f"not billed yet: {_usd(left)} of the ledger"))
    return Group(*parts)


def _parts(bill: ProviderBill) -> list[RenderableType]:
    notes = [Text(f"note: {note}") for note in bill.notes]
    if bill.until is None:
        reason = bill.switch_on or "nothing with the run's tag is in the bill yet; look again tomorrow"
        return [Text(f"{bill.provider} has billed nothing that can be found: {reason}"), *notes]
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
