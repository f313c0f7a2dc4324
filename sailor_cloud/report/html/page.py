"""Puts the HTML report together: one file that needs nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files

from sailor_cloud.catalog import Region
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report.decision.decision_rows import decision_as_html
from sailor_cloud.report.html import sections
from sailor_cloud.report.html.echart import script
from sailor_cloud.report.html.frontier_chart import frontier_chart
from sailor_cloud.report.html.markup import Markup, element, joined
from sailor_cloud.report.html.memory_chart import memory_chart
from sailor_cloud.report.html.money_chart import money_chart
from sailor_cloud.report.html.region_map import region_map
from sailor_cloud.report.html.schedule_chart import schedule_chart
from sailor_cloud.report.html.zone_map import zone_map
from sailor_cloud.report.plan.facts import Fact, assumptions, notes, outcome_facts, proof, request_facts
from sailor_cloud.report.plan.ruled_out import ruled_out
from sailor_cloud.simulator import TimelineSpan


def plan_as_html(document: PlanDocument, *, timeline: Sequence[TimelineSpan], regions: Sequence[Region] = ()) -> str:
    """Return the report as one HTML file.

    `timeline` is what the simulator says one iteration does; `regions` say where on earth the plan's regions are,
    without them there is no map.
    """
    content = _infeasible(document) if document.plan is None else _report(document, timeline, regions)
    return page(f"{document.job.name}: plan and cost", content)


def page(title: str, content: Markup) -> str:
    """Return one HTML file that needs nothing else."""
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
    parts = [
        _header(document),
        *_decision(document),
        _facts(outcome_facts(document), class_="facts outcome"),
        _facts(request_facts(document), class_="facts"),
        *(element("p", note, class_="note") for note in notes(document)),
        _section("Plan", sections.groups(document)),
        *_money(document),
        _section("One iteration", schedule_chart(document, timeline), sections.waits(document)),
        _section("Memory", memory_chart(document), sections.memory(document)),
        _section("Zones and traffic", region_map(document, regions), zone_map(document), sections.traffic(document)),
    ]
    if document.cost is not None:
        parts.append(_section("Prices", sections.prices(document)))
    if ruled_out(document):
        parts.append(_section("Ruled out", sections.rejected(document)))
    listed = element("ul", *(element("li", line) for line in assumptions(document)))
    parts.append(_section("Assumptions", listed))
    parts.append(_footer(document))
    return element("main", *parts)


def _money(document: PlanDocument) -> tuple[Markup, ...]:
    """Return what is about money; nothing of a plan without prices."""
    if document.cost is None:
        return ()
    return (
        _section("Cost", money_chart(document), sections.cost_lines(document)),
        _section(
            "Cost against time",
            frontier_chart(document),
            *sections.frontier_key(document),
            sections.alternatives(document),
        ),
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
    message = reason.message if reason else "no plan meets the constraints"
    parts = [
        element(
            "header",
            element("h1", document.job.name),
            element("p", f"infeasible: {message}", class_="proof bad"),
            _facts(request_facts(document), class_="facts"),
        )
    ]
    if ruled_out(document):
        parts.append(_section("Ruled out", sections.rejected(document)))
    return element("main", *parts, _footer(document))


def _asset(name: str) -> str:
    return files("sailor_cloud.report.html").joinpath(name).read_text(encoding="utf-8")
