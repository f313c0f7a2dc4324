"""Points of cost against time, in every form of the report."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace

import pytest

from factories.documents import decided, document
from factories.priced_documents import gcp_document
from sailor_cloud.model.document import Alternative, FrontierPoint, PlanDocument
from sailor_cloud.report.decision.choices import frontier_rows
from sailor_cloud.report.html.charts import HOURLY, frontier_chart
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.plan.plan_markdown import plan_as_markdown
from sailor_cloud.report.plan.plan_text import plan_as_text


def with_points(base: PlanDocument) -> PlanDocument:
    def point(iteration_s: float, usd: float, devices: int, *, cheapest: bool) -> FrontierPoint:
        return FrontierPoint(
            iteration_s=iteration_s,
            throughput_iterations_per_s=1.0 / iteration_s,
            usd_per_hour=usd * 3600.0 / iteration_s,
            usd_per_iteration=usd,
            total_usd=1000.0 * usd if base.job.training.steps else None,
            devices={"A100-40": devices},
            zones=("us-central1-a", "us-west1-b")[: 1 + devices // 8],
            nodes_usd_per_hour=1.9 * devices,
            cheapest=cheapest,
            # 360 s of start-up and teardown.
            duration_s=base.job.training.steps * iteration_s + 360.0 if base.job.training.steps else None,
        )

    points = (point(2.0, 0.05, 8, cheapest=True), point(3.0, 0.06, 6, cheapest=False))
    return replace(base, frontier=points)


@pytest.mark.parametrize("width", [60, 120])
def test_a_table_shows_devices_zones_time_and_both_sorts_of_money(width: int) -> None:
    shown = plan_as_text(with_points(document()), width=width)
    rows = [" ".join(line.split()) for line in shown[shown.index("cost against time") :].splitlines()[1:3]]
    zones = ("", "") if width == 60 else (" 2 zones", " us-central1-a")
    first, second = f"8 A100-40{zones[0]} 6 min 40 s 50.00 15.20 run", f"6 A100-40{zones[1]} 7 min 60.00 11.40 hour"
    # The document's budget is 1 USD.
    over = "" if width == 60 else ", over budget"
    assert rows == [first + over, second + over]
    richer = with_points(document())
    richer = replace(richer, constraints=richer.constraints.model_copy(update={"budget_usd": 55.0}))
    assert [cells[-1] for cells in frontier_rows(richer)] == ["run", "hour, over budget"]
    assert "cost against time" not in plan_as_text(document(), width=width)


def test_markdown_has_the_same_rows_and_money_of_an_iteration_where_there_are_no_steps() -> None:
    shown = plan_as_markdown(with_points(document(steps=None)))
    assert "| 8 A100-40 | 2 zones | 2.00 s | 0.0500 | 15.20 | run |" in shown
    assert "| devices | zones | iteration | USD/iteration | nodes USD/h | best per |" in shown


def test_the_page_draws_the_line_through_the_cheapest_points_alone_and_says_what_others_are() -> None:
    shown, plain = (plan_as_html(made, timeline=()) for made in (with_points(gcp_document()), gcp_document()))
    assert "no faster plan has nodes for 11.40 USD/h or less" in shown
    assert "Small grey points: plans on nodes with a lower price per hour" in shown
    assert "Small grey points" not in plain
    assert "Scroll to zoom" not in plain
    assert set(drawn(plain)) == {"alternative", "chosen"}


def test_points_that_are_far_too_expensive_are_left_out_of_the_chart_and_counted() -> None:
    made = replace(with_points(gcp_document()), decision=decided().decision)
    far = replace(made.frontier[0], total_usd=10_000.0, duration_s=60.0)
    shown, near = (plan_as_html(each, timeline=()) for each in (replace(made, frontier=(far, *made.frontier)), made))
    assert drawn(shown) == drawn(near)
    assert "Not drawn: 1 point far slower or more expensive." in shown
    assert "Not drawn" not in near


def test_the_chosen_plan_is_a_ring_that_hides_no_point_and_has_the_name_of_its_choice() -> None:
    made = with_points(gcp_document())
    chart = frontier_chart(replace(made, decision=decided().decision))
    (option,) = (json.loads(html.unescape(found)) for found in re.findall(r'data-option="([^"]*)"', chart))
    named = {series["name"]: series for series in option["series"]}
    assert named["chosen"]["itemStyle"]["color"] == "transparent"
    assert named["chosen"]["data"][0]["name"] == "chosen: fastest"
    assert all(named[name]["label"]["always"] for name in ("chosen", "other choice"))
    assert option["legend"]["type"] == "plain"


def test_the_page_draws_the_time_that_the_decision_shows_with_start_up_and_teardown() -> None:
    made = with_points(gcp_document())
    shown = plan_as_html(made, timeline=())
    assert "hours until the last teardown" in shown
    assert drawn(shown)["Pareto frontier"] == [[1.2111, 50.0]]
    assert drawn(shown)[HOURLY] == [[1.7667, 60.0]]
    assert made.prediction is not None
    assert made.prediction.duration_s is not None
    assert drawn(shown)["chosen"][0][0] == pytest.approx(made.prediction.duration_s / 3600, abs=1e-4)
    without = plan_as_html(with_points(document(steps=None)), timeline=())
    assert "seconds of an iteration" in without
    assert drawn(without)["Pareto frontier"][0][0] == pytest.approx(2.0)


def drawn(page: str) -> dict[str, list[list[float]]]:
    """Return the points of the chart of cost against time, by series."""
    options = [json.loads(html.unescape(found)) for found in re.findall(r'data-option="([^"]*)"', page)]
    (chart,) = [option for option in options if any(series.get("name") == "chosen" for series in option["series"])]
    return {
        series["name"]: [[round(value, 4) for value in point["value"]] for point in series["data"]]
        for series in chart["series"]
    }


def test_the_key_of_the_chart_names_what_lies_below_the_frontier_since_it_changes_the_job() -> None:
    base = with_points(document())
    assert "no known plan is both faster and cheaper than these." in plan_as_html(base, timeline=())
    assert base.plan is not None
    other = Alternative(
        label="sync_every: 100 (saves 3 USD)",
        plan=base.plan,
        iteration_s=1.5,
        throughput_iterations_per_s=0.6,
        usd_per_hour=1.0,
        total_usd=40.0,
    )
    shown = plan_as_html(replace(base, alternatives=(other,)), timeline=())
    assert "faster and cheaper than these without a change of the job, as sync_every: 100 would be." in shown
