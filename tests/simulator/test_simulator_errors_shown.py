"""How sure an answer is reaches every form of the report, wherever the layer times came from."""

from __future__ import annotations

import dataclasses
import json

import pytest

from factories.priced_documents import gcp_document, gcp_timeline
from factories.scenarios import chain, gcp_scenario, make_plan, offer_in
from sailor_cloud.report.html.page import plan_as_html
from sailor_cloud.report.plan_markdown import plan_as_markdown
from sailor_cloud.report.plan_text import plan_as_text
from sailor_cloud.simulator import evaluate
from sailor_cloud.workload import roofline


def test_every_form_of_the_report_tells_the_error() -> None:
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


@pytest.mark.parametrize(
    ("precision", "zone", "accelerator", "expected"),
    [
        ("fp16", "us-central1-a", "A100-40", (roofline.ERROR_P50, roofline.ERROR_P90)),
        ("fp32", "us-central1-a", "V100-16", (0.05, 0.10)),
    ],
)
def test_a_plan_is_as_uncertain_as_the_times_that_it_rests_on(
    precision: str, zone: str, accelerator: str, expected: tuple[float, float]
) -> None:
    scenario = gcp_scenario(batch=64, precision=precision)
    offer = offer_in(scenario, zone, accelerator, devices=4)
    plan = make_plan(scenario, [chain(0, [offer], (0, 26), microbatch_size=2, microbatches=32)])
    found = evaluate(plan, scenario).prediction
    assert (found.error_p50, found.error_p90) == expected


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
    assert (found.error_p50, found.error_p90) == (0.2, 0.3)
