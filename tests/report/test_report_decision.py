"""The first screen, the same in a terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from factories.documents import document
from sailor_cloud.model.document import Choice, Decision, LeftOut, Pick, PlanDocument, Subject
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.plan.plan_markdown import plan_as_markdown
from sailor_cloud.report.plan.plan_text import plan_as_text
from sailor_cloud.units import pace_text, signed_usd_text


def decided() -> PlanDocument:
    base = document()
    assert base.plan is not None
    cheap = Choice(
        picks=(Pick.CHEAPEST, Pick.BALANCED),
        chosen=False,
        plan=base.plan,
        offers=base.inputs.offers,
        iteration_s=1.5,
        duration_s=15.0,
        usd_per_hour=0.1,
        usd_per_iteration=0.0001,
        total_usd=0.001,
        within_budget=0.9999,
        within_deadline=0.974,
        within_limits=0.974,
        devices={"CPU-slow": 1},
        zones=("local-b",),
        markets=("on-demand",),
        why="the least money within the limits; 1.5× slower than the fastest",
    )
    fast = replace(
        cheap,
        picks=(Pick.FASTEST,),
        chosen=True,
        duration_s=10.0,
        total_usd=0.003,
        within_limits=0.9999,
        devices={"CPU-fast": 1, "CPU-slow": 1},
        zones=("local-a", "local-b"),
        why="the least time within the limits; +0.00200 USD for 33 % less time than the cheapest",
    )
    left = (
        LeftOut(
            subject=Subject.ZONE, name="local-c", why="run 2.0× slower, +6.56 USD", runs_on="1 CPU-slow in local-c"
        ),
        LeftOut(subject=Subject.ACCELERATOR, name="CPU-big", why="no price is known"),
    )
    notes = ("the goal spends much for little: +0.00200 USD for 33 % less time",)
    decision = Decision(chosen=Pick.FASTEST, asked=None, choices=(cheap, fast), left_out=left, notes=notes)
    return replace(base, decision=decision)


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
            "much for little",
            "zone local-c",
            "run 2.0× slower, +6.56 USD",
        ):
            assert 0 < form.index(told) < later, told


def test_a_plan_without_a_decision_begins_as_before() -> None:
    assert plan_as_text(document()).startswith(f"{document().job.name}  ")
    assert "why not" not in plan_as_text(document())


@pytest.mark.parametrize(
    ("ratio", "said"),
    [(1 / 3, "3.0× faster"), (0.8, "25 % faster"), (1.0, "as fast"), (1.012, "1.2 % slower"), (2.6, "2.6× slower")],
)
def test_how_fast_something_is_reads_as_people_say_it(ratio: float, said: str) -> None:
    assert pace_text(ratio) == said


def test_money_is_told_as_a_difference() -> None:
    assert [signed_usd_text(usd) for usd in (6.56, -0.0312, 0.00004, 0.0)] == [
        "+6.56 USD",
        "-0.0312 USD",
        "+0.0000400 USD",
        "for the same money",
    ]
