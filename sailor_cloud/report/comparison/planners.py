"""Compares published planners with ours: as a table, Markdown, JSON or one HTML page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.text import Text

from sailor_cloud.report import text
from sailor_cloud.report.html.charts import echart, points_option
from sailor_cloud.report.html.page import page
from sailor_cloud.report.markup import Markup, element
from sailor_cloud.report.tables import markdown_table, plain_table, rendered

if TYPE_CHECKING:
    from sailor_cloud.planner.strategies import Comparison, Contender

HEADINGS = (
    "planner",
    "iterations/s",
    "USD/iteration",
    "run, hours",
    "run, USD",
    "own estimate",
    "out of memory",
    "devices",
    "CPU",
    "note",
)
NOTE = HEADINGS[-1]
NUMBERS = HEADINGS[1:-1]
# From these widths on, a terminal has room for whole headings, and for more than the first columns.
WIDE, NARROW = 110, 80
PAGE = 120
NARROW_COLUMNS = 3
_FOLDED = {
    "iterations/s": "iterations\n/s",
    "USD/iteration": "USD/\niteration",
    "run, hours": "run,\nhours",
    "run, USD": "run,\nUSD",
    "own estimate": "own\nestimate",
    "out of memory": "out of\nmemory",
}
KEY = (
    "own estimate: iterations/s by the planner's own cost model. out of memory: plans that it ranked higher and that "
    "do not fit. oracle: the best of the same plans by our simulator. Every other figure is our simulator's."
)


def columns(comparison: Comparison) -> tuple[list[str], list[list[str]]]:
    """Return headings and each planner's cells; columns without any figure or note are left out."""
    return _columns(comparison.contenders)


def _columns(contenders: Sequence[Contender]) -> tuple[list[str], list[list[str]]]:
    cells = [_row(each) for each in contenders]
    shown = [i for i in range(len(HEADINGS)) if any(row[i] not in ("", "-") for row in cells)]
    return [HEADINGS[i] for i in shown], [[row[i] for i in shown] for row in cells]


def as_text(comparison: Comparison) -> str:
    """Return the table as plain text."""
    return rendered(report(comparison.contenders, width=PAGE), width=PAGE)


def report(contenders: Sequence[Contender], *, width: int) -> RenderableType:
    """Return the table of planners, with notes and a key below it; narrow terminals get shorter headings or columns."""
    headings, rows = _columns(contenders)
    kept = [
        place
        for place, heading in enumerate(headings)
        if heading != NOTE and (width >= NARROW or heading in HEADINGS[:NARROW_COLUMNS])
    ]
    titles = [headings[place] if width >= WIDE else _FOLDED.get(headings[place], headings[place]) for place in kept]
    numbers = tuple(title for place, title in zip(kept, titles, strict=True) if headings[place] in NUMBERS)
    whole = ("planner",) if width >= WIDE else ()
    table = plain_table(*titles, numbers=numbers, whole=whole, gap=2 if width >= WIDE else 1)
    for row in rows:
        table.add_row(*(row[place] for place in kept))
    noted: dict[str, list[str]] = {}
    for each in contenders:
        if each.note:
            names = noted.setdefault(each.note, [])
            if each.name not in names:
                names.append(f"{each.name} (oracle)" if each.oracle else each.name)
    notes = [Text(f"{note}: {', '.join(names)}") for note, names in noted.items()]
    return Group(table, *([Text(), *notes] if notes else []), Text(f"\n{KEY}"))


def found_line(each: Contender) -> str:
    """Return one planner's result in a line, for a reader who waits for the others."""
    if not each.iteration_s:
        return f"{_name(each)}: {each.note or 'no plan'}"
    cost = "" if each.usd_per_iteration is None else f", {text.usd(each.usd_per_iteration)} USD/iteration"
    return f"{_name(each)}: {1.0 / each.iteration_s:.4g} iterations/s{cost}{f' ({each.note})' if each.note else ''}"


