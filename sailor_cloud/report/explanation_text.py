"""An explanation of a plan, for a terminal or a pipe."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sailor_cloud.report.ruled_out import grouped
from sailor_cloud.report.tables import plain_table, print_report

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sailor_cloud.planner.explaining import Explanation, RuledOut


def print_explanation(found: Explanation, console: Console) -> None:
    """Print why the plan is what it is, what was ruled out and what a little more would bring."""
    title = Text(found.job, style="bold")
    title.append(f"  {found.verdict}", style="green" if found.feasible else "bold red")
    parts: list[RenderableType] = [title, _block(_list("why", found.reasons))]
    if found.ruled_out:
        table = plain_table("ruled out", "by", "why")
        for ground, rows in _by_ground(found.ruled_out).items():
            for line in grouped(rows):
                table.add_row(line.what, ground, line.why)
        parts.append(_block(table))
    if found.gains:
        table = plain_table("with", "there would be")
        for gain in found.gains:
            table.add_row(gain.change, gain.text)
        parts.append(_block(table))
    print_report(Group(*parts), console)


def _by_ground(rows: Iterable[RuledOut]) -> dict[str, list[RuledOut]]:
    found: dict[str, list[RuledOut]] = {}
    for row in rows:
        found.setdefault(row.ground.value, []).append(row)
    return found


def _list(heading: str, lines: tuple[str, ...]) -> Table:
    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="bold", no_wrap=True)
    rows.add_column(overflow="fold")
    for number, line in enumerate(lines):
        rows.add_row(heading if number == 0 else "", line)
    return rows


def _block(part: Table) -> Padding:
    return Padding(part, (1, 0, 0, 0))
