from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import date

import pytest

from factories.cloud_plans import AWS_OFFERS, GCP_OFFERS, cloud_document
from factories.documents import cost_line, costing, document, infeasible
from factories.priced_documents import gcp_document
from sailor_cloud.model.document import CostKind, PlanDocument, Rejected, Status
from sailor_cloud.model.job import Constraints
from sailor_cloud.model.offer import Doubt, ListedPrice, Market, Offer, ZoneConfidence
from sailor_cloud.model.shown import Rows
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.plan.facts import notes, outcome_facts, request_facts
from sailor_cloud.report.plan.groups import group_lines
from sailor_cloud.report.plan.money import unlimited_usd
from sailor_cloud.report.plan.plan_markdown import plan_as_markdown
from sailor_cloud.report.plan.plan_text import plan_as_text


@pytest.mark.parametrize(("width", "details"), [(60, False), (80, False), (120, False), (120, True)])
def test_the_report_looks_as_reviewed(width: int, details: bool, golden: Callable[[str, str], str]) -> None:
    shown = plan_as_text(document(), width=width, details=details)
    assert shown == golden(f"plan-{width}{'-details' if details else ''}.txt", shown)


def test_a_budget_below_what_is_billed_at_least_is_warned_of() -> None:
    # Two nodes of 0.20 and 0.10 USD an hour.
    for budget, warned in ((0.005, True), (0.006, False)):
        told = " ".join(notes(replace(document(), constraints=Constraints(budget_usd=budget))))
        assert ("which costs 0.00500 USD, and the budget is 0.00500 USD; 'up' refuses the plan" in told) is warned


def test_a_narrow_terminal_breaks_no_name_of_an_alternative() -> None:
    other = replace(gcp_document().alternatives[0], label="all n1-standard-64", usd_per_hour=0.3274, total_usd=0.0084)
    shown = plan_as_text(replace(gcp_document(), alternatives=(other,)), width=60)
    assert [name for name in ("instead", "n1-standard-64", "V100-16", "0.0084") if name not in shown] == []


@pytest.mark.parametrize(("zone", "numbers"), [("us-central1-a", "USD/h used"), ("northamerica-northeast1-b", "USD/h")])
def test_a_narrow_terminal_breaks_no_name_of_a_node(zone: str, numbers: str) -> None:
    base = gcp_document()
    named = [replace(offer, zone=zone, instance_type="n1-standard-64") for offer in base.inputs.offers]
    made = replace(base, inputs=replace(base.inputs, offers=Rows(named)))
    table = plan_as_text(made, width=60).partition("pipelines ")[2].partition("\n\n")[0].splitlines()
    assert " ".join(table[0].split()) == f"stage devices where {numbers}"
    shown = {word for line in table[1:] for word in line.split()}
    assert {zone, "n1-standard-64", "spot"} <= shown


def test_every_stage_is_shown_with_layers_device_zone_price_quota_and_age() -> None:
    lines = [" ".join(line.split()) for line in plan_as_text(document()).splitlines()]
    assert "0: 4 x 2 0 0-3 1 CPU-fast local-a 1 x local-cpu-fast on-demand 0.200 1/1 19 d" in lines
    assert "1 4-5 1 CPU-slow local-b 1 x local-cpu-slow on-demand 0.100 1/1 19 d" in lines


def test_the_summary_shows_totals_next_to_their_limits() -> None:
    shown = plan_as_text(document())
    assert "0.500 s ± 6.0 % (9 of 10 within 15 %" in shown
    assert "10.0 s from first start to last teardown" in shown
    assert "deadline 10 min" in shown
    assert "0.00300 USD (9 of 10 within 0.00250 to 0.00390), worst case 0.0100 USD; budget 1.00 USD" in shown
    assert "every node shuts itself down 10 min after its start" in shown


def test_the_ttl_says_what_sets_it_where_its_document_agrees() -> None:
    plan = document()
    told = {fact.name: fact.value for fact in request_facts(replace(plan, ttl_s=1200.0))}["TTL"]
    assert told.endswith("even if the controller dies; that is the deadline and 10 min for the teardown")
    told = {fact.name: fact.value for fact in request_facts(replace(plan, ttl_s=700.0))}["TTL"]
    assert told.endswith("even if the controller dies")


def test_a_ttl_that_ends_more_runs_than_the_limits_is_named_with_its_probability() -> None:
    plan = document()
    assert plan.totals is not None
    assert "within the TTL" not in plan_as_text(plan)
    early = replace(plan, totals=replace(plan.totals, within_limits=0.5))
    assert "more than 99.9 % within the deadline, 50 % within the TTL" in plan_as_text(early, width=120)


def test_example_prices_are_called_examples() -> None:
    assert "prices of the local provider are examples" in plan_as_text(document())


