"""The charts of the HTML report. The bundled ECharts draws them; if scripts are blocked, tables replace them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from sailor_cloud.model.document import FrontierPoint, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import CHOSEN, Choice, choices, usd_unit
from sailor_cloud.report.markup import Markup, element, html_table
from sailor_cloud.report.plan.facts import memory_rows
from sailor_cloud.report.plan.groups import PipelineGroup, StageRow, pipeline_groups
from sailor_cloud.report.plan.money import CostBranch, cost_tree, expected_usd
from sailor_cloud.simulator import TimelineSpan
from sailor_cloud.units import GIB, MIB, pace_text, usd_difference_text

# Margins between points and the edge of a chart; zoom by the wheel or by dragging the bar.
_GRID = {"left": 24, "right": 24, "top": 56, "bottom": 44, "containLabel": True}
_THINNEST, _THICKEST = 1.5, 8.0
_LEGEND = {"top": 0, "left": 0, "type": "plain"}


def echart(title: str, option: dict[str, Any], *, height: int, canvas: bool = False) -> Markup:
    """Return the element of a chart. `option` is ECharts'; data items may have a `tip` of several lines.

    A series' label is shown on narrow screens, too, if it has `always`.

    Colours are the page's variables, as in `var(--c1)`. `canvas`: for charts of thousands of shapes, each of which
    would otherwise be an element of the page.
    """
    shown = {"grid": _GRID, "legend": _LEGEND, "tooltip": {"trigger": "item", "confine": True}, **option}
    content = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    return element(
        "div",
        class_="echart",
        role="img",
        aria_label=title,
        data_option=content,
        data_renderer="canvas" if canvas else None,
        style=f"height: {height}px",
    )


def arcs(lines: Sequence[dict[str, Any]], *, on: str, curveness: float, named: bool = True) -> list[dict[str, Any]]:
    """Return arcs between places as ECharts series; `share`, 0 to 1 of the busiest, sets their width."""
    return [
        {
            "type": "lines",
            "coordinateSystem": on,
            "color": "var(--c2)",
            "lineStyle": {
                "curveness": curveness,
                "opacity": 0.75,
                "width": _THINNEST + (_THICKEST - _THINNEST) * share,
            },
            "label": {"show": named, "position": "middle", "formatter": "{b}"},
            "labelLayout": {"moveOverlap": "shiftY"},
            "emphasis": {"lineStyle": {"opacity": 1}},
            "data": [{key: value for key, value in line.items() if key != "share"}],
        }
        for line in lines
        for share in (float(line["share"]),)
    ]


def points_option(series: Sequence[dict[str, Any]], *, across: str, up: str, from_zero: bool = False) -> dict[str, Any]:
    """Return the option of a zoomable scatter chart; `across` and `up` are its axis titles."""
    axis = {"type": "value", "scale": not from_zero, "boundaryGap": ["8%", "12%"], "nameLocation": "middle"}
    return {
        "xAxis": {**axis, "name": across, "nameGap": 28},
        "yAxis": {**axis, "name": up, "nameLocation": "end", "nameTextStyle": {"align": "left"}},
        "dataZoom": [{"type": "inside"}, {"type": "inside", "orient": "vertical"}],
        "series": list(series),
    }


def script() -> Markup:
    """Return the chart library, and the script that draws a page's charts."""
    library = files("sailor_cloud.report.html.vendor").joinpath("echarts.min.js").read_text(encoding="utf-8")
    own = files("sailor_cloud.report.html").joinpath("charts.js").read_text(encoding="utf-8")
    return Markup(f"<script>{library}</script><script>{own}</script>")


# A share that is shown as 0.1 %.
SMALLEST_SHARE = 0.0005
MONEY_TITLE = "Cost by kind, expected and worst case"


