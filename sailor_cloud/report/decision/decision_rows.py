"""The first screen: three plans to choose from, and the price of insisting on what the chosen one leaves out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sailor_cloud.model.document import Choice, Decision, LeftOut
from sailor_cloud.model.job import Job
from sailor_cloud.report import text
from sailor_cloud.report.markup import Markup, element, html_table
from sailor_cloud.report.tables import markdown_table, plain_table
from sailor_cloud.units import probability_text, usd_texts

MARK, WIDE = "▶", 100
_HEADINGS = ("choose", "USD", "time", "in limits", "runs on")
_NUMBERS = _HEADINGS[1:4]


def headline(job: Job, decision: Decision) -> str:
    """Return which plan is chosen, and by whom."""
    by = f"the goal is {job.goal.value}" if decision.asked is None else f"--choose {decision.asked.value}"
    first, *others = (pick.value for pick in decision.choice(decision.chosen).picks)
    also = f", which is also the {' and the '.join(others)} one" if others else ""
    return f"the {first} plan is chosen{also} ({by})"


def _choice_rows(job: Job, choices: Sequence[Choice]) -> Iterator[tuple[Choice, tuple[str, ...]]]:
    """Yield each choice with its cells: name, USD, time, probability and machines."""
    per = "" if job.training.steps else " per iteration"
    for choice, usd in zip(choices, usd_texts([choice.usd for choice in choices]), strict=True):
        yield (
            choice,
            (
                " and ".join(pick.value for pick in choice.picks),
                usd + per,
                text.seconds(choice.seconds) + per,
                "" if choice.within_limits is None else _short(choice.within_limits),
                choice.runs_on,
            ),
        )


def _short(chance: float) -> str:
    return probability_text(chance).replace("more than", ">").replace("less than", "<")


def left_out_cells(row: LeftOut) -> tuple[str, str, str]:
    """Return the cells of something left out: its name, the change from insisting on it, and that plan's machines."""
    return row.title, row.why, row.runs_on


def limits_note(job: Job) -> str:
    """Return a note that explains the probability, or why there is none."""
    given = (("budget", job.constraints.budget_usd), ("deadline", job.constraints.deadline))
    known = [name for name, value in given if value is not None]
    if not known:
        return ""
    if not job.training.steps:
        return f"in limits: unknown without a number of steps; the run is stopped at the {' and the '.join(known)}"
    return (
        f"in limits: the chance that the run finishes within {', '.join(known)} and TTL (when all nodes shut "
        "themselves down) at the prices shown"
    )


def decision_report(job: Job, decision: Decision, *, width: int, ascii_only: bool = False) -> RenderableType:
    """Return the first screen for a terminal or a pipe."""
    title = Text(f"{job.name}  ", style="bold")
    title.append(headline(job, decision), style="green")
    if not decision.complete:
        title.append("; still searching", style="dim")
    parts: list[RenderableType] = [title, *(Text(note, style="yellow") for note in decision.notes)]
    choices = _choices(job, decision, width=width, mark=">" if ascii_only else MARK)
    parts.append(_block(Group(choices, Text(limits_note(job), style="dim")) if limits_note(job) else choices))
    if decision.left_out:
        parts.append(_block(left_out_table(decision.left_out)))
    return Group(*parts)


def left_out_table(left_out: Sequence[LeftOut]) -> Table:
    """Return a table of what is left out, with the price of insisting."""
    rows = plain_table("why not", "insisting on it", "would run on", whole=("why not",))
    for row in left_out:
        rows.add_row(*left_out_cells(row))
    return rows


def _choices(job: Job, decision: Decision, *, width: int, mark: str) -> Table:
    narrow = width < WIDE
    headings = _HEADINGS[:4] if narrow else _HEADINGS
    table = plain_table("", *headings, numbers=_NUMBERS, whole=("choose",), gap=1 if narrow else 2)
    for choice, (*cells, runs_on) in _choice_rows(job, decision.choices):
        style = "bold" if choice.chosen else None
        below = f"{runs_on}\n{choice.why}"
        if narrow:
            table.add_row(mark if choice.chosen else "", *cells, style=style)
        else:
            table.add_row(mark if choice.chosen else "", *cells, below, style=style)
    if not narrow:
        return table
    grid = Table.grid()
    grid.add_column(overflow="fold")
    grid.add_row(table)
    for choice in decision.choices:
        grid.add_row(Text(f"{choice.picks[0].value}: {choice.runs_on}; {choice.why}"))
    return grid


def _block(part: RenderableType) -> RenderableType:
    return Padding(part, (1, 0, 0, 0))


def decision_as_markdown(job: Job, decision: Decision) -> str:
    """Return the first screen as Markdown."""
    rows = []
    for choice, (name, *rest) in _choice_rows(job, decision.choices):
        rows.append((f"{name} {MARK}" if choice.chosen else name, *rest, choice.why))
    parts = [f"**{headline(job, decision).capitalize()}.**", *(f"> {note}" for note in decision.notes)]
    parts.append(markdown_table((*_HEADINGS, "why"), rows, numbers=_NUMBERS))
    if decision.left_out:
        left = [left_out_cells(row) for row in decision.left_out]
        parts.append(markdown_table(("why not", "insisting on it", "would run on"), left))
    return "\n\n".join(parts)


def decision_as_html(job: Job, decision: Decision) -> Markup:
    """Return the first screen as cards, one for each choice, and a table of what is left out."""
    cards = []
    for choice, (name, usd, time, chance, runs_on) in _choice_rows(job, decision.choices):
        amount, _, per = usd.partition(" ")
        given = (("runs on", runs_on), ("in limits", chance))
        facts = [part for name, value in given if value for part in (element("dt", name), element("dd", value))]
        cards.append(
            element(
                "article",
                element("h3", name, element("span", "chosen", class_="badge") if choice.chosen else ""),
                element("p", element("b", f"{amount} USD {per}".rstrip()), element("span", time), class_="price"),
                element("dl", *facts),
                element("p", choice.why, class_="why"),
                class_="choice chosen" if choice.chosen else "choice",
            )
        )
    parts = [element("h2", "Decision"), element("p", headline(job, decision), class_="proof")]
    parts += [element("p", note, class_="note") for note in decision.notes]
    parts.append(element("div", *cards, class_="choices"))
    if note := limits_note(job):
        parts.append(element("p", note, class_="key"))
    if decision.left_out:
        rows = [left_out_cells(row) for row in decision.left_out]
        parts.append(html_table(("why not", "insisting on it", "would run on"), rows))
    return element("section", *parts, id="decision")