def test_a_stale_price_is_marked_on_its_line_and_below() -> None:
    old = replace(
        cost_line(CostKind.COMPUTE, "old", quantity=1, usd_per_unit=1), stale=True, price_as_of=date(2026, 1, 2)
    )
    shown = plan_as_text(costing(document(), old))
    assert "322 d old STALE" in shown
    assert "STALE: prices from 2026-01-02 are used" in shown
    assert "2026-01-02 STALE" in plan_as_text(costing(document(), old), details=True)


@pytest.mark.parametrize(("share", "told"), [(0.05, ""), (0.5, " (egress is 50 % of the total)")])
def test_a_rate_that_is_largely_egress_says_so(share: float, told: str) -> None:
    given = document()
    # Egress of iterations before the first step counts too, so an hour's egress may exceed the rate.
    lines = (
        cost_line(CostKind.EGRESS, "a to b", quantity=1, usd_per_unit=100 * share),
        cost_line(CostKind.COMPUTE, "nodes", quantity=1, usd_per_unit=100 * (1 - share)),
    )
    cost = replace(given.cost, lines=Rows(lines))
    rate = next(fact.value for fact in outcome_facts(replace(given, cost=cost)) if fact.name == "rate")
    assert f"USD/h{told}, worst case " in rate


def test_prices_newer_than_the_day_of_the_plan_are_reported() -> None:
    early = replace(document(), as_of=document().as_of.replace(year=2025))
    assert "prices up to 2026-11-01 are newer than 2025-11-20: their age is negative" in " ".join(notes(early))
    assert "negative" not in " ".join(notes(document()))


def test_a_doubtful_price_is_reported_with_the_one_that_counts_and_how_to_buy_it() -> None:
    plan = document()
    first, *others = plan.inputs.offers
    listed = ListedPrice(usd_per_hour=0.05, source="mine", doubts=(Doubt.OUTLIER,), counted_from=Market.ON_DEMAND)
    doubted = replace(first, listed=listed)
    shown = " ".join(
        plan_as_text(
            replace(plan, inputs=replace(plan.inputs, offers=(doubted, *others))), details=True, width=400
        ).split()
    )
    assert (
        "DOUBTFUL: local-cpu-fast on-demand in local-a is listed at 0.0500 USD/h (mine), an outlier; plans count "
        "0.200, the highest on-demand price known in local; 'up' on a cloud refuses such prices without "
        "--allow-doubtful"
    ) in shown
    assert "example (doubtful)" in shown
    assert "DOUBTFUL" not in plan_as_text(plan)


def test_a_zone_that_was_never_seen_selling_a_type_is_reported() -> None:
    plan = gcp_document()
    first, *others = plan.inputs.offers
    unchecked = replace(first, zone_confidence=ZoneConfidence.UNCHECKED)
    shown = plan_as_text(replace(plan, inputs=replace(plan.inputs, offers=(unchecked, *others))), width=400)
    assert f"UNCHECKED: no source has seen {first.instance_type} in {first.zone} on sale; 'up' asks" in shown
    assert "UNCHECKED" not in plan_as_text(plan)


@pytest.mark.parametrize(
    ("offer", "worst", "usd"),
    [
        # Two hours of 4.51 USD on a budget of 9 USD.
        (GCP_OFFERS[0], 4.51, 9.02),
        (GCP_OFFERS[0], 4.5, None),
        # A highest price is set on AWS.
        (AWS_OFFERS[0], 4.51, None),
        (AWS_OFFERS[1], 4.51, 9.02),
    ],
    ids=["gcp spot", "within the budget", "aws spot", "aws on-demand"],
)
def test_possible_costs_beyond_the_budget_until_nodes_end_themselves_are_reported(
    offer: Offer, worst: float, usd: float | None
) -> None:
    base = cloud_document(("n0", offer))
    assert base.cost is not None
    plan = replace(
        base,
        cost=replace(base.cost, worst_case_usd_per_hour=worst),
        constraints=base.constraints.model_copy(update={"budget_usd": 9.0}),
        ttl_s=7200.0,
    )
    assert unlimited_usd(plan) == (None if usd is None else pytest.approx(usd))
    given = replace(plan, status=Status.GIVEN)
    for searched in (plan, given):
        told = [fact.value for fact in outcome_facts(searched) if fact.name == "unattended"]
        assert told == [
            "9.02 USD at worst-case prices if nothing stops the nodes before their TTL; the controller stops the run "
            "before it passes the budget of 9.00 USD"
        ] * (usd is not None)
    broken = replace(given, constraints=given.constraints.model_copy(update={"max_usd_per_hour": 0.01}))
    assert not [fact for fact in outcome_facts(broken) if fact.name == "unattended"], "nobody buys it"
    assert unlimited_usd(replace(plan, ttl_s=None)) is None


