"""Assembles the HTML report: one self-contained file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from sailor_cloud.catalog import Region
from sailor_cloud.catalog.prices.doubts import age_text
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import (
    BEST,
    Choice,
    choices,
    frontier_numbers,
    frontier_rows,
    usd_unit,
    without_plan,
)
from sailor_cloud.report.decision.decision_rows import decision_as_html
from sailor_cloud.report.html.charts import (
    frontier_chart,
    left_out_of_chart,
    memory_chart,
    money_chart,
    schedule_chart,
    schedule_key,
    schedule_table,
    script,
)
from sailor_cloud.report.html.maps import region_map, zone_map
from sailor_cloud.report.markup import Markup, element, html_table, joined
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
from sailor_cloud.simulator import TimelineSpan
from sailor_cloud.units import counted, pace_text


def _groups(document: PlanDocument) -> Markup:
    table, key = html_table(*group_columns(document), numbers=NUMBERS), groups_key(document)
    return joined(table, element("p", key, class_="key")) if key else table


def _cost_lines(document: PlanDocument) -> Markup:
    cost = document.cost
    assert cost is not None
    whole = expected_usd(cost)
    rows = [
        (
            line.what,
            text.measure(line.quantity, line.unit),
            text.usd(line.usd_per_unit),
            # Each rounded by itself: equal lines would differ if they had to add up.
            text.usd_aligned(line.usd, whole),
            text.usd_aligned(line.worst_usd, whole),
            f"{line.price_as_of.isoformat()}{' STALE' if line.stale else ''}",
            line.price_source,
        )
        for branch in cost_tree(cost)
        for line in branch.lines
    ]
    span = "whole run" if cost.total_usd is not None else "one hour"
    rows.append((span, "", "", text.usd_aligned(whole, whole), text.usd_aligned(worst_usd(cost), whole), "", ""))
    numbers = ("quantity", "USD each", "USD", "worst case")
    return html_table(("what", *numbers, "as of", "source"), rows, numbers=numbers, total=True)


def _frontier_key(document: PlanDocument) -> tuple[Markup, ...]:
    """Return what the points of the chart mean, and how many are not drawn."""
    if not document.frontier:
        return ()
    sentences = ["Dashed: no known plan is both faster and cheaper than these."]
    below = [choice.label.partition(" (")[0] for choice in choices(document) if _beats_frontier(document, choice)]
    if below:
        sentences = [f"{sentences[0][:-1]} without a change of the job, as {' and '.join(below)} would be."]
    if not all(point.cheapest for point in document.frontier):
        sentences.append(
            "Small grey points: plans on nodes with a lower price per hour than any as fast, though the run costs more."
        )
    if left := left_out_of_chart(document):
        sentences.append(f"Not drawn: {counted(left, 'point')} far slower or more expensive.")
    sentences.append("Scroll to zoom, drag to move.")
    return (element("p", " ".join(sentences), class_="key"),)


def _beats_frontier(document: PlanDocument, choice: Choice) -> bool:
    """Whether an alternative, which may change the job, is both faster and cheaper than a point of the frontier."""
    best = [point for point in document.frontier if point.cheapest and not choice.chosen]
    return any(choice.iteration_s < point.iteration_s and choice.usd < point.usd for point in best)


def _alternatives(document: PlanDocument) -> Markup:
    numbers = ("iteration", "per iteration", "USD/h", usd_unit(document), "more USD")
    rows = [
        (
            other.label,
            text.seconds(other.iteration_s),
            "" if other.chosen else pace_text(1.0 + other.slower),
            text.usd(other.usd_per_hour),
            text.usd(other.usd),
            "" if other.chosen else text.signed_usd_aligned(other.extra_usd, other.usd),
            other.verdict,
        )
        for other in choices(document)
    ]
    rows += [(row.what, "", "", "", "", "", row.why) for row in without_plan(document)]
    return html_table(("plan", *numbers, "verdict"), rows, numbers=numbers)


def _waits(document: PlanDocument) -> Markup:
    assert document.prediction is not None
    spent = document.prediction.waits
    parts = (
        ("compute", spent.compute_s),
        ("transfer", spent.transfer_s),
        ("bubble", spent.bubble_s),
        ("all-reduces", spent.sync_s),
    )
    whole = sum(seconds for _, seconds in parts) or 1.0
    rows = ((name, text.seconds(seconds), text.share(seconds / whole)) for name, seconds in parts)
    return html_table(("busiest stage", "time", "share"), rows, numbers=("time", "share"))


def _schedule(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> tuple[Markup, ...]:
    chart, key = schedule_chart(document, timeline), schedule_key(document, timeline)
    instead = element("div", schedule_table(document, timeline), class_="instead")
    return (chart, *([element("p", key, class_="key")] if key else []), *([instead] if chart else []))


def _memory(document: PlanDocument) -> Markup:
    rows = (
        (
            text.ranges(row.pipelines),
            str(row.memory.stage),
            text.size(row.memory.total_bytes),
            text.size(row.memory.limit_bytes),
            text.share(row.share),
            row.basis,
            ", ".join(f"{name} {text.size(amount)}" for name, amount in row.memory.parts.items() if amount),
        )
        for row in memory_rows(document)
    )
    numbers = (peak_heading(document), "limit", "used")
    return html_table(("pipelines", "stage", *numbers, "basis", "parts"), rows, numbers=numbers)


def _traffic(document: PlanDocument) -> Markup | str:
    if not document.inputs.links:
        return "All traffic stays inside one zone."
    rows = (
        (
            use.src_zone,
            use.dst_zone,
            f"{text.amount(use.bytes_per_iteration / 1e9)}",
            "" if use.usd_per_gb is None else text.usd(use.usd_per_gb),
            f"{use.bandwidth_bytes_per_s / 125e6:.3g}",
            f"{use.rtt_ms:.3g}",
            "measured" if use.measured else "estimated, not measured",
            use.as_of.isoformat(),
            use.source,
        )
        for use in document.inputs.links
    )
    numbers = ("GB per iteration", "USD/GB", "Gbit/s", "round trip, ms")
    return html_table(("from", "to", *numbers, "bandwidth", "as of", "source"), rows, numbers=numbers)


def _prices(document: PlanDocument) -> Markup:
    rows = (
        (
            row.what,
            f"{text.usd(row.usd)}/{row.unit}",
            row.as_of_from.isoformat() + (f" to {row.as_of_to.isoformat()}" if row.as_of_to != row.as_of_from else ""),
            f"{age_text(row.as_of_from, row.age_days)}{' STALE' if row.stale else ''}",
            row.source,
            row.confidence,
        )
        for row in price_rows(document)
    )
    numbers = ("USD per unit", "age")
    return html_table(("price of", "USD per unit", "as of", "age", "source", "confidence"), rows, numbers=numbers)


def _rejected(document: PlanDocument) -> Markup:
    return html_table(("what", "why"), ((row.what, row.why) for row in ruled_out(document)))


def plan_as_html(document: PlanDocument, *, timeline: Sequence[TimelineSpan], regions: Sequence[Region] = ()) -> str:
    """Return the report as one HTML file.

    `timeline` is the simulated schedule of one iteration. `regions` have the places of the plan's regions; without them
    there is no map.
    """
    content = _infeasible(document) if document.plan is None else _report(document, timeline, regions)
    return page(f"{document.job.name}: plan and cost", content)


def page(title: str, content: Markup) -> str:
    """Return one self-contained HTML file."""
    head = joined(
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup('<meta name="color-scheme" content="light dark">'),
        Markup('<link rel="icon" href="data:,">'),
        element("title", title),
        element("style", Markup(_asset("report.css"))),
    )
    scripts = (script(),) if 'class="echart"' in content else ()
    whole = element("html", element("head", head), element("body", content, *scripts), lang="en")
    return f"<!doctype html>\n{whole}\n"


def _decision(document: PlanDocument) -> tuple[Markup, ...]:
    decision = document.decision
    return (decision_as_html(document.job, decision),) if decision is not None and decision.choices else ()


def _report(document: PlanDocument, timeline: Sequence[TimelineSpan], regions: Sequence[Region]) -> Markup:
    decision = _decision(document)
    verdict = element("p", proof(document), class_="proof")
    parts = [
        element("header", element("h1", document.job.name)),
        *((*decision, verdict) if decision else (verdict,)),
        _facts(outcome_facts(document), class_="facts outcome"),
        _facts(request_facts(document), class_="facts"),
        *(element("p", note, class_="note") for note in notes(document)),
        _section("Plan", _groups(document)),
        *_money(document),
        *_prediction(document, timeline),
        _section("Zones and traffic", region_map(document, regions), zone_map(document), _traffic(document)),
    ]
    if document.cost is not None:
        parts.append(_section("Prices", _prices(document)))
    if ruled_out(document):
        parts.append(_section("Ruled out", _rejected(document)))
    if listed := assumptions(document):
        parts.append(_section("Assumptions", element("ul", *(element("li", line) for line in listed))))
    parts.append(_footer(document))
    return element("main", *parts)


def _money(document: PlanDocument) -> tuple[Markup, ...]:
    """Return the sections about money; empty for a plan without prices."""
    if document.cost is None:
        return ()
    cost = _section("Cost", money_chart(document), _cost_lines(document))
    if document.prediction is None:
        return (cost,)
    against = (frontier_chart(document), *_frontier_key(document), _alternatives(document))
    numbers = frontier_numbers(document)
    points = html_table(("devices", "zones", *numbers, BEST), frontier_rows(document), numbers=numbers)
    instead = [element("div", points, class_="instead")] if document.frontier else []
    return cost, _section("Cost against time", *against, *instead)


def _prediction(document: PlanDocument, timeline: Sequence[TimelineSpan]) -> tuple[Markup, ...]:
    """Return the sections about an iteration and memory; empty for a command without a model."""
    if document.prediction is None:
        return ()
    return (
        _section("One iteration", *_schedule(document, timeline), _waits(document)),
        _section("Memory", memory_chart(document), _memory(document)),
    )


def _header(document: PlanDocument) -> Markup:
    title = element("h1", document.job.name)
    verdict = element("p", proof(document), class_="proof")
    return element("header", title, verdict)


def _facts(facts: tuple[Fact, ...], *, class_: str) -> Markup:
    rows = [part for fact in facts for part in (element("dt", fact.name), element("dd", fact.value))]
    return element("dl", *rows, class_=class_)


def _section(title: str, *parts: str) -> Markup:
    name = title.lower().replace(" ", "-")
    return element("section", element("h2", title), *parts, id=name)


def _footer(document: PlanDocument) -> Markup:
    made = document.created_at.strftime("%Y-%m-%d %H:%M UTC")
    return element("footer", f"Made by sailor-cloud on {made}, prices as of {document.as_of.date().isoformat()}.")


def _infeasible(document: PlanDocument) -> Markup:
    reason = document.infeasibility
    message = (reason.reason or reason.message) if reason else "no plan meets the constraints"
    remedies = reason.remedies if reason else ()
    parts = [
        _header(document),
        element("h2", "Why there is no plan"),
        element("p", message, class_="outcome bad"),
        *([element("h2", "What would permit one, each alone")] if remedies else []),
        *([element("ul", *(element("li", remedy) for remedy in remedies))] if remedies else []),
        _facts(request_facts(document), class_="facts"),
    ]
    if ruled_out(document):
        parts.append(_section("Ruled out", _rejected(document)))
    return element("main", *parts, _footer(document))


def _asset(name: str) -> str:
    return files("sailor_cloud.report.html").joinpath(name).read_text(encoding="utf-8")
