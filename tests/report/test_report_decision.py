"""The first screen, the same in a terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest

from factories.documents import cost_line, costing, decided, document
from sailor_cloud.model.document import CostKind
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.plan.plan_markdown import plan_as_markdown
from sailor_cloud.report.plan.plan_text import plan_as_text, plan_report
from sailor_cloud.report.tables import rendered
from sailor_cloud.units import pace_text, signed_usd_text


def test_without_steps_the_first_screen_says_why_no_chance_is_shown_and_what_money_leaves_out() -> None:
    shown = " ".join(plan_as_text(replace(document(steps=None), decision=decided().decision)).split())
    assert "in limits: unknown without a number of steps; the run is stopped at the budget and the deadline" in shown
    assert "start-up, checkpoints, recovery and teardown come on top" in shown
    page = plan_as_html(replace(document(steps=None), decision=decided().decision), timeline=())
    assert "<b>0.00100 USD per iteration</b>" in page


@pytest.mark.parametrize("width", [60, 110])
def test_the_first_screen_looks_as_reviewed(width: int, golden: Callable[[str, str], str]) -> None:
    shown = plan_as_text(decided(), width=width).partition("\nlocal-demo  feasible")[0]
    first = "\n".join(shown.splitlines()[:24]) + "\n"
    assert first == golden(f"decision-{width}.txt", first)


def test_every_form_begins_with_the_decision() -> None:
    plan = decided()
    forms = {
        "text": plan_as_text(plan),
        "markdown": plan_as_markdown(plan),
        "html": plan_as_html(plan, timeline=()),
    }
    for form in forms.values():
        later = form.index("every node shuts itself down")
        for told in (
            "cheapest and balanced",
            "97.4 %",
            "0.00200 USD less",
            "zone local-c",
            "run 2.0× slower, +6.56 USD",
        ):
            assert 0 < form.index(told) < later, told
        assert form.lower().index("the fastest plan is chosen") < form.index("; searched ") < later


def test_a_brief_report_ends_with_the_decision_and_says_where_the_rest_is() -> None:
    whole = plan_as_text(decided(), width=110)
    brief = rendered(plan_report(decided(), whole=False, rest="'--details' shows the rest", width=110), width=110)
    *shown, last = brief.rstrip().splitlines()
    assert last == "'--details' shows the rest"
    assert whole.startswith("\n".join(shown))
    assert "why not" in brief
    assert "cost of the run" not in brief


def test_old_prices_are_reported_once() -> None:
    old = replace(
        cost_line(CostKind.COMPUTE, "old", quantity=1, usd_per_unit=1), stale=True, price_as_of=date(2026, 1, 2)
    )
    stale = costing(document(), old)
    told = replace(decided().decision, notes=("prices are up to 322 days old",))
    for made in (stale, replace(stale, decision=told)):
        for form in (plan_as_text(made), plan_as_markdown(made), plan_as_html(made, timeline=())):
            assert ("STALE: prices from" in form) + ("prices are up to 322 days old" in form) == 1


def test_a_plan_without_a_decision_begins_as_before() -> None:
    assert plan_as_text(document()).startswith(f"{document().job.name}  ")
    assert "why not" not in plan_as_text(document())


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(1 / 3, "3.0× faster"), (0.8, "25 % faster"), (1.0, "as fast"), (1.012, "1.2 % slower"), (2.6, "2.6× slower")],
)
def test_how_fast_something_is_reads_as_people_say_it(ratio: float, expected: str) -> None:
    assert pace_text(ratio) == expected


def test_money_is_shown_as_a_difference() -> None:
    assert [signed_usd_text(usd) for usd in (6.56, -0.0312, 0.00004, 0.0)] == [
        "+6.56 USD",
        "-0.0312 USD",
        "+0.0000400 USD",
        "the same cost",
    ]