def test_a_run_of_unknown_length_costs_at_most_what_its_nodes_do_until_they_end_themselves() -> None:
    # Prices of spot nodes on AWS are capped, so that the budget is the most.
    for offer, budget, usd in (
        (GCP_OFFERS[0], None, "3.00"),
        (GCP_OFFERS[0], 9.0, "3.00"),
        (AWS_OFFERS[0], 2.0, "2.00"),
    ):
        base = cloud_document(("n0", offer))
        assert base.cost is not None
        cost = replace(base.cost, worst_case_usd_per_hour=1.5, total_usd=None, worst_case_usd=None)
        constraints = base.constraints.model_copy(update={"budget_usd": budget})
        limited = replace(base, cost=cost, ttl_s=7200.0, constraints=constraints)
        (told,) = (fact.value for fact in outcome_facts(limited) if fact.name == "at most")
        assert told == f"{usd} USD, since the nodes shut themselves down 2 h after their start"


def test_equal_pipelines_share_their_rows() -> None:
    base = document()
    assert base.plan is not None
    one = base.plan.pipelines[0]
    twice = replace(base, plan=replace(base.plan, pipelines=(one, replace(one, id=1))))
    shown = plan_as_text(twice)
    assert "0-1: 4 x 2 = each of pipelines 0-1 runs 4 microbatches of 2 samples; layer 0 is the embedding, 5" in shown
    assert shown.count("local-cpu-fast on-demand") + shown.count("local-cpu-fast  on-demand") == 1
    assert "2 CPU-fast" in shown


def test_a_stage_on_the_nodes_of_the_one_before_says_so() -> None:
    base = document()
    assert base.plan is not None
    one = base.plan.pipelines[0]
    first, second = one.stages
    shared = replace(one, stages=(first, replace(second, node=first.node, devices=(1,))))
    nodes = (replace(base.plan.nodes[0], devices=2),)
    shown = plan_as_text(replace(base, plan=replace(base.plan, nodes=nodes, pipelines=(shared,))))
    rows = [" ".join(line.split()) for line in shown.splitlines()]
    assert "1 4-5 1 CPU-fast same nodes 0.200" in rows
    assert "1 CPU-slow" not in shown


def test_the_nodes_of_an_earlier_stage_are_listed_once() -> None:
    base = document()
    assert base.plan is not None
    one = base.plan.pipelines[0]
    first, second = one.stages
    last = replace(first, first_layer=second.end_layer - 1, end_layer=second.end_layer, devices=(1,))
    stages = (first, replace(second, end_layer=second.end_layer - 1), last)
    nodes = (replace(base.plan.nodes[0], devices=2), *base.plan.nodes[1:])
    plan = replace(base.plan, nodes=nodes, pipelines=(replace(one, stages=stages),))
    lines = group_lines(replace(base, plan=plan))
    assert [line.nodes for line in lines if line.stage] == [
        "1 x local-cpu-fast",
        "1 x local-cpu-slow",
        "nodes of stage 0",
    ]


def test_devices_that_are_paid_for_and_idle_have_a_row() -> None:
    base = document()
    assert base.plan is not None
    wide = replace(base.inputs.offers[0], accelerator_count=2)
    nodes = (replace(base.plan.nodes[0], devices=2), base.plan.nodes[1])
    idle = replace(
        base,
        inputs=replace(base.inputs, offers=(wide, base.inputs.offers[1])),
        plan=replace(base.plan, nodes=nodes),
    )
    rows = [" ".join(line.split()) for line in plan_as_text(idle).splitlines()]
    assert "idle 1 CPU-fast local-a local-cpu-fast on-demand 0.100 2/1 19 d" in rows


def test_the_money_tree_adds_up_to_the_total_and_names_each_direction_of_traffic() -> None:
    priced = gcp_document()
    assert priced.cost is not None
    shown = plan_as_text(priced)
    total = f"{sum(line.usd for line in priced.cost.lines):,.2f}"
    assert any(line.split()[:2] == ["total", total] for line in shown.splitlines())
    assert "us-central1-a to us-west1-b, paid by us-central1-a" in shown
    assert " GB at " in shown


def test_the_shown_figures_of_the_money_tree_add_up() -> None:
    halves = [cost_line(CostKind.COMPUTE, f"half {name}", quantity=1, usd_per_unit=3.6752) for name in "ab"]
    egress = [cost_line(CostKind.EGRESS, f"way {name}", quantity=1, usd_per_unit=19.8725) for name in "abcd"]
    rows = [line.split() for line in plan_as_text(costing(document(), *halves, *egress)).splitlines()]
    found = {row[0]: float(row[1]) for row in rows if row and row[0] in ("compute", "egress", "total")}
    assert found == {"compute": 7.35, "egress": 79.49, "total": 86.84}
    parts = [float(row[3]) for row in rows if row and row[0] in "├─└─" and row[1] in ("half", "way")]
    assert [round(sum(each), 2) for each in (parts[:2], parts[2:])] == [7.35, 79.49]


