"""How sure an answer is reaches every form of the report, wherever the layer times came from."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from factories.priced_documents import gcp_document, gcp_timeline
from factories.scenarios import chain, gcp_scenario, make_job, make_plan, make_scenario, offer_in
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.plan.plan_markdown import plan_as_markdown
from sailor_cloud.report.plan.plan_text import plan_as_text
from sailor_cloud.simulator import ENGINES, evaluate


def test_every_form_of_the_report_shows_the_error() -> None:
    document = gcp_document()
    assert document.prediction is not None
    prediction = dataclasses.replace(document.prediction, error_p50=0.06, error_p90=0.37)
    document = dataclasses.replace(document, prediction=prediction)
    for shown in (
        plan_as_text(document),
        plan_as_markdown(document),
        plan_as_html(document, timeline=gcp_timeline()),
    ):
        assert "± 6" in shown
        assert "within 37" in shown
    told = json.loads(document.to_json())["prediction"]
    assert (told["error_p50"], told["error_p90"]) == (0.06, 0.37)


def test_layers_that_nobody_measured_are_named_wherever_the_iteration_stands() -> None:
    document = gcp_document()
    assert document.prediction is not None
    shares = tuple(dataclasses.replace(each, measured=False) for each in document.prediction.error_shares)
    guessed = dataclasses.replace(document, prediction=dataclasses.replace(document.prediction, error_shares=shares))
    for shown in (
        plan_as_text(guessed, width=300, details=True),
        plan_as_markdown(guessed),
        plan_as_html(guessed, timeline=gcp_timeline()),
    ):
        assert f"estimated, not measured: {shares[0].what}" in shown
        assert f"of the ± comes from {shares[0].what}" in shown
        assert shares[0].measurement.split()[-1] in shown


def test_memory_that_nobody_measured_is_named_wherever_it_stands() -> None:
    document = gcp_document()
    assert document.prediction is not None
    first, *rest = document.prediction.memory
    for known in ([first, *rest], [dataclasses.replace(each, measured=True) for each in (first, *rest)]):
        prediction = dataclasses.replace(document.prediction, memory=tuple(known))
        made = dataclasses.replace(document, prediction=prediction)
        basis = "measured" if known[0].measured else "estimated, not measured"
        shown = plan_as_text(made, width=300, details=True)
        assert basis in next(line for line in shown.splitlines() if line.startswith("memory of"))
        assert f" {basis} |" in plan_as_markdown(made).partition("| basis |")[2].partition("\n\n")[0]
        assert (
            f">{basis}<" in plan_as_html(made, timeline=gcp_timeline()).partition(">basis<")[2].partition("</table>")[0]
        )
        assert {row["measured"] for row in json.loads(made.to_json())["prediction"]["memory"]} == {known[0].measured}
    mixed = dataclasses.replace(document.prediction, memory=(dataclasses.replace(first, measured=True), *rest))
    shown = plan_as_text(dataclasses.replace(document, prediction=mixed), width=300, details=True)
    assert "A100-40, measured" in shown
    assert ", estimated, not measured" in shown


@pytest.mark.parametrize(
    ("precision", "zone", "accelerator", "measured"),
    [
        ("fp16", "us-central1-a", "A100-40", True),
        ("fp16", "us-central1-a", "V100-16", False),
        ("fp32", "us-central1-a", "V100-16", True),
    ],
)
def test_a_plan_is_no_surer_than_the_times_that_it_rests_on(
    precision: str, zone: str, accelerator: str, measured: bool
) -> None:
    # The program that published runs on both generations are of.
    scenario = gcp_scenario(batch=64, precision=precision, engine=ENGINES["deepspeed"])
    offer = offer_in(scenario, zone, accelerator, devices=4)
    plan = make_plan(scenario, [chain(0, [offer], (0, 26), microbatch_size=2, microbatches=32)])
    found = evaluate(plan, scenario).prediction
    layers = next(each for each in found.error_shares if each.what == f"layers on {accelerator} in {precision}")
    errors = scenario.profiles.errors
    fitted = errors.layers if measured else math.hypot(errors.layers, errors.accelerator)
    expected = errors.at_least(0.05, 0.10) if precision == "fp32" else fitted
    assert layers.error_p50 == pytest.approx(math.sinh(expected), rel=0.01)
    assert layers.measured is measured
    assert found.error_p50 >= layers.error_p50
    assert found.error_p90 > found.error_p50


def test_the_least_known_stage_decides() -> None:
    scenario = gcp_scenario(batch=64, precision="fp32")
    known = offer_in(scenario, "us-central1-a", "V100-16", devices=4)
    less = offer_in(scenario, "us-central1-a", "A100-40", devices=4)
    seats = [chain(0, [known, less], (0, 13, 26), microbatch_size=2, microbatches=32)]
    profiles = scenario.profiles
    entries = tuple(
        dataclasses.replace(entry, error_p50=0.2, error_p90=0.3) if entry.accelerator == "A100-40" else entry
        for entry in profiles.entries
    )
    doubtful = dataclasses.replace(scenario, profiles=dataclasses.replace(profiles, entries=entries))
    found = evaluate(make_plan(scenario, seats), doubtful).prediction
    assert found.error_shares[0].what == "layers on A100-40 in fp32"
    assert found.error_shares[0].error_p50 == pytest.approx(0.2, rel=0.15)


def test_a_plan_that_waits_for_a_guessed_link_is_as_uncertain_as_the_link() -> None:
    scenario = gcp_scenario(batch=4, precision="fp32")
    here, there = (offer_in(scenario, zone, "V100-16", devices=4) for zone in ("us-central1-a", "us-west1-b"))
    chains = [
        chain(number, [offer], (0, 26), microbatch_size=2, microbatches=1) for number, offer in enumerate((here, there))
    ]
    apart = evaluate(make_plan(scenario, chains), scenario).prediction
    together = [chain(number, [here], (0, 26), microbatch_size=2, microbatches=1) for number in range(2)]
    near = evaluate(make_plan(scenario, together), scenario).prediction
    assert apart.waits.sync_s > 0.5 * apart.iteration_s_replay
    assert apart.error_shares[0].what == "all-reduces of gradients between us-central1-a and us-west1-b"
    assert "--link-to" in apart.error_shares[0].measurement
    assert apart.error_p50 > 2.0 * near.error_p50, (apart.error_shares, near.error_shares)
    assert sum(each.share for each in apart.error_shares) == pytest.approx(1.0)


def test_the_distribution_of_totals_follows_the_error_and_the_limits() -> None:
    document = gcp_document()
    scenario_totals = document.totals
    assert scenario_totals is not None
    assert document.cost is not None
    assert document.prediction is not None
    quantiles = {each.probability: each for each in scenario_totals.quantiles}
    assert quantiles[0.5].duration_s == pytest.approx(document.prediction.duration_s)
    assert quantiles[0.5].total_usd == pytest.approx(document.cost.total_usd)
    times = [each.duration_s for each in scenario_totals.quantiles]
    assert times == sorted(times)
    assert scenario_totals.within_budget is not None
    assert 0.0 < scenario_totals.within_budget <= 1.0
    told = json.loads(document.to_json())["totals"]
    assert told["within_budget"] == scenario_totals.within_budget
    for shown in (plan_as_text(document, width=200), plan_as_markdown(document)):
        assert "within the budget" in shown


@pytest.mark.parametrize(("size", "words"), [(8, ""), (16, " in microbatches of 16 (measured up to 8)")])
def test_microbatches_beyond_the_measured_ones_are_named(size: int, words: str) -> None:
    scenario = make_scenario(make_job(batch=32))
    offer = offer_in(scenario, "local-a", "CPU-fast")
    plan = make_plan(scenario, [chain(0, [offer], (0, 8), microbatch_size=size, microbatches=32 // size)])
    layers = [each for each in evaluate(plan, scenario).prediction.error_shares if each.what.startswith("layers")]
    assert [(each.what, each.measured) for each in layers] == [(f"layers on CPU-fast in fp32{words}", not words)]
