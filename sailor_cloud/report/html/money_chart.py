"""What the run costs, by kind: expected as bars, the worst case as outlines."""

from __future__ import annotations

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.svg import Markup, Scale, box, chart, label, line, number, ticks
from sailor_cloud.report.money import CostBranch, cost_tree, expected_usd

WIDTH, LEFT, RIGHT = 1000.0, 170.0, 130.0
ROW, BAR, TOP = 30.0, 18.0, 8.0


def money_chart(document: PlanDocument) -> Markup:
    cost = document.cost
    assert cost is not None
    branches = cost_tree(cost)
    whole = expected_usd(cost)
    largest = max([branch.worst_usd for branch in branches] + [branch.usd for branch in branches])
    scale = Scale(0.0, largest or 1.0, LEFT, WIDTH - RIGHT)
    height = TOP + ROW * len(branches) + 28
    parts: list[Markup] = []
    for tick in ticks(0.0, largest):
        parts.append(line(scale(tick), TOP, scale(tick), height - 24, class_="grid"))
        parts.append(label(scale(tick), height - 8, f"{tick:g}", anchor="middle", class_="muted"))
    parts.append(label(WIDTH - RIGHT + 12, height - 8, "USD", class_="muted"))
    for place, branch in enumerate(branches):
        parts += _row(branch, TOP + place * ROW, scale, whole)
    return chart(WIDTH, height, "Cost by kind, expected and worst case", *parts)


def _row(branch: CostBranch, top: float, scale: Scale, whole: float) -> list[Markup]:
    tip = "\n".join(
        [f"{branch.title}: {text.usd(branch.usd)} USD, worst case {text.usd(branch.worst_usd)} USD"]
        + [f"{text.usd(entry.usd)}  {entry.what}" for entry in branch.lines]
    )
    middle = top + ROW / 2
    start = scale(0.0)
    shown = text.usd_beside(branch.usd, whole)
    share = f" ({text.share(branch.usd / whole)})" if whole else ""
    end = max(scale(branch.usd), scale(branch.worst_usd))
    return [
        label(LEFT - 10, middle + 4, branch.title, anchor="end"),
        box(start, middle - BAR / 2, scale(branch.worst_usd) - start, BAR, class_="worst"),
        box(start, middle - BAR / 2, scale(branch.usd) - start, BAR, class_="bar c1", tip=tip),
        label(float(number(end + 8)), middle + 4, f"{shown}{share}"),
    ]
