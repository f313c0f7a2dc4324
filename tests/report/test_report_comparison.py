"""The plot of all planners by cost and speed."""

from __future__ import annotations

import html
import json

from sailor_cloud.planner.strategies import Contender
from sailor_cloud.report.decision.comparison import comparison_chart


def contender(name: str, iteration_s: float, usd: float, *, oracle: bool = False) -> Contender:
    return Contender(
        name=name,
        oracle=oracle,
        iteration_s=iteration_s,
        estimate_s=None,
        usd_per_iteration=usd,
        total_usd=None,
        usd_per_hour=None,
        devices=8,
        out_of_memory=0,
        over_limits=0,
        seconds=1.0,
        note="",
    )


def test_equal_plans_are_one_point_with_all_names() -> None:
    chart = comparison_chart(
        [
            contender("sailor-cloud", 2.0, 0.5),
            contender("amp", 4.0, 1.0),
            contender("metis", 4.0, 1.0),
            contender("metis", 4.0, 1.0, oracle=True),
            contender("piper", 5.0, 0.9),
        ]
    )
    option = json.loads(html.unescape(chart.split('data-option="')[1].split('"')[0]))
    points = [point for series in option["series"] for point in series["data"]]
    assert sorted(point["name"] for point in points) == ["", "", "amp, metis", "piper", "sailor-cloud"]
    assert {point["tip"].count("0.25 iterations/s") for point in points if point["value"] == [0.25, 1.0]} == {3}


def test_one_plan_alone_is_no_picture() -> None:
    assert comparison_chart([contender("sailor-cloud", 2.0, 0.5)]) == ""
