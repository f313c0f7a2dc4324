"""Cost against time: the three choices, alternatives, and the line of the plans that nothing beats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sailor_cloud.model.document import FrontierPoint, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import Choice, choices, usd_unit
from sailor_cloud.report.html.echart import echart, points_option
from sailor_cloud.report.html.markup import Markup
from sailor_cloud.units import SECONDS_PER_HOUR, pace_text, signed_usd_text

TITLE = "Cost against time of the chosen plan and its alternatives"
# Points of the frontier are drawn up to so many times the shortest iteration.
FRONTIER_SPAN = 12.0


def frontier_chart(document: PlanDocument) -> Markup:
    """Draw training time (or seconds of an iteration) against USD; nothing where there is one plan alone."""
    found = choices(document)
    unit, factor = _time_unit(document, found)
    nearby = _nearby(document, found)
    chosen = [_point(document, choice, factor) for choice in found if choice.chosen]
    others = [_point(document, choice, factor) for choice in found if not choice.chosen]
    picked = [] if document.decision is None else [each for each in document.decision.choices if not each.chosen]
    best = [_small(document, point, factor) for point in nearby if point.cheapest]
    hourly = [_small(document, point, factor) for point in nearby if not point.cheapest]
    choose = [
        {
            "value": [each.iteration_s * factor, each.usd],
            "name": " and ".join(pick.value for pick in each.picks),
            "tip": f"{' and '.join(pick.value for pick in each.picks)}\n{each.why}",
        }
        for each in picked
    ]
    if len(chosen) + len(others) + len(best) + len(hourly) + len(choose) < 2:
        return Markup("")
    # Nothing is drawn above and to the right of a point of the frontier: its line falls.
    label = {"show": True, "position": "right", "formatter": "{b}"}
    above = {"labelLayout": {"dy": -10}}
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
        _dots("frontier per hour", hourly, 5, "var(--muted)"),
        _dots("alternative", others, 11, "var(--c2)", label=label, **above),
        _dots("other choice", choose, 14, "var(--c3)", label=label, **above),
        {
            **_dots("chosen", chosen, 17, "var(--accent)", label={**label, "fontWeight": "bold"}, **above),
            **_limits(document, factor),
        },
    ]
    return echart(
        TITLE, points_option([each for each in series if each["data"]], across=unit, up=usd_unit(document)), height=430
    )


def _dots(name: str, data: list[dict[str, Any]], size: int, colour: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": "scatter", "data": data, "symbolSize": size, "color": colour, **more}


def _time_unit(document: PlanDocument, found: Sequence[Choice]) -> tuple[str, float]:
    """Return the axis title and what turns seconds of an iteration into its unit."""
    steps = document.job.training.steps
    if steps is None:
        return "seconds of an iteration", 1.0
    longest = max(choice.iteration_s for choice in found) * steps
    if longest >= 2 * SECONDS_PER_HOUR:
        return "hours of training", steps / SECONDS_PER_HOUR
    if longest >= 120:
        return "minutes of training", steps / 60.0
    return "seconds of training", float(steps)


def _limits(document: PlanDocument, factor: float) -> dict[str, Any]:
    """Return the lines of budget and deadline; ECharts leaves out what is outside the axes."""
    given, steps = document.constraints, document.job.training.steps
    lines: list[dict[str, Any]] = []
    if steps and given.budget_usd is not None:
        # At the end of the line it would lie outside the chart.
        lines.append({"yAxis": given.budget_usd, "name": "budget", "label": {"position": "insideEndTop"}})
    if steps and given.deadline is not None:
        lines.append({"xAxis": given.deadline / steps * factor, "name": "deadline"})
    style = {
        "symbol": "none",
        "silent": True,
        "lineStyle": {"color": "var(--bad)"},
        "label": {"formatter": "{b}", "color": "var(--bad)"},
    }
    return {"markLine": {**style, "data": lines}} if lines else {}


def _point(document: PlanDocument, choice: Choice, factor: float) -> dict[str, Any]:
    return {"value": [choice.iteration_s * factor, choice.usd], "name": choice.label, "tip": _tip(document, choice)}


def _small(document: PlanDocument, point: FrontierPoint, factor: float) -> dict[str, Any]:
    devices = " + ".join(f"{count} {name}" for name, count in point.devices.items())
    lines = [
        f"{devices} in {', '.join(point.zones)}",
        f"iteration {text.seconds(point.iteration_s)}",
        f"{text.usd(point.usd)} {usd_unit(document)}, {text.usd(point.usd_per_hour)} USD/h",
    ]
    if not point.cheapest and point.nodes_usd_per_hour is not None:
        lines.append(f"no faster plan has nodes for {text.usd(point.nodes_usd_per_hour)} USD/h or less")
    return {"value": [point.iteration_s * factor, point.usd], "tip": "\n".join(lines)}


def _nearby(document: PlanDocument, found: Sequence[Choice]) -> list[FrontierPoint]:
    """Return the points of the frontier that are not so slow that they would press the others into a corner."""
    longest = FRONTIER_SPAN * min(choice.iteration_s for choice in found)
    return [point for point in document.frontier if point.iteration_s <= longest]


def _tip(document: PlanDocument, choice: Choice) -> str:
    offers = {offer.id: offer for offer in document.inputs.offers}
    counts = Counter(node.offer for node in choice.plan.nodes)
    machines = [
        f"{count} x {offers[name].instance_type} {offers[name].market.value} in {offers[name].zone}"
        if name in offers
        else f"{count} x {name}"
        for name, count in sorted(counts.items())
    ]
    return "\n".join(
        [
            choice.label,
            f"iteration {text.seconds(choice.iteration_s)} ({pace_text(1.0 + choice.slower)})",
            f"{text.usd(choice.usd)} {usd_unit(document)} ({signed_usd_text(choice.extra_usd)}), "
            f"{text.usd(choice.usd_per_hour)} USD/h",
            *machines,
            choice.verdict,
        ]
    )
