"""A difference between two plans, for a terminal, a pull request or a program."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from sailor_cloud.report import text
from sailor_cloud.report.decision.difference import Difference, Edit, Figure
from sailor_cloud.report.markdown import cell, table
from sailor_cloud.report.tables import plain_table, print_report, rendered

NO_CHANGE = "no change in cost, time or plan"


def headline(found: Difference) -> str:
    """Return the whole difference in one line: `+38.20 USD (+12 %), +4 h`."""
    if found.head_status == "infeasible":
        return f"no plan any more: {found.message}" if found.base_status != "infeasible" else "infeasible as before"
    if found.base_status == "infeasible":
        return f"feasible now: {text.usd(found.usd.head)} {found.usd.unit}, {text.seconds(found.time.head)}"
    if found.same:
        return NO_CHANGE
    money = f"{_delta(found.usd)} {found.usd.unit}"
    if found.usd.share is not None:
        money += f" ({text.change(found.usd.share)})"
    per = " per iteration" if found.time.what == "iteration" else ""
    return f"{money}, {_delta(found.time)}{per}"


def difference_report(found: Difference) -> RenderableType:
    title = Text(f"{_name(found)}: ", style="bold")
    title.append(headline(found))
    parts: list[RenderableType] = [title]
    if found.same:
        return title
    numbers = ("before", "after", "change", "share")
    figures = plain_table("", *numbers, numbers=numbers)
    for figure in (*found.figures, *found.branches):
        figures.add_row(*_cells(figure))
    parts.append(Padding(figures, (1, 0, 0, 0)))
    for heading, edits in (("nodes", found.nodes), ("job", found.job)):
        if edits:
            rows = plain_table(heading, "before", "after")
            for edit in edits:
                rows.add_row(*_edit(edit))
            parts.append(Padding(rows, (1, 0, 0, 0)))
    return Group(*parts)


def print_difference(found: Difference, console: Console) -> None:
    print_report(difference_report(found), console)


def difference_as_text(found: Difference, *, width: int = 120) -> str:
    """Return the report as plain text for a file."""
    return rendered(difference_report(found), width=width)


def difference_as_markdown(found: Difference) -> str:
    parts = [f"### {cell(_name(found))}: {cell(headline(found))}"]
    if not found.same:
        numbers = ("before", "after", "change", "share")
        rows = [_cells(figure) for figure in (*found.figures, *found.branches)]
        parts.append(table(("", *numbers), rows, numbers=numbers))
        for heading, edits in (("nodes", found.nodes), ("job", found.job)):
            if edits:
                parts.append(table((heading, "before", "after"), (_edit(edit) for edit in edits)))
    return "\n\n".join(parts) + "\n"


def difference_as_json(found: Difference) -> str:
    content = asdict(found)
    content["headline"] = headline(found)
    for figure, value in (
        (content["usd"], found.usd),
        (content["time"], found.time),
        *zip(content["figures"], found.figures, strict=True),
        *zip(content["branches"], found.branches, strict=True),
    ):
        figure["delta"], figure["share"] = value.delta, value.share
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def _name(found: Difference) -> str:
    return found.head_job if found.base_job == found.head_job else f"{found.base_job} to {found.head_job}"


def _cells(figure: Figure) -> tuple[str, str, str, str, str]:
    share = text.change(figure.share) if figure.share else ""
    name = f"{figure.what}, {figure.unit}" if figure.unit != "s" else figure.what
    return name, _value(figure, figure.base), _value(figure, figure.head), _delta(figure), share


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return "-"
    return text.seconds(value) if figure.unit == "s" else text.usd(value)


def _delta(figure: Figure) -> str:
    if figure.delta is None:
        return "-"
    if figure.delta == 0:
        return "0"
    if figure.unit == "s":
        return text.signed_seconds(figure.delta)
    beside = text.signed_usd_beside(figure.delta, max(abs(figure.base or 0.0), abs(figure.head or 0.0)))
    # A difference smaller than the decimals of the amounts is shown with its own.
    return beside if beside.strip("+-0.") else text.signed_usd(figure.delta)


def _edit(edit: Edit) -> tuple[str, str, str]:
    return edit.what, edit.base or "-", edit.head or "-"