def as_markdown(comparison: Comparison) -> str:
    """Return the table in Markdown."""
    headings, rows = columns(comparison)
    shown = [[cell or " " for cell in row] for row in rows]
    return f"{markdown_table(headings, shown, numbers=NUMBERS)}\n\n{KEY}\n"


def as_json_text(comparison: Comparison) -> str:
    """Return all figures as one JSON document."""
    return json.dumps(asdict(comparison), indent=2) + "\n"


def as_html(comparison: Comparison) -> str:
    """Return a page with the table and all planners by cost and time."""
    headings, rows = columns(comparison)
    head = element("tr", *(element("th", heading) for heading in headings))
    body = [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    content = element(
        "main",
        element("h1", f"{comparison.job}: planners compared"),
        element("section", element("h2", "Cost against time"), comparison_chart(comparison.contenders)),
        element("section", element("div", element("table", head, *body), class_="scroll"), element("p", KEY)),
    )
    return page(f"{comparison.job}: planners compared", content)


def comparison_chart(contenders: Sequence[Contender]) -> Markup:
    """Draw iterations per second against USD per iteration; better is right and down."""
    ours: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    oracles: list[dict[str, Any]] = []
    for each in contenders:
        if not each.iteration_s or each.usd_per_iteration is None:
            continue
        speed, usd = 1.0 / each.iteration_s, each.usd_per_iteration
        tip = f"{_name(each)}: {speed:.4g} iterations/s, {text.usd(usd)} USD/iteration"
        kind = ours if each.name == "sailor-cloud" else oracles if each.oracle else others
        kind.append({"value": [speed, usd], "name": _name(each), "tip": tip})
    _name_equals(ours, others, oracles)
    if len(ours) + len(others) + len(oracles) < 2:
        return Markup("")
    label = {"show": True, "position": "right", "formatter": "{b}"}
    kinds = (
        ("sailor-cloud", ours, 16, "var(--accent)"),
        ("own cost model", others, 11, "var(--c2)"),
        ("our simulator's choice (oracle)", oracles, 9, "var(--c3)"),
    )
    series = [
        {"name": name, "type": "scatter", "data": data, "symbolSize": size, "color": colour, "label": label}
        for name, data, size, colour in kinds
        if data
    ]
    option = points_option(series, across="iterations/s", up="USD/iteration", from_zero=True)
    return echart("Cost against speed of every planner's plan", option, height=460)


def _name_equals(*kinds: list[dict[str, Any]]) -> None:
    """Let one point name all that overlap it, and hide their own names."""
    seen: dict[tuple[str, ...], dict[str, Any]] = {}
    for point in (point for kind in kinds for point in kind):
        place = tuple(f"{value:.3g}" for value in point["value"])
        first = seen.setdefault(place, {**point, "names": [], "points": []})
        first["points"].append(point)
        name = point["name"].removesuffix(", oracle")
        if name not in first["names"]:
            first["names"].append(name)
    for found in seen.values():
        names, tips = found["names"], "\n".join(point["tip"] for point in found["points"])
        for point in found["points"]:
            point |= {"name": "", "tip": tips}
        found["points"][0]["name"] = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _name(each: Contender) -> str:
    return f"{each.name}, oracle" if each.oracle else each.name


def _row(each: Contender) -> tuple[str, ...]:
    def shown(value: float | None, form: str = ".4g") -> str:
        return "-" if value is None else format(value, form)

    return (
        _name(each),
        shown(None if each.iteration_s is None else 1.0 / each.iteration_s),
        shown(each.usd_per_iteration),
        shown(None if each.duration_s is None else each.duration_s / 3600.0),
        shown(each.total_usd),
        shown(None if each.estimate_s is None else 1.0 / each.estimate_s),
        str(each.out_of_memory),
        str(each.devices or "-"),
        f"{each.seconds:.1f} s",
        each.note,
    )
