"""What else could be bought, and what was ruled out."""

from __future__ import annotations

from rich.table import Table

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import choices, usd_unit, without_plan
from sailor_cloud.report.decision.frontier_rows import BEST, TITLE, frontier_numbers, frontier_rows
from sailor_cloud.report.plan.ruled_out import ruled_out
from sailor_cloud.report.tables import plain_table
from sailor_cloud.report.terminal.groups_table import NARROW
from sailor_cloud.units import pace_text

REJECTED_SHOWN = 5


def alternatives_table(document: PlanDocument, *, width: int) -> Table:
    """Return the other plans; on a narrow terminal without their iteration's time and their price per hour."""
    wide = width >= NARROW
    numbers: tuple[str, ...] = ("iteration", "per iteration", "USD/h") if wide else ("per iteration",)
    numbers = (*numbers, usd_unit(document), "more USD")
    table = plain_table("instead", *numbers, "", numbers=numbers, gap=2 if wide else 1)
    for other in choices(document):
        if other.chosen:
            continue
        table.add_row(
            other.label,
            *((text.seconds(other.iteration_s),) if wide else ()),
            pace_text(1.0 + other.slower),
            *((text.usd(other.usd_per_hour),) if wide else ()),
            text.usd(other.usd),
            text.signed_usd_beside(other.extra_usd, other.usd),
            other.verdict,
        )
    for row in without_plan(document):
        table.add_row(row.what, *("-" for _ in numbers), row.why)
    return table


def frontier_table(document: PlanDocument, *, width: int) -> Table:
    """Return the plans from the fastest to the cheapest; on a narrow terminal without their zones."""
    numbers, zones = frontier_numbers(document), ("",) if width >= NARROW else ()
    table = plain_table(TITLE, *zones, *numbers, BEST, numbers=numbers, gap=2 if width >= NARROW else 1)
    for devices, zone, *rest in frontier_rows(document):
        table.add_row(devices, *(zone for _ in zones), *rest)
    return table


def rejected_table(document: PlanDocument, *, details: bool) -> Table:
    table = plain_table("ruled out", "why")
    found = ruled_out(document)
    shown = found if details else found[:REJECTED_SHOWN]
    for row in shown:
        table.add_row(row.what, row.why)
    hidden = len(found) - len(shown)
    if hidden:
        table.add_row(f"and {hidden} more", "see --details")
    return table
