"""Shows published planners beside ours: as a table, Markdown, JSON or one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from sailor_cloud.report import markdown, text
from sailor_cloud.report.html.page import page
from sailor_cloud.report.html.svg import Markup, Scale, chart, element, label, line, ticks
from sailor_cloud.report.tables import plain_table, rendered

if TYPE_CHECKING:
    from sailor_cloud.planner.strategies import Comparison, Contender

HEADINGS = ("planner", "iterations/s", "USD/iteration", "own estimate", "out of memory", "devices", "CPU", "")
NUMBERS = HEADINGS[1:7]
KEY = (
    "own estimate: iterations/s by the planner's own cost model. out of memory: plans that it ranked higher and that "
    "do not fit. oracle: the best of the same plans by our simulator. Every other figure is our simulator's."
)


def rows(comparison: Comparison) -> list[tuple[str, ...]]:
    """Return the cells of each planner under `HEADINGS`."""
    return [_row(each) for each in comparison.contenders]


def as_text(comparison: Comparison) -> str:
    """Return the table as plain text."""
    table = plain_table(*HEADINGS, numbers=NUMBERS, whole=("planner",))
    for row in rows(comparison):
        table.add_row(*row)
    return rendered(table) + f"\n{KEY}\n"


def as_markdown(comparison: Comparison) -> str:
    """Return the table in Markdown."""
    shown = [(*row[:-1], row[-1] or " ") for row in rows(comparison)]
    return f"{markdown.table([*HEADINGS[:-1], 'note'], shown, numbers=NUMBERS)}\n\n{KEY}\n"


def as_json_text(comparison: Comparison) -> str:
    """Return all figures as one JSON document."""
    return json.dumps(asdict(comparison), indent=2) + "\n"


def as_html(comparison: Comparison) -> str:
    """Return a page with the table and all planners by cost and time."""
    head = element("tr", *(element("th", heading) for heading in HEADINGS))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows(comparison)]
    content = element(
        "main",
        element("h1", f"{comparison.job}: planners compared"),
        element("section", element("h2", "Cost against time"), comparison_chart(comparison.contenders)),
        element("section", element("div", element("table", head, *body), class_="scroll"), element("p", KEY)),
    )
    return page(f"{comparison.job}: planners compared", content)


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 1000.0, 440.0, 76.0, 24.0, 20.0, 52.0


def comparison_chart(contenders: Sequence[Contender]) -> Markup:
    """Draw iterations per second against USD per iteration; better is right and down."""
    known = [(1.0 / each.iteration_s, each.usd_per_iteration, each) for each in contenders if each.iteration_s]
    points = [(speed, usd, each) for speed, usd, each in known if usd is not None]
    if not points:
        return Markup("")
    across = Scale(0.0, 1.1 * max(speed for speed, _, _ in points), LEFT, WIDTH - RIGHT)
    up = Scale(0.0, 1.1 * max(usd for _, usd, _ in points), HEIGHT - BOTTOM, TOP)
    parts = []
    for tick in ticks(across.low, across.high):
        parts.append(line(across(tick), TOP, across(tick), HEIGHT - BOTTOM, class_="grid"))
        parts.append(label(across(tick), HEIGHT - BOTTOM + 18, f"{tick:g}", anchor="middle", class_="muted"))
    for tick in ticks(up.low, up.high):
        parts.append(line(LEFT, up(tick), WIDTH - RIGHT, up(tick), class_="grid"))
        parts.append(label(LEFT - 8, up(tick) + 4, f"{tick:g}", anchor="end", class_="muted"))
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "iterations/s", anchor="middle"))
    parts.append(label(LEFT, TOP - 6, "USD/iteration", class_="muted"))
    taken: list[tuple[float, float]] = []
    for speed, usd, each in points:
        x, y = across(speed), up(usd)
        kind = "point chosen" if each.name == "sailor-cloud" else "point efficient"
        tip = f"{_name(each)}: {speed:.4g} iterations/s, {text.usd(usd)} USD/iteration"
        parts.append(
            element("circle", cx=x, cy=y, r=5 if not each.oracle else 3.5, class_=kind, data_tip=tip, tabindex=0)
        )
        while any(abs(x - other) < 130 and abs(y - beside) < 13 for other, beside in taken):
            y -= 13
        taken.append((x, y))
        left = x > WIDTH - 150
        parts.append(label(x - 9 if left else x + 9, y + 4, _name(each), anchor="end" if left else "start"))
    return chart(WIDTH, HEIGHT, "Cost against speed of every planner's plan", *parts)


def _name(each: Contender) -> str:
    return f"{each.name}, oracle" if each.oracle else each.name


def _row(each: Contender) -> tuple[str, ...]:
    def shown(value: float | None, form: str = ".4g") -> str:
        return "-" if value is None else format(value, form)

    return (
        _name(each),
        shown(None if each.iteration_s is None else 1.0 / each.iteration_s),
        shown(each.usd_per_iteration),
        shown(None if each.estimate_s is None else 1.0 / each.estimate_s),
        str(each.out_of_memory),
        str(each.devices or "-"),
        f"{each.seconds:.1f} s",
        each.note,
    )
