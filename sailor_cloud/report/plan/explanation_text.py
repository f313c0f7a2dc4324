"""Prints the explanation of a plan on a terminal or in a pipe, part by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sailor_cloud.model.document import Ground, Status
from sailor_cloud.report.decision.decision_rows import left_out_table
from sailor_cloud.report.plan.facts import grouped
from sailor_cloud.report.tables import plain_table, print_report
from sailor_cloud.units import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sailor_cloud.model.document import LeftOut
    from sailor_cloud.planner.explaining import Explanation, RuledOut
    from sailor_cloud.planner.marginal import Gain

# The words for what is counted as a quota: that of the account, or the devices that the job allows.
_LIMITS = "job or quota"


def print_reasons(found: Explanation, console: Console) -> None:
    """Print all but the gains: the reasons for the plan, what it leaves out, and what can't be used."""
    title = Text(found.job, style="bold")
    verdict = "plan as given, not searched" if found.verdict == Status.GIVEN else found.verdict
    title.append(f"  {verdict}", style="green" if found.feasible else "bold red")
    parts: list[RenderableType] = [title, _block(_list("why", found.reasons))]
    if found.left_out:
        parts.append(left_out_rows(found.left_out, found.verdict))
    if found.ruled_out:
        table = plain_table("ruled out", "by", "why")
        for ground, rows in _by_ground(found.ruled_out).items():
            for line in grouped(rows):
                table.add_row(line.what, ground, line.why)
        parts.append(_block(table))
    print_report(Group(*parts), console)


def left_out_rows(rows: Sequence[LeftOut], verdict: str) -> RenderableType:
    """Return the table of what a plan leaves out; for a plan file, a line says how little was searched."""
    if verdict != Status.GIVEN:
        return _block(left_out_table(rows))
    note = "from a quick search around this plan; 'explain' with the job file searches fully"
    return Group(_block(left_out_table(rows)), Text(note, style="dim"))


def print_gain(gain: Gain, console: Console) -> None:
    """Print the result of one change when it is found."""
    if gain.is_nothing:
        print_report(Text(f"with {gain.change}: no better plan was found", style="dim"), console)
    else:
        print_report(Text(f"with {gain.change}: {gain.text}"), console)


def print_rest(searched: int, wanted: int | None, console: Console) -> None:
    """Say in one line which changes were not searched.

    wanted: the number of changes; None if the search for the first one never began.
    """
    if wanted is None:
        left = "what more devices, money or time would bring"
    else:
        left = counted(wanted - searched, "more change") if searched < wanted else ""
    if left:
        print_report(Text(f"skipped to save time: {left}; '--time-limit SECONDS' allows more"), console)


def _by_ground(rows: Iterable[RuledOut]) -> dict[str, list[RuledOut]]:
    found: dict[str, list[RuledOut]] = {}
    for row in rows:
        found.setdefault(_LIMITS if row.ground is Ground.QUOTA else row.ground.value, []).append(row)
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
