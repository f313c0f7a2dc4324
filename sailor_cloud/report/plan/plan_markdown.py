"""A plan and its cost, as Markdown for pull requests."""

from __future__ import annotations

from sailor_cloud.catalog.prices.doubts import age_text
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import BEST, choices, frontier_numbers, frontier_rows, usd_unit, without_plan
from sailor_cloud.report.decision.decision_rows import decision_as_markdown
from sailor_cloud.report.plan.facts import (
    Fact,
    assumptions,
    memory_rows,
    notes,
    outcome_facts,
    peak_heading,
    proof,
    request_facts,
    ruled_out,
)
from sailor_cloud.report.plan.groups import NUMBERS, group_columns, groups_key
from sailor_cloud.report.plan.money import cost_tree, expected_usd, price_rows, worst_usd
from sailor_cloud.report.tables import cell, folded, markdown_table
from sailor_cloud.units import pace_text


def plan_as_markdown(document: PlanDocument) -> str:
    """Return the whole report; long tables are collapsed."""
    decided = document.decision is not None and bool(document.decision.choices)
    heading = f"### {document.job.name}" if decided else f"### {document.job.name}: {proof(document)}"
    if document.plan is None:
        reason = document.infeasibility
        parts = [heading, f"**{cell(reason.message if reason else 'no plan meets the constraints')}**"]
        if ruled_out(document):
            parts.append(_rejected(document))
        return "\n\n".join(parts) + "\n"
    parts = [heading]
    if document.decision is not None and document.decision.choices:
        parts += [decision_as_markdown(document.job, document.decision), cell(proof(document))]
    parts += [_facts((*outcome_facts(document), *request_facts(document)))]
    parts += [f"> {note}" for note in notes(document)]
    parts.append(_groups(document))
    if document.cost is not None:
        parts.append(_money(document))
    if document.alternatives or without_plan(document):
        parts.append(_alternatives(document))
    if document.frontier:
        parts.append(folded("Cost against time", _frontier(document)))
    if document.cost is not None:
        parts.append(folded("Every cost line with source and date", _lines(document)))
        parts.append(folded("Prices and their age", _prices(document)))
    if document.prediction is not None:
        parts.append(folded("Memory per stage", _memory(document)))
    if ruled_out(document):
        parts.append(folded("Ruled out", _rejected(document)))
    if document.prediction is not None:
        parts.append(folded("Assumptions", "\n".join(f"- {line}" for line in assumptions(document))))
    return "\n\n".join(parts) + "\n"


def _facts(facts: tuple[Fact, ...]) -> str:
    return markdown_table(("", ""), ((fact.name, fact.value) for fact in facts))


def _groups(document: PlanDocument) -> str:
    table = markdown_table(*group_columns(document), numbers=NUMBERS)
    key = groups_key(document)
    return f"{table}\n\n{key}" if key else table


def _money(document: PlanDocument) -> str:
    cost = document.cost
    assert cost is not None
    whole = expected_usd(cost)
    rows = [
        (branch.title, text.usd_aligned(branch.shown_usd, whole), text.usd_aligned(branch.shown_worst_usd, whole))
        for branch in cost_tree(cost)
    ]
    rows.append(("total", text.usd_aligned(whole, whole), text.usd_aligned(worst_usd(cost), whole)))
    span = "cost of the run" if cost.total_usd is not None else "cost of one hour"
    return markdown_table((span, "expected USD", "worst case USD"), rows, numbers=("expected USD", "worst case USD"))


def _lines(document: PlanDocument) -> str:
    assert document.cost is not None
    rows = (
        (
            line.what,
            text.measure(line.quantity, line.unit),
            text.usd(line.usd_per_unit),
            text.usd(line.usd),
            f"{line.price_as_of.isoformat()}{' STALE' if line.stale else ''}",
            line.price_source,
        )
        for line in document.cost.lines
    )
    numbers = ("quantity", "USD each", "USD")
    return markdown_table(("what", *numbers, "price of", "source"), rows, numbers=numbers)


def _prices(document: PlanDocument) -> str:
    rows = (
        (
            row.what,
            f"{text.usd(row.usd)}/{row.unit}",
            row.as_of_from.isoformat(),
            f"{age_text(row.as_of_from, row.age_days)}{' STALE' if row.stale else ''}",
            row.provenance,
        )
        for row in price_rows(document)
    )
    return markdown_table(("price of", "USD per unit", "as of", "age", "source"), rows, numbers=("USD per unit", "age"))


def _memory(document: PlanDocument) -> str:
    rows = (
        (
            text.ranges(row.pipelines),
            str(row.memory.stage),
            row.accelerator,
            text.size(row.memory.total_bytes),
            text.size(row.memory.limit_bytes),
            text.share(row.share),
            row.basis,
        )
        for row in memory_rows(document)
    )
    numbers = (peak_heading(document), "limit", "used")
    return markdown_table(("pipelines", "stage", "accelerator", *numbers, "basis"), rows, numbers=numbers)


def _alternatives(document: PlanDocument) -> str:
    numbers = ("iteration", "per iteration", "USD/h", usd_unit(document), "more USD")
    rows = [
        (
            other.label,
            text.seconds(other.iteration_s),
            pace_text(1.0 + other.slower),
            text.usd(other.usd_per_hour),
            text.usd(other.usd),
            text.signed_usd_aligned(other.extra_usd, other.usd),
            other.verdict,
        )
        for other in choices(document)
        if not other.chosen
    ]
    rows += [(row.what, "", "", "", "", "", row.why) for row in without_plan(document)]
    return markdown_table(("instead", *numbers, "verdict"), rows, numbers=numbers)


def _frontier(document: PlanDocument) -> str:
    numbers = frontier_numbers(document)
    return markdown_table(("devices", "zones", *numbers, BEST), frontier_rows(document), numbers=numbers)


def _rejected(document: PlanDocument) -> str:
    return markdown_table(("ruled out", "why"), ((row.what, row.why) for row in ruled_out(document)))