def test_details_trace_every_dollar_to_a_source_and_a_date() -> None:
    priced = gcp_document()
    assert priced.cost is not None
    shown = plan_as_text(priced, details=True, width=240)
    for line in priced.cost.lines:
        assert any(line.price_source in row and line.price_as_of.isoformat() in row for row in shown.splitlines())
        assert line.what in shown


def test_alternatives_say_what_they_cost_more_and_which_limit_they_break() -> None:
    priced = gcp_document()
    other = priced.alternatives[0]
    assert other.total_usd is not None
    row = next(line for line in plan_as_text(priced).splitlines() if line.startswith("A100-40 only"))
    assert "keeps all limits" in row
    poor = gcp_document(budget_usd=other.total_usd - 10)
    row = next(line for line in plan_as_text(poor).splitlines() if line.startswith("A100-40 only"))
    assert "over budget by 10.00 USD" in row
    assert other.duration_s is not None
    # Training alone would keep this deadline; start-up and teardown do not.
    limits = priced.constraints.model_copy(update={"deadline": other.duration_s - 120.0})
    late = plan_as_text(replace(priced, constraints=limits))
    row = next(line for line in late.splitlines() if line.startswith("A100-40 only"))
    assert "misses the deadline by 2 min" in row


def test_a_smaller_space_without_a_plan_is_shown_next_to_the_alternatives_with_the_limit_that_binds() -> None:
    lines = [" ".join(line.split()) for line in plan_as_text(gcp_document(), width=160).splitlines()]
    table = lines[lines.index(next(line for line in lines if line.startswith("instead"))) :]
    assert table[2] == "all V100-16 - - - - - does not fit in memory: equal stages need 20 V100-16, and the quota is 16"
    assert sum("all V100-16" in line for line in lines) == 1


def test_equal_exclusions_in_several_zones_and_markets_are_one_line() -> None:
    def out(subject: str, zone: str, market: str, why: str) -> Rejected:
        return Rejected(what=f"{subject}, {zone}, {market}", why=why, subject=subject, zone=zone, market=market)

    large, excess = "a2-megagpu-16g (16 A100-40)", "carries 16 devices, the job allows 8 per zone"
    rows = [out(large, zone, market, excess) for zone in ("z-a", "z-b") for market in ("on-demand", "spot")]
    rows += [out("V100-16", zone, "spot", "no price is known") for zone in ("z-a", "z-c")]
    rows += [out("T4-16", "z-a", "spot", "no price is known"), Rejected(what="T4-16", why="no bf16")]
    shown = plan_as_text(replace(document(), rejected=tuple(rows)), width=160)
    lines = [" ".join(line.split()) for line in shown.partition("ruled out")[2].splitlines()]
    assert lines[1:5] == [
        "a2-megagpu-16g (16 A100-40) on-demand, spot in z-a, z-b carries 16 devices, the job allows 8 per zone",
        "V100-16 spot in z-a, z-c no price is known",
        "T4-16 spot in z-a no price is known",
        "T4-16 no bf16",
    ]


def test_an_infeasible_plan_names_the_constraint_and_what_was_ruled_out() -> None:
    shown = plan_as_text(infeasible())
    assert "infeasible: budget 1 USD is below 2.5 USD" in shown
    assert "V100-16" in shown
    assert "no bf16" in shown


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("make", [document, gcp_document], ids=["local", "gcp"])
def test_no_line_is_wider_than_the_terminal(width: int, make: Callable[[], PlanDocument]) -> None:
    for details in (False, True):
        shown = plan_as_text(make(), details=details, width=width)
        assert max(len(line) for line in shown.splitlines()) <= width


def test_a_terminal_without_unicode_gets_bars_and_branches_in_ascii() -> None:
    shown = plan_as_text(gcp_document(), ascii_only=True)
    assert "#####" in shown
    assert "|- 3 x a2-highgpu-1g" in shown
    assert not set(shown) & set("█├└")


def test_the_heading_of_memory_says_that_it_has_the_allocators_cache() -> None:
    made = document()
    assert made.prediction is not None
    stage = made.prediction.memory[0]
    cached = replace(stage, parts={**stage.parts, "allocator": 5}, total_bytes=stage.total_bytes + 5)
    held = replace(made, prediction=replace(made.prediction, memory=(cached, *made.prediction.memory[1:])))
    for show in (plan_as_text, plan_as_markdown, lambda shown: plan_as_html(shown, timeline=())):
        assert ["peak + cache" in show(each) for each in (made, held)] == [False, True]
