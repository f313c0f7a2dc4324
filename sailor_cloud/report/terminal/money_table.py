"""The money tree: what the run costs, expected and at worst, and from which prices."""

from __future__ import annotations

from rich.markup import escape
from rich.table import Table

from sailor_cloud.model.document import CostKind, CostLine, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.plan.money import CostBranch, age_days, cost_tree, expected_usd, worst_usd
from sailor_cloud.report.tables import plain_table

# Kinds whose lines are always shown; of the others only the sum, unless details are asked for.
OPEN_KINDS = (CostKind.COMPUTE, CostKind.EGRESS)


def money_table(document: PlanDocument, *, details: bool, ascii_only: bool) -> Table:
    cost = document.cost
    assert cost is not None
    whole = expected_usd(cost)
    span = "cost of the run" if cost.total_usd is not None else "cost of one hour"
    table = plain_table(span, "expected", "worst case", "from", numbers=("expected", "worst case"))
    for branch in cost_tree(cost):
        opened = details or branch.kind in OPEN_KINDS
        table.add_row(
            f"[bold]{branch.title}[/]",
            f"[bold]{text.usd_beside(branch.usd, whole)}[/]",
            text.usd_beside(branch.worst_usd, whole),
            "" if opened else _marked(_summary(document, branch)),
        )
        if opened:
            _add_lines(table, document, branch, details=details, ascii_only=ascii_only)
    table.add_row(
        "[bold]total[/]",
        f"[bold]{text.usd_beside(whole, whole)}[/]",
        f"[bold]{text.usd_beside(worst_usd(cost), whole)}[/]",
        "USD",
    )
    return table


def _add_lines(table: Table, document: PlanDocument, branch: CostBranch, *, details: bool, ascii_only: bool) -> None:
    assert document.cost is not None
    whole = expected_usd(document.cost)
    middle, end = ("|-", "`-") if ascii_only else ("├─", "└─")
    for place, line in enumerate(branch.lines):
        mark = end if place == len(branch.lines) - 1 else middle
        table.add_row(
            _hanging(mark, line.what),
            text.usd_beside(line.usd, whole),
            text.usd_beside(line.worst_usd, whole),
            _marked(_origin(document, line, details=details)),
        )


def _marked(origin: str) -> str:
    """Return text as markup in which a stale price stands out."""
    return escape(origin).replace(" STALE", " [yellow]STALE[/]")


def _hanging(mark: str, what: str) -> Table:
    """Return a line whose continuation stands under its text, not under its mark."""
    cell = Table.grid(padding=(0, 1, 0, 0))
    cell.add_column(no_wrap=True)
    cell.add_column(overflow="fold")
    cell.add_row(mark, escape(what))
    return cell


def _origin(document: PlanDocument, line: CostLine, *, details: bool) -> str:
    amount = f"{text.measure(line.quantity, line.unit)} at {text.usd(line.usd_per_unit)}"
    stale = " STALE" if line.stale else ""
    if details:
        return f"{amount}; {line.price_source}, {line.price_as_of.isoformat()}{stale}"
    return f"{amount}, {age_days(document, line.price_as_of)} d old{stale}"


def _summary(document: PlanDocument, branch: CostBranch) -> str:
    if len(branch.lines) == 1:
        return _origin(document, branch.lines[0], details=False)
    oldest = max(age_days(document, line.price_as_of) for line in branch.lines)
    return f"{len(branch.lines)} lines, up to {oldest} d old" + (" STALE" if branch.stale else "")
