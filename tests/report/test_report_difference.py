from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

from factories.documents import cost_line, document, infeasible
from sailor_cloud.model.document import CostKind, CostLine, PlanDocument
from sailor_cloud.model.shown import Rows
from sailor_cloud.report.comparison.difference import (
    difference,
    difference_as_json,
    difference_as_markdown,
    difference_as_text,
    headline,
)


def changed(base: PlanDocument, *, usd: float, seconds: float) -> PlanDocument:
    assert base.cost is not None
    assert base.cost.total_usd is not None
    assert base.prediction is not None
    assert base.prediction.duration_s is not None
    line = base.cost.lines[0]
    return replace(
        base,
        cost=replace(base.cost, total_usd=base.cost.total_usd + usd, lines=(replace(line, usd=line.usd + usd),)),
        prediction=replace(base.prediction, duration_s=base.prediction.duration_s + seconds),
    )


def costing(total: float) -> PlanDocument:
    base = document()
    assert base.cost is not None
    return replace(base, cost=replace(base.cost, total_usd=total))


def test_the_headline_says_dollars_share_and_time() -> None:
    base = costing(318.33)
    head = changed(base, usd=38.20, seconds=4 * 3600)
    assert headline(difference(base, head)) == "+38.20 USD (+12 %), +4 h"
    assert headline(difference(head, base)) == "-38.20 USD (-11 %), -4 h"
    for usd, shown in ((5.9449, "+5.94 USD (+1.9 %)"), (0.0031, "+0.00310 USD (+0.0 %)")):
        assert headline(difference(base, changed(base, usd=usd, seconds=3600))) == f"{shown}, +1 h"


def test_equal_documents_differ_in_nothing() -> None:
    found = difference(document(), document())
    assert found.same
    assert headline(found) == "no change in cost, time or plan"


def test_edits_of_the_job_and_of_the_nodes_are_listed() -> None:
    base = document()
    assert base.plan is not None
    training = base.job.training.model_copy(update={"steps": 40})
    job = base.job.model_copy(update={"training": training})
    head = replace(base, job=job, plan=replace(base.plan, nodes=base.plan.nodes[:1]))
    found = difference(base, head)
    assert [(edit.what, edit.base, edit.head) for edit in found.job] == [("training.steps", "20", "40")]
    assert [(edit.what, edit.base, edit.head) for edit in found.nodes] == [
        ("local-cpu-slow on-demand in local-b", "1", "")
    ]


def test_without_steps_iterations_are_compared() -> None:
    base = document(steps=None)
    assert base.cost is not None
    head = replace(base, cost=replace(base.cost, usd_per_iteration=base.cost.usd_per_iteration * 2))
    assert headline(difference(base, head)) == "+0.000100 USD/iteration (+100 %), 0 per iteration"


def test_a_total_that_only_one_plan_has_is_said_to_be_unknown() -> None:
    found = difference(document(), document(steps=None))
    assert headline(found) == "0 USD/iteration (+0 %), total of HEAD unknown, 0 per iteration"


def test_commands_without_a_rate_are_compared_by_the_hour() -> None:
    base = document(steps=None)
    assert base.cost is not None
    base = replace(base, cost=replace(base.cost, usd_per_iteration=None), prediction=None)
    head = replace(base, cost=replace(base.cost, usd_per_hour=2 * base.cost.usd_per_hour))
    found = difference(base, head)
    assert found.usd.unit == "USD/h"
    assert headline(found).endswith(" USD/h (+100 %)")
    assert [figure.what for figure in found.figures].count("rate") == 1


def test_a_head_without_a_plan_is_called_so() -> None:
    assert headline(difference(document(), infeasible())) == "no plan any more: budget 1 USD is below 2.5 USD"
    assert headline(difference(infeasible(), document())).startswith("feasible now: 0.00300 USD")
    assert headline(difference(infeasible(), infeasible())) == "infeasible as before"


def test_the_cost_of_a_document_without_a_plan_is_unknown_not_zero() -> None:
    figures = difference(infeasible(), document()).branches
    assert figures
    assert {figure.base for figure in figures} == {None}


def test_markdown_and_text_look_as_reviewed(golden: Callable[[str, str], str]) -> None:
    found = difference(document(), changed(document(), usd=0.001, seconds=5))
    markdown, told = difference_as_markdown(found), difference_as_text(found, width=80)
    assert markdown == golden("diff.md", markdown)
    assert told == golden("diff.txt", told)


def test_json_carries_headline_and_deltas() -> None:
    content = json.loads(difference_as_json(difference(document(), changed(document(), usd=0.001, seconds=5))))
    assert content["headline"] == "+0.00100 USD (+33 %), +5.00 s"
    assert abs(content["usd"]["delta"] - 0.001) < 1e-12
    assert content["time"]["unit"] == "s"


def test_parts_of_a_total_have_its_decimals() -> None:
    def with_checkpoints(usd: float) -> PlanDocument:
        return costing_lines(
            cost_line(CostKind.COMPUTE, "nodes", quantity=1, usd_per_unit=0.0127),
            cost_line(CostKind.CHECKPOINT, "stalls", quantity=1, usd_per_unit=usd),
        )

    head = with_checkpoints(1.63e-8)
    head = replace(head, plan=replace(head.plan, nodes=head.plan.nodes[:1]))
    shown = difference_as_markdown(difference(with_checkpoints(7.81e-9), head))
    assert "| checkpoints, USD | 0.0000 | 0.0000 | 0 |  |" in shown
    assert "| compute, USD | 0.0127 | 0.0127 | 0 |  |" in shown


def costing_lines(*lines: CostLine) -> PlanDocument:
    given = costing(0.0127)
    assert given.cost is not None
    return replace(given, cost=replace(given.cost, lines=Rows(lines)))
