"""The plot of all planners by cost and speed."""

from __future__ import annotations

import html
import json
from dataclasses import replace

import pytest

from sailor_cloud.model.shown import Rows
from sailor_cloud.planner.strategies import Comparison, Contender
from sailor_cloud.report.comparison.planners import (
    as_html,
    as_json_text,
    as_markdown,
    as_text,
    columns,
    comparison_chart,
    report,
)
from sailor_cloud.report.tables import rendered


def contender(
    name: str, iteration_s: float, usd: float, *, oracle: bool = False, hours: float | None = None
) -> Contender:
    return Contender(
        name=name,
        oracle=oracle,
        iteration_s=iteration_s,
        estimate_s=None,
        usd_per_iteration=usd,
        duration_s=hours and hours * 3600.0,
        total_usd=hours and 3.0 * hours,
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


def test_the_whole_run_is_shown_in_hours_and_usd_where_the_job_has_steps() -> None:
    known = Comparison(job="small", contenders=Rows((contender("sailor-cloud", 2.0, 0.5, hours=1.5),)))
    assert columns(known)[0][3:5] == ["run, hours", "run, USD"]
    assert columns(known)[1][0][3:5] == ["1.5", "4.5"]
    for shown in (as_text(known), as_markdown(known), as_html(known)):
        assert "run, hours" in shown
    assert json.loads(as_json_text(known))["contenders"][0]["duration_s"] == 5400.0
    unknown = Comparison(job="small", contenders=Rows((contender("sailor-cloud", 2.0, 0.5),)))
    assert "run, hours" not in as_text(unknown)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_notes_are_below_the_table_so_that_a_row_stays_a_row(width: int) -> None:
    note = "ended by the time limit"
    names = ("sailor-cloud", "sailor-paper", "metis")
    rows = tuple(replace(contender(name, 2.0, 0.5, hours=1.5), note=note, estimate_s=1.9) for name in names)
    lines = rendered(report(rows, width=width), width=width).splitlines()
    table = lines[: lines.index("")]
    assert [line.split()[0] for line in table[-3:]] == list(names)
    assert all(" 0.5" in line for line in table[-3:])
    assert not any("ended" in line or "…" in line for line in table)
    assert f"{note}: sailor-cloud, sailor-paper, metis" in " ".join(lines).replace("  ", " ")
    assert ("run, hours" in table[0]) is (width == 120)
