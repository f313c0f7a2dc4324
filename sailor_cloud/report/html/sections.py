"""The tables of the HTML report."""

from __future__ import annotations

from sailor_cloud.catalog.doubts import age_text
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.report import text
from sailor_cloud.report.decision.choices import choices, usd_unit, without_plan
from sailor_cloud.report.html.markup import Markup, element
from sailor_cloud.report.html.tables import html_table
from sailor_cloud.report.plan.group_lines import NUMBERS, group_columns
from sailor_cloud.report.plan.memory_rows import memory_rows
from sailor_cloud.report.plan.money import expected_usd, price_rows, worst_usd
from sailor_cloud.report.plan.ruled_out import ruled_out
from sailor_cloud.units import pace_text


def groups(document: PlanDocument) -> Markup:
    return html_table(*group_columns(document), numbers=NUMBERS)


def cost_lines(document: PlanDocument) -> Markup:
    cost = document.cost
    assert cost is not None
    whole = expected_usd(cost)
    rows = [
        (
            line.what,
            text.measure(line.quantity, line.unit),
            text.usd(line.usd_per_unit),
            text.usd_beside(line.usd, whole),
            text.usd_beside(line.worst_usd, whole),
            f"{line.price_as_of.isoformat()}{' STALE' if line.stale else ''}",
            line.price_source,
        )
        for line in cost.lines
    ]
    span = "whole run" if cost.total_usd is not None else "one hour"
    rows.append((span, "", "", text.usd_beside(whole, whole), text.usd_beside(worst_usd(cost), whole), "", ""))
    numbers = ("quantity", "USD each", "USD", "worst case")
    return html_table(("what", *numbers, "as of", "source"), rows, numbers=numbers, total=True)


def frontier_key(document: PlanDocument) -> tuple[Markup, ...]:
    """Return what grey points are, where there are any."""
    if all(point.cheapest for point in document.frontier):
        return ()
    told = (
        "Dashed: the Pareto frontier of time and the cost of the run. Small grey points: the frontier of time and the "
        "nodes' price per hour. Scroll to zoom, drag to move."
    )
    return (element("p", told, class_="key"),)


def alternatives(document: PlanDocument) -> Markup:
    numbers = ("iteration", "per iteration", "USD/h", usd_unit(document), "more USD")
    rows = [
        (
            other.label,
            text.seconds(other.iteration_s),
            "" if other.chosen else pace_text(1.0 + other.slower),
            text.usd(other.usd_per_hour),
            text.usd(other.usd),
            "" if other.chosen else text.signed_usd_beside(other.extra_usd, other.usd),
            other.verdict,
        )
        for other in choices(document)
    ]
    rows += [(row.what, "", "", "", "", "", row.why) for row in without_plan(document)]
    return html_table(("plan", *numbers, "verdict"), rows, numbers=numbers)


def waits(document: PlanDocument) -> Markup:
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


def memory(document: PlanDocument) -> Markup:
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
    numbers = ("peak", "limit", "used")
    return html_table(("pipelines", "stage", *numbers, "basis", "parts"), rows, numbers=numbers)


def traffic(document: PlanDocument) -> Markup | str:
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


def prices(document: PlanDocument) -> Markup:
    rows = (
        (
            row.what,
            f"{row.usd:.4f}/{row.unit}",
            row.as_of_from.isoformat() + (f" to {row.as_of_to.isoformat()}" if row.as_of_to != row.as_of_from else ""),
            f"{age_text(row.as_of_from, row.age_days)}{' STALE' if row.stale else ''}",
            row.source,
            row.confidence,
        )
        for row in price_rows(document)
    )
    numbers = ("USD per unit", "age")
    return html_table(("price of", "USD per unit", "as of", "age", "source", "confidence"), rows, numbers=numbers)


def rejected(document: PlanDocument) -> Markup:
    return html_table(("what", "why"), ((row.what, row.why) for row in ruled_out(document)))