def money_chart(document: PlanDocument) -> Markup:
    cost = document.cost
    assert cost is not None
    branches, whole = cost_tree(cost), expected_usd(cost)
    bar = {"type": "bar", "barWidth": "60%"}
    outline = {"color": "transparent", "borderColor": "var(--c1)", "borderType": "dashed", "borderWidth": 1.5}
    named = {"show": True, "always": True, "position": "right", "formatter": "{b}"}
    expected = [{"value": branch.usd, "tip": _money_tip(branch)} for branch in branches]
    worst = [
        {"value": branch.worst_usd, "tip": _money_tip(branch), "name": _named(branch, whole)} for branch in branches
    ]
    option = {
        "yAxis": {"type": "category", "inverse": True, "data": [branch.title for branch in branches]},
        "xAxis": {
            "type": "value",
            "name": "USD",
            "nameLocation": "middle",
            "nameGap": 28,
            "axisLabel": {"hideOverlap": True},
        },
        "grid": {"left": 24, "right": 190, "top": 40, "bottom": 40, "containLabel": True},
        "series": [
            {**bar, "name": "expected", "data": expected, "color": "var(--c1)"},
            {
                **bar,
                "name": "worst case",
                "data": worst,
                "barGap": "-100%",
                "color": "var(--c1)",
                "itemStyle": outline,
                "label": named,
            },
        ],
    }
    return echart(MONEY_TITLE, option, height=90 + 32 * len(branches))


def _money_tip(branch: CostBranch) -> str:
    first = f"{branch.title}: {text.usd(branch.usd)} USD, worst case {text.usd(branch.worst_usd)} USD"
    return "\n".join([first, *(f"{text.usd(entry.usd)}  {entry.what}" for entry in branch.lines)])


def _named(branch: CostBranch, whole: float) -> str:
    """Return the label of a bar, without the figures that round to nothing."""
    share = f" ({text.share(branch.usd / whole)})" if whole and branch.usd >= SMALLEST_SHARE * whole else ""
    expected, worst = (text.usd_aligned(usd, whole) for usd in (branch.shown_usd, branch.shown_worst_usd))
    shown = [f"{expected}{share}"] if branch.shown_usd else []
    return ", ".join(shown + ([f"at worst {worst}"] if worst != expected else []))


FRONTIER_TITLE = "Cost against time of the chosen plan and its alternatives"
# Points of the frontier are drawn up to this multiple of the shortest iteration.
FRONTIER_SPAN = 12.0
# And up to this multiple of the most expensive plan among the choices and alternatives.
FRONTIER_HEIGHT = 1.3
HOURLY = "fewer or cheaper nodes"


def frontier_chart(document: PlanDocument) -> Markup:
    """Draw the time of the run (or of an iteration) against USD; empty if there is only one plan."""
    found = choices(document)
    nearby = _nearby(document, found)
    picked = [] if document.decision is None else [each for each in document.decision.choices if not each.chosen]
    drawn: list[Choice | FrontierPoint] = [*found, *nearby]
    seconds = [*(_seconds(document, each) for each in drawn), *(each.seconds for each in picked)]
    unit, factor = _time_unit(document, max(seconds))
    name = _chosen_name(document)
    chosen = [{**_point(document, choice, factor), "name": name} for choice in found if choice.chosen]
    others = [_point(document, choice, factor) for choice in found if not choice.chosen]
    best = [_small(document, point, factor) for point in nearby if point.cheapest]
    hourly = [_small(document, point, factor) for point in nearby if not point.cheapest]
    choose = [
        {
            "value": [each.seconds * factor, each.usd],
            "name": " and ".join(pick.value for pick in each.picks),
            "tip": f"{' and '.join(pick.value for pick in each.picks)}\n{each.why}",
        }
        for each in picked
    ]
    if len(chosen) + len(others) + len(best) + len(hourly) + len(choose) < 2:
        return Markup("")
    label = {"show": True, "position": "right", "formatter": "{b}"}
    series: list[dict[str, Any]] = [
        {
            "name": "Pareto frontier",
            "type": "line",
            "step": "end",
            "data": best,
            "symbol": "circle",
            "symbolSize": 7,
            "lineStyle": {"type": "dashed", "width": 1.5},
            "color": "var(--accent)",
        },
        _dots(HOURLY, hourly, 5, "var(--muted)"),
        _dots("alternative", others, 11, "var(--c2)", label=label),
        _dots("other choice", choose, 12, "var(--c3)", label={**label, "always": True}),
        {
            **_dots("chosen", chosen, 19, "var(--accent)", label={**label, "always": True, "fontWeight": "bold"}),
            # A ring hides no point inside it.
            "itemStyle": {"color": "transparent", "borderColor": "var(--accent)", "borderWidth": 3},
            **_limits(document, factor),
        },
    ]
    return echart(
        FRONTIER_TITLE,
        points_option([each for each in series if each["data"]], across=unit, up=usd_unit(document)),
        height=430,
    )


