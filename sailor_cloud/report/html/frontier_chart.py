"""Cost against time: the chosen plan, its alternatives, and the line of those that nothing beats.

Fainter points cost more for the run than others as fast, but less per hour.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sailor_cloud.model.document import FrontierPoint, PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.choices import Choice, choices, usd_unit
from sailor_cloud.report.html.svg import Markup, Scale, chart, element, label, line, number, ticks
from sailor_cloud.units import SECONDS_PER_HOUR

WIDTH, HEIGHT = 1000.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 76.0, 24.0, 20.0, 52.0
LABEL_HEIGHT, LETTER = 14.0, 6.6
# Points of the frontier are drawn up to so many times the shortest iteration.
FRONTIER_SPAN = 12.0


def frontier_chart(document: PlanDocument) -> Markup:
    """Draw training time (or seconds of an iteration) against USD; hovering tells the rest."""
    found = choices(document)
    unit, factor = _time_unit(document, found)
    xs = [choice.iteration_s * factor for choice in found]
    ys = [choice.usd for choice in found]
    nearby = _nearby(document, found)
    across = Scale(*_range([*xs, *(point.iteration_s * factor for point in nearby)]), LEFT, WIDTH - RIGHT)
    up = Scale(*_range([*ys, *(point.usd for point in nearby)]), HEIGHT - BOTTOM, TOP)
    parts = _axes(across, up, unit, usd_unit(document))
    parts += _limits(document, across, up, factor)
    parts.append(_frontier(found, nearby, across, up, factor))
    parts += [_small_point(document, point, across(point.iteration_s * factor), up(point.usd)) for point in nearby]
    spots = [(across(x), up(y)) for x, y in zip(xs, ys, strict=True)]
    taken: list[tuple[float, float, float]] = [(x, y - 6, x) for x, y in spots]
    if (budget := _budget_y(document, up)) is not None:
        taken.append((LEFT, budget + 4, WIDTH - RIGHT))
    # The chosen plan comes first to a free place for its label, and last on the drawing, so that no other covers it.
    marked = sorted(zip(found, spots, strict=True), key=lambda pair: not pair[0].chosen)
    parts += [_label(choice, *spot, taken) for choice, spot in marked]
    parts += [_point(document, choice, *spot) for choice, spot in reversed(marked)]
    return chart(WIDTH, HEIGHT, "Cost against time of the chosen plan and its alternatives", *parts)


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


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    margin = 0.12 * (high - low) or 0.2 * high or 1.0
    return max(0.0, low - margin), high + margin


def _axes(across: Scale, up: Scale, unit: str, usd: str) -> list[Markup]:
    parts = []
    for tick in ticks(across.low, across.high):
        parts.append(line(across(tick), TOP, across(tick), HEIGHT - BOTTOM, class_="grid"))
        parts.append(label(across(tick), HEIGHT - BOTTOM + 18, f"{tick:g}", anchor="middle", class_="muted"))
    for tick in ticks(up.low, up.high):
        parts.append(line(LEFT, up(tick), WIDTH - RIGHT, up(tick), class_="grid"))
        parts.append(label(LEFT - 8, up(tick) + 4, f"{tick:g}", anchor="end", class_="muted"))
    parts.append(label((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, unit, anchor="middle"))
    turned = f"rotate(-90 16 {number((TOP + HEIGHT - BOTTOM) / 2)})"
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(element("text", usd, x=16, y=middle, text_anchor="middle", transform=turned))
    return parts


def _limits(document: PlanDocument, across: Scale, up: Scale, factor: float) -> list[Markup]:
    """Draw budget and deadline where they fall inside the chart."""
    parts = []
    given, steps = document.constraints, document.job.training.steps
    if (y := _budget_y(document, up)) is not None:
        parts.append(line(LEFT, y, WIDTH - RIGHT, y, class_="limit"))
        parts.append(label(WIDTH - RIGHT - 4, y - 5, "budget", anchor="end", class_="bad"))
    if steps and given.deadline is not None and across.low < given.deadline / steps * factor < across.high:
        x = across(given.deadline / steps * factor)
        parts.append(line(x, TOP, x, HEIGHT - BOTTOM, class_="limit"))
        parts.append(label(x - 5, TOP + 10, "deadline", anchor="end", class_="bad"))
    return parts


def _budget_y(document: PlanDocument, up: Scale) -> float | None:
    """Return where the line of the budget is; None where it falls outside, or amounts are those of an iteration."""
    budget = document.constraints.budget_usd
    if not document.job.training.steps or budget is None or not up.low < budget < up.high:
        return None
    return up(budget)


def _nearby(document: PlanDocument, found: Sequence[Choice]) -> list[FrontierPoint]:
    """Return the points of the frontier that are not so slow that they would press the others into a corner."""
    longest = FRONTIER_SPAN * min(choice.iteration_s for choice in found)
    return [point for point in document.frontier if point.iteration_s <= longest]


def _frontier(
    found: Sequence[Choice], nearby: Sequence[FrontierPoint], across: Scale, up: Scale, factor: float
) -> Markup:
    """Return the steps through the plans that no other beats in both time and money."""
    best = sorted((choice.iteration_s, choice.usd) for choice in found if choice.efficient)
    if nearby:
        best = sorted((point.iteration_s, point.usd) for point in nearby if point.cheapest)
    path, before = "", 0.0
    for place, (seconds, usd) in enumerate(best):
        x, y = across(seconds * factor), up(usd)
        path += f"M{number(x)} {number(y)}" if place == 0 else f"L{number(x)} {number(before)}L{number(x)} {number(y)}"
        before = y
    return element("path", d=path, class_="frontier")


def _point(document: PlanDocument, choice: Choice, x: float, y: float) -> Markup:
    kind = "chosen" if choice.chosen else "efficient" if choice.efficient else "beaten"
    return element(
        "circle",
        cx=x,
        cy=y,
        r=8 if choice.chosen else 6,
        class_=f"point {kind}",
        data_tip=_tip(document, choice),
        tabindex=0,
    )


def _small_point(document: PlanDocument, point: FrontierPoint, x: float, y: float) -> Markup:
    devices = " + ".join(f"{count} {name}" for name, count in point.devices.items())
    lines = [
        f"{devices} in {', '.join(point.zones)}",
        f"iteration {text.seconds(point.iteration_s)}",
        f"{text.usd(point.usd)} {usd_unit(document)}, {text.usd(point.usd_per_hour)} USD/h",
    ]
    if not point.cheapest and point.nodes_usd_per_hour is not None:
        lines.append(f"no faster plan has nodes for {text.usd(point.nodes_usd_per_hour)} USD/h or less")
    kind = "efficient" if point.cheapest else "beaten"
    return element("circle", cx=x, cy=y, r=4, class_=f"point {kind}", data_tip="\n".join(lines), tabindex=0)


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
            f"iteration {text.seconds(choice.iteration_s)} ({text.change(choice.slower)})",
            f"{text.usd(choice.usd)} {usd_unit(document)} ({text.signed_usd_beside(choice.dearer_usd, choice.usd)}), "
            f"{text.usd(choice.usd_per_hour)} USD/h",
            *machines,
            choice.verdict,
        ]
    )


def _label(choice: Choice, x: float, y: float, taken: list[tuple[float, float, float]]) -> Markup:
    """Return a label beside its point: at the first place around it that is free."""
    width = LETTER * len(choice.label)
    name = "strong small halo" if choice.chosen else "small halo"
    for down in (-9.0, 19.0, -24.0, 34.0, -39.0, 49.0):
        for right in (True, False):
            left = x + 12 if right else x - 12 - width
            if left < LEFT or left + width > WIDTH - RIGHT + 20 or not TOP < y + down < HEIGHT - BOTTOM:
                continue
            if all(
                abs(other - (y + down)) >= LABEL_HEIGHT or end < left or begin > left + width
                for begin, other, end in taken
            ):
                taken.append((left, y + down, left + width))
                return label(left, y + down, choice.label, class_=name)
    return label(x + 12, y + 4, choice.label, class_=name)
