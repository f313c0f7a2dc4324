"""A plan and what it costs, for a terminal or a pipe."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sailor_cloud.model.document import PlanDocument, Status
from sailor_cloud.report.decision.choices import without_plan
from sailor_cloud.report.decision.decision_rows import decision_report
from sailor_cloud.report.plan.facts import Fact, assumptions, notes, outcome_facts, proof, request_facts
from sailor_cloud.report.plan.money import price_rows
from sailor_cloud.report.plan.ruled_out import ruled_out
from sailor_cloud.report.tables import plain_table, print_report, rendered
from sailor_cloud.report.terminal.groups_table import groups_table, recompute_key
from sailor_cloud.report.terminal.money_table import money_table
from sailor_cloud.report.terminal.others import alternatives_table, frontier_table, rejected_table
from sailor_cloud.report.terminal.stages import memory_table, waits_table

_COLOURS = {Status.OPTIMAL: "green", Status.FEASIBLE: "yellow", Status.INFEASIBLE: "bold red", Status.GIVEN: "cyan"}


def plan_report(
    document: PlanDocument, *, details: bool = False, whole: bool = True, width: int = 120, ascii_only: bool = False
) -> RenderableType:
    """Return the cost report of a plan; `details` adds sources of prices, every stage and the assumptions.

    Where it is not the `whole` report, only what there is to decide.
    """
    if document.plan is None:
        return _infeasible(document)
    parts: list[RenderableType] = []
    if document.decision is not None and document.decision.choices:
        parts.append(decision_report(document.job, document.decision, width=width, ascii_only=ascii_only))
        if not whole:
            return Group(*parts)
        parts.append(_block(_title(document)))
    else:
        parts.append(_title(document))
    if not whole:
        return Group(*parts, _block(_facts(outcome_facts(document))))
    parts.append(_facts(request_facts(document)))
    tables: list[RenderableType] = [groups_table(document, width=width)]
    tables += [Text(line, style="dim") for line in recompute_key(document)]
    parts.append(_block(Group(*tables)))
    parts.append(_block(_facts(outcome_facts(document))))
    if document.cost is not None:
        parts.append(_block(money_table(document, details=details, ascii_only=ascii_only)))
    if document.prediction is not None:
        parts.append(_block(memory_table(document, details=details, ascii_only=ascii_only, width=width)))
    if details and document.prediction is not None:
        parts.append(_block(waits_table(document, ascii_only=ascii_only, width=width)))
    if document.alternatives or without_plan(document):
        parts.append(_block(alternatives_table(document, width=width)))
    if document.frontier:
        parts.append(_block(frontier_table(document, width=width)))
    if ruled_out(document):
        parts.append(_block(rejected_table(document, details=details)))
    if details and document.cost is not None:
        parts.append(_block(_prices(document)))
    if details and document.prediction is not None:
        parts.append(_block(_list("assumptions", assumptions(document))))
    if warnings := notes(document):
        parts.append(_block(Text("\n".join(warnings), style="yellow")))
    return Group(*parts)


def print_plan(document: PlanDocument, console: Console, *, details: bool = False, whole: bool = True) -> None:
    ascii_only = console.options.ascii_only
    report = plan_report(document, details=details, whole=whole, width=console.width, ascii_only=ascii_only)
    print_report(report, console)


def plan_as_text(document: PlanDocument, *, details: bool = False, width: int = 120, ascii_only: bool = False) -> str:
    """Return the report as plain text for a file."""
    return rendered(plan_report(document, details=details, width=width, ascii_only=ascii_only), width=width)


def _block(part: RenderableType) -> RenderableType:
    return Padding(part, (1, 0, 0, 0))


def _title(document: PlanDocument) -> Text:
    title = Text()
    title.append(document.job.name, style="bold")
    title.append("  ")
    title.append(proof(document), style=_COLOURS[document.status])
    return title


def _facts(facts: tuple[Fact, ...]) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for fact in facts:
        rows.add_row(fact.name, fact.value)
    return rows


def _prices(document: PlanDocument) -> Table:
    table = plain_table("price of", "USD per unit", "as of", "age", "source", numbers=("USD per unit", "age"))
    for row in price_rows(document):
        day = row.as_of_from.isoformat()
        if row.as_of_to != row.as_of_from:
            day += f" to {row.as_of_to.isoformat()}"
        table.add_row(
            row.what,
            f"{row.usd:.4f}/{row.unit}",
            day + (" STALE" if row.stale else ""),
            f"{row.age_days} d",
            row.provenance,
        )
    return table


def _list(heading: str, lines: tuple[str, ...]) -> RenderableType:
    rows = Table.grid(padding=(0, 1))
    rows.add_column()
    rows.add_column(overflow="fold")
    for line in lines:
        rows.add_row("-", line)
    return Group(Text(heading, style="bold"), rows)


def _infeasible(document: PlanDocument) -> RenderableType:
    reason = document.infeasibility
    message = reason.message if reason else "no plan meets the constraints"
    parts: list[RenderableType] = [Text(f"{document.job.name}: infeasible: {message}", style="bold red")]
    if ruled_out(document):
        parts.append(_block(rejected_table(document, details=True)))
    return Group(*parts)