def _chosen_name(document: PlanDocument) -> str:
    """Return the label of the chosen plan: `chosen`, and which of the choices it is."""
    decision = document.decision
    picks = [] if decision is None else [each.picks for each in decision.choices if each.chosen]
    return " ".join(["chosen:", " and ".join(pick.value for pick in picks[0])]) if picks else CHOSEN


def _dots(name: str, data: list[dict[str, Any]], size: int, colour: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "scatter", "data": data, "symbolSize": size, "color": colour, **more}


def _time_unit(document: PlanDocument, longest: float) -> tuple[str, float]:
    """Return the axis title for times of plans up to so many seconds, and the factor from seconds to its unit."""
    if document.job.training.steps is None:
        return "seconds of an iteration", 1.0
    unit, size = ("hours", 3600) if longest >= 7200 else ("minutes", 60) if longest >= 120 else ("seconds", 1)
    return f"{unit} until the last teardown", 1.0 / size


def _seconds(document: PlanDocument, plan: Choice | FrontierPoint) -> float:
    """Return the seconds of the run, or of an iteration without a number of steps."""
    return plan.iteration_s * (document.job.training.steps or 1) if plan.duration_s is None else plan.duration_s


def _limits(document: PlanDocument, factor: float) -> dict[str, Any]:
    """Return the lines of budget and deadline; ECharts leaves out lines outside the axes."""
    given, steps = document.constraints, document.job.training.steps
    lines: list[dict[str, Any]] = []
    if steps and given.budget_usd is not None:
        # A label at the end of the line would be outside the chart.
        lines.append({"yAxis": given.budget_usd, "name": "budget", "label": {"position": "insideEndTop"}})
    if steps and given.deadline is not None:
        lines.append({"xAxis": given.deadline * factor, "name": "deadline"})
    style = {
        "symbol": "none",
        "silent": True,
        "lineStyle": {"color": "var(--bad)"},
        "label": {"formatter": "{b}", "color": "var(--bad)"},
    }
    return {"markLine": {**style, "data": lines}} if lines else {}


def _point(document: PlanDocument, choice: Choice, factor: float) -> dict[str, Any]:
    return {
        "value": [_seconds(document, choice) * factor, choice.usd],
        # What follows in parentheses is in the tip: a long name would cross others.
        "name": choice.label.partition(" (")[0],
        "tip": _frontier_tip(document, choice),
    }


def _small(document: PlanDocument, point: FrontierPoint, factor: float) -> dict[str, Any]:
    devices = " + ".join(f"{count} {name}" for name, count in point.devices.items())
    lines = [
        f"{devices} in {', '.join(point.zones)}",
        f"iteration {text.seconds(point.iteration_s)}",
        f"{text.usd(point.usd)} {usd_unit(document)}, {text.usd(point.usd_per_hour)} USD/h",
    ]
    if not point.cheapest and point.nodes_usd_per_hour is not None:
        lines.append(f"no faster plan has nodes for {text.usd(point.nodes_usd_per_hour)} USD/h or less")
    return {"value": [_seconds(document, point) * factor, point.usd], "tip": "\n".join(lines)}


def _nearby(document: PlanDocument, found: Sequence[Choice]) -> list[FrontierPoint]:
    """Return the points of the frontier without far slower or more expensive ones, which would compress the rest."""
    picked = () if document.decision is None else document.decision.choices
    longest = max([FRONTIER_SPAN * min(choice.iteration_s for choice in found), *(each.iteration_s for each in picked)])
    dearest = _cost_limit(document, found)
    return [point for point in document.frontier if point.iteration_s <= longest and point.usd <= dearest]


