"""Tables for a terminal or a pipe, and in Markdown."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType
from rich.table import Table

from sailor_cloud.report.console import PlainConsole


def plain_table(*headings: str, numbers: tuple[str, ...] = (), whole: tuple[str, ...] = (), gap: int = 2) -> Table:
    """Return an empty table, columns `gap` apart; those named in `numbers` are aligned to the right.

    Columns named in `whole` are never folded, since people copy their content.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, gap, 0, 0))
    for heading in headings:
        if heading in numbers:
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold", no_wrap=heading in whole)
    return table


def print_report(report: RenderableType, console: Console) -> None:
    """Print a report; outside a terminal, without trailing blanks."""
    if console.is_terminal:
        console.print(report)
        return
    with console.capture() as capture:
        console.print(report)
    console.out(trimmed(capture.get()), end="", highlight=False)


def rendered(report: RenderableType, *, width: int = 120) -> str:
    """Return a report as plain text, without trailing blanks."""
    console = PlainConsole(width=width, file=io.StringIO(), color_system=None, highlight=False)
    with console.capture() as capture:
        console.print(report)
    return trimmed(capture.get())


def trimmed(shown: str) -> str:
    """Return text without blanks at the ends of its lines."""
    return "".join(f"{line.rstrip()}\n" for line in shown.splitlines())


def cell(content: str) -> str:
    """Return text that can't break out of a table cell or become markup."""
    escaped = content.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")
    for character in "*_`<>[]":
        escaped = escaped.replace(character, f"\\{character}" if character not in "<>" else _ENTITIES[character])
    return escaped


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[str] = ()) -> str:
    """Return a table; cells are escaped, columns named in `numbers` are aligned to the right."""
    lines = [
        f"| {' | '.join(headings)} |",
        f"| {' | '.join('---:' if heading in numbers else '---' for heading in headings)} |",
    ]
    lines += [f"| {' | '.join(cell(content) for content in row)} |" for row in rows]
    return "\n".join(lines)


def folded(summary: str, content: str) -> str:
    """Return a collapsed section."""
    return f"<details><summary>{summary}</summary>\n\n{content}\n\n</details>"


_ENTITIES = {"<": "&lt;", ">": "&gt;"}
