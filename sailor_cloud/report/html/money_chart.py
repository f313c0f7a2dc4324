"""What the run costs, by kind: expected as bars, the worst case as outlines around them."""

from __future__ import annotations

from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.html.echart import echart
from sailor_cloud.report.html.markup import Markup
from sailor_cloud.report.plan.money import CostBranch, cost_tree, expected_usd

TITLE = "Cost by kind, expected and worst case"


def money_chart(document: PlanDocument) -> Markup:
    cost = document.cost
    assert cost is not None
    branches, whole = cost_tree(cost), expected_usd(cost)
    bar = {"type": "bar", "barWidth": "60%"}
    outline = {"color": "transparent", "borderColor": "var(--c1)", "borderType": "dashed", "borderWidth": 1.5}
    named = {"show": True, "position": "right", "formatter": "{b}"}
    expected = [{"value": branch.usd, "tip": _tip(branch)} for branch in branches]
    worst = [{"value": branch.worst_usd, "tip": _tip(branch), "name": _named(branch, whole)} for branch in branches]
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
    return echart(TITLE, option, height=90 + 32 * len(branches))


def _tip(branch: CostBranch) -> str:
    first = f"{branch.title}: {text.usd(branch.usd)} USD, worst case {text.usd(branch.worst_usd)} USD"
    return "\n".join([first, *(f"{text.usd(entry.usd)}  {entry.what}" for entry in branch.lines)])


def _named(branch: CostBranch, whole: float) -> str:
    share = f" ({text.share(branch.usd / whole)})" if whole else ""
    expected, worst = text.usd_beside(branch.usd, whole), text.usd_beside(branch.worst_usd, whole)
    return f"{expected}{share}" if expected == worst else f"{expected}{share}, at worst {worst}"