def _cost_limit(document: PlanDocument, found: Sequence[Choice]) -> float:
    """Return the cost up to which points are drawn; without plans to choose from there is no limit."""
    picked = () if document.decision is None else document.decision.choices
    if not picked:
        return math.inf
    shown = max([*(choice.usd for choice in found), *(each.usd for each in picked)])
    return FRONTIER_HEIGHT * shown


def left_out_of_chart(document: PlanDocument) -> int:
    """Return how many points of the frontier are not drawn since they are far slower or far more expensive."""
    return len(document.frontier) - len(_nearby(document, choices(document)))


def _frontier_tip(document: PlanDocument, choice: Choice) -> str:
    offers = {offer.id: offer for offer in document.inputs.offers}
    counts = Counter(node.offer for node in choice.plan.nodes)
    machines = [
        f"{count} x {offers[name].instance_type} {offers[name].market.value} in {offers[name].zone}"
        if name in offers
        else f"{count} x {name}"
        for name, count in sorted(counts.items())
    ]
    more = usd_difference_text(choice.usd, choice.usd - choice.extra_usd)
    return "\n".join(
        [
            choice.label,
            f"iteration {text.seconds(choice.iteration_s)} ({pace_text(1.0 + choice.slower)})",
            f"{text.usd(choice.usd)} {usd_unit(document)} ({more}), {text.usd(choice.usd_per_hour)} USD/h",
            *machines,
            choice.verdict,
        ]
    )


SCHEDULE_TITLE = "Schedule of one iteration"

# Later kinds cover earlier ones, so only transfers that no computation hides are visible.
_KINDS = {
    "transfer": ("c2", ("receive_activation", "receive_gradient", "send_activation", "send_gradient")),
    "all-reduce or gather": ("c5", ("sync", "gather")),
    "forward": ("c1", ("forward",)),
    "backward": ("c3", ("backward", "weight_gradients")),
    "optimizer": ("c4", ("update",)),
}


def _stages(document: PlanDocument) -> tuple[list[tuple[PipelineGroup, StageRow]], dict[tuple[int, int], int]]:
    """Return the stages of one pipeline of each group, and the row of each by its pipeline's place and its index."""
    assert document.plan is not None
    places = {pipeline.id: place for place, pipeline in enumerate(document.plan.pipelines)}
    stages = [(group, stage) for group in pipeline_groups(document) for stage in group.stages]
    return stages, {(places[group.pipelines[0]], stage.index): row for row, (group, stage) in enumerate(stages)}


def _stage_name(group: PipelineGroup, stage: StageRow) -> str:
    return f"{text.ranges(group.pipelines)} / stage {stage.index}, {stage.hardware.accelerator}"


