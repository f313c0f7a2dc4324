"""What a run compares with one process before it trains: its model, a narrow copy of it, or nothing."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from factories.scenarios import make_job
from sailor_cloud.api import read_job
from sailor_cloud.launch.fleet.run_spec import ComparisonModel, comparison_model
from sailor_cloud.launch.watch.announce import announce
from sailor_cloud.simulator.money import MOST_REFERENCE_FLOPS, reference_flops
from sailor_cloud.workload import job_decoder

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize(
    ("example", "expected"),
    [
        ("quickstart.yaml", ComparisonModel.MODEL),
        ("gcp-a100-v100.yaml", ComparisonModel.NARROW_COPY),
        ("llama3-8b-two-clouds.yaml", ComparisonModel.NARROW_COPY),
    ],
)
def test_one_process_trains_small_models_whole(example, expected):
    job = read_job(EXAMPLES / example)
    assert comparison_model(job, job_decoder(job)) is expected


def test_the_reference_of_a_job_by_hand():
    job = make_job(model={"preset": "gpt2"}, batch=1, sequence_length=1)
    # 124,439,808 parameters, five steps of one token.
    assert reference_flops(job, job_decoder(job)) == 6 * 124_439_808 * 5
    assert reference_flops(job, job_decoder(job)) < MOST_REFERENCE_FLOPS


class _Heard:
    def __init__(self, job: Any, decoder: Any) -> None:
        self.notes: list[str] = []
        self.shown: list[str] = []
        self.runs_command = False
        self.document = type("Document", (), {"job": job})()
        self.decoder = decoder
        self.observer = type("Observer", (), {"note": self.notes.append})()

    def show(self, what: str) -> None:
        self.shown.append(what)


def _started(decoder: Any, job: Any) -> _Heard:
    heard = _Heard(job, decoder)
    announce(heard, {"event": "generation_started", "generation": 1}, type("Monitor", (), {"generation": 1})())
    return heard


def test_the_compared_figures_are_named():
    small, large = read_job(EXAMPLES / "quickstart.yaml"), read_job(EXAMPLES / "gcp-a100-v100.yaml")
    assert _started(job_decoder(small), small).shown == ["checking the first steps against one process"]
    heard = _started(job_decoder(large), large)
    assert (heard.shown, heard.notes) == (["checking the plan against one process"], [])
    event = {"event": "verified", "generation": 1, "steps": 5, "narrow": True}
    event |= {"max_abs_difference": 2e-13, "tolerance": 1e-10}
    announce(heard, event, type("Monitor", (), {"generation": 1})())
    assert heard.notes == [
        "5 steps of a narrow copy of the model equal one process in float64: largest weight difference 2.0e-13 "
        "(tolerance 1e-10)"
    ]


def test_settings_that_differ_from_those_of_the_checkpoint_are_named():
    job = read_job(EXAMPLES / "quickstart.yaml")
    heard = _Heard(job, job_decoder(job))
    event = {"event": "training", "generation": 1, "checkpoint": "run/step-4"}
    event["changed"] = ["learning_rate 0.5 instead of 0.01", "steps 9 instead of 4"]
    announce(heard, event, type("Monitor", (), {"generation": 1})())
    assert heard.notes == [
        "continuing from run/step-4, with learning_rate 0.5 instead of 0.01, with steps 9 instead of 4"
    ]


def test_a_failed_comparison_is_not_announced_as_equal():
    job = read_job(EXAMPLES / "quickstart.yaml")
    heard = _Heard(job, job_decoder(job))
    # The weights agree: only losses or gradient norms differ.
    event = {"event": "verified", "generation": 1, "steps": 5, "passed": False}
    event |= {"max_abs_difference": 0.0, "loss_difference": 0.011, "norm_difference": 2e-11, "tolerance": 1e-10}
    announce(heard, event, type("Monitor", (), {"generation": 1})())
    assert heard.notes == [
        "first 5 steps differ from one process in float64: by 0.0e+00 in weights, 1.1e-02 in loss and 2.0e-11 in "
        "gradient norm (tolerance 1e-10)"
    ]
    assert heard.shown == []


def test_a_large_module_of_the_user_is_not_compared_and_a_note_says_so():
    job = read_job(EXAMPLES / "gcp-a100-v100.yaml")
    own = dataclasses.replace(job_decoder(job), module="layers:build")
    assert comparison_model(job, own) is ComparisonModel.NOTHING
    heard = _started(own, job)
    assert heard.shown == ["calibrating"]
    [note] = heard.notes
    assert "not compared with one process" in note