def schedule_table(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> Markup:
    """Return what a page without scripts shows instead of the schedule: each stage's seconds of each kind."""
    stages, rows = _stages(document)
    spent = [dict.fromkeys(_KINDS, 0.0) for _ in stages]
    for span in timeline:
        row = rows.get((span.pipeline, span.stage))
        for name, (_, kinds) in _KINDS.items():
            if row is not None and span.what in kinds:
                spent[row][name] += span.end_s - span.start_s
    cells = (
        (_stage_name(*stage), *(text.seconds(seconds) for seconds in each.values()))
        for stage, each in zip(stages, spent, strict=True)
    )
    return html_table(("pipelines / stage", *_KINDS), cells, numbers=tuple(_KINDS))


def schedule_chart(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> Markup:
    """Draw one pipeline of each group; if a stage is idle, its row shows the bubble."""
    stages, rows = _stages(document)
    shown = [span for span in timeline if (span.pipeline, span.stage) in rows]
    if not shown:
        return Markup("")
    end_s = max(span.end_s for span in timeline)
    busy = [0.0] * len(stages)
    for span in shown:
        busy[rows[span.pipeline, span.stage]] += span.end_s - span.start_s
    waits = [f"waiting: {text.seconds(max(0.0, end_s - each))} of {text.seconds(end_s)}" for each in busy]
    # `spans` is charts.js's: rows of (row, start, end, tooltip).
    series: list[dict[str, Any]] = [
        {
            "name": "bubble",
            "type": "spans",
            "color": "var(--line)",
            "data": [
                [row, 0.0, end_s, f"{waits[row]}\n{stage.hardware.zone}"] for row, (_, stage) in enumerate(stages)
            ],
        }
    ]
    for name, (colour, kinds) in _KINDS.items():
        data = [
            [rows[span.pipeline, span.stage], _rounded(span.start_s), _rounded(span.end_s), _what(span)]
            for span in shown
            if span.what in kinds
        ]
        series.append({"name": name, "type": "spans", "color": f"var(--{colour})", "data": data})
    option = {
        "yAxis": {
            "type": "category",
            "inverse": True,
            "axisTick": {"show": False},
            "data": [_stage_name(group, stage) for group, stage in stages],
        },
        "xAxis": {
            "type": "value",
            "name": "seconds",
            "nameLocation": "middle",
            "nameGap": 28,
            "max": end_s,
            "axisLabel": {"showMaxLabel": False},
        },
        "dataZoom": [{"type": "inside", "filterMode": "weakFilter"}],
        "series": series,
    }
    return echart(SCHEDULE_TITLE, option, height=100 + 26 * len(stages), canvas=True)


# From this many microbatches of a pipeline on, single passes are too narrow to see.
_MANY_MICROBATCHES = 24


def schedule_key(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> str:
    """Return how to see single passes in the schedule; empty if they are wide enough or nothing is drawn."""
    most = max((group.microbatches for group in pipeline_groups(document)), default=0)
    if not timeline or most < _MANY_MICROBATCHES:
        return ""
    return (
        f"{most} microbatches are too many to see one by one at this width. Scroll over the chart, or pinch, to zoom; "
        "drag to move."
    )


def _what(span: TimelineSpan) -> str:
    name = "all-reduce" if span.what == "sync" else span.what.replace("_", " ")
    if span.microbatch is None:
        return name
    chunk = "" if span.chunk is None else f", range {span.chunk + 1}"
    return f"{name} of microbatch {span.microbatch}{chunk}"


def _rounded(at_s: float) -> float:
    return float(f"{at_s:.6g}")


MEMORY_TITLE = "Memory of each stage against its limit"


def memory_chart(document: PlanDocument) -> Markup:
    rows = memory_rows(document)
    names = list(dict.fromkeys(part for row in rows for part in row.memory.parts))
    largest = max(max(row.memory.limit_bytes, row.memory.total_bytes) for row in rows)
    unit, unit_name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    series: list[dict[str, object]] = [
        {
            "name": name,
            "type": "bar",
            "stack": "parts",
            "barWidth": "55%",
            "color": f"var(--c{place % 8 + 1})",
            "data": [
                {
                    "value": row.memory.parts.get(name, 0) / unit,
                    "tip": f"{row.label}\n{name}: {text.size(row.memory.parts.get(name, 0))} of "
                    f"{text.size(row.memory.total_bytes)}\nlimit {text.size(row.memory.limit_bytes)}",
                }
                for row in rows
            ],
        }
        for place, name in enumerate(names)
    ]
    limits = [
        {
            "value": [row.memory.limit_bytes / unit, place],
            "name": text.share(row.share),
            "tip": f"{row.label}\nlimit {text.size(row.memory.limit_bytes)}, {text.share(row.share)} used",
        }
        for place, row in enumerate(rows)
    ]
    series.append(
        {
            "name": "limit",
            "type": "scatter",
            "symbol": "rect",
            "symbolSize": [3, 22],
            "color": "var(--ink)",
            "data": limits,
            "label": {"show": True, "always": True, "position": "right", "formatter": "{b}"},
        }
    )
    option = {
        "yAxis": {"type": "category", "inverse": True, "data": [row.label for row in rows]},
        "xAxis": {"type": "value", "name": unit_name, "nameLocation": "middle", "nameGap": 28},
        "grid": {"left": 24, "right": 64, "top": 40, "bottom": 40, "containLabel": True},
        "series": series,
    }
    return echart(MEMORY_TITLE, option, height=90 + 32 * len(rows))
