"""Jobs that run a command."""

from __future__ import annotations

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job

RESOURCES = "resources: [{provider: local, zones: [local-a], accelerators: {CPU-fast: 2}}]\n"


def job(text: str) -> Job:
    return parse_job(f"name: any\n{text}\n{RESOURCES}")


def test_a_command_needs_no_model_and_no_batch() -> None:
    found = job("run: torchrun train.py\ntraining: {steps: 40}\nenv: {A: '1', C: text, TOKEN: null}")
    assert (found.model, found.training.steps) == (None, 40)
    assert found.env == {"A": "1", "C": "text", "TOKEN": None}
    assert Job.model_validate_json(found.model_dump_json()) == found


def test_documents_without_a_command_say_nothing_of_one() -> None:
    found = job("model: {preset: opt-350m}\ntraining: {global_batch_size: 8, sequence_length: 64}")
    assert {"run", "setup", "workdir", "env", "stall", "throughput"}.isdisjoint(found.model_dump())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("goal: minimize-cost", ("model: is missing", "the command to 'run'", "training: is missing")),
        ("run: ''", ("run", "must not be empty")),
        ("run: '  '", ("run", "is blank", "torchrun train.py")),
        ("run: x\nmodel: {preset: opt-350m}", ("training must say global_batch_size and sequence_length",)),
        ("run: x\nenv: {A: 10}", ("env.A", "put it in quotes, got 10")),
        ("run: x\nenv: {A: yes}", ("env.A", "put it in quotes")),
        ("run: x\nenv: {PET_NNODES: '4'}", ("env", "PET_NNODES", "set for each node")),
        (
            "run: x\ntraining: {steps: 4}\nthroughput: 2\nconstraints: {probability: 0.9, deadline: 1h}",
            ("constraints.probability needs a model",),
        ),
        ("run: x\nenv: {2FAST: a, my-name: b}", ("env", "'2FAST', 'my-name'", "letters, digits and _")),
        ("run: x\nenv: {WORLD_SIZE: '4', SAILOR_PLAN: b}", ("env", "WORLD_SIZE, SAILOR_PLAN", "set for each node")),
        ("run: x\nenv: [A=1]", ("env", "must be a mapping")),
        ("run: x\nthroughput: fast", ("throughput",)),
        (
            "run: x\nmodel: {preset: opt-350m}\nthroughput: 2\ntraining: {global_batch_size: 8, sequence_length: 64}",
            ("throughput is for a command without a model",),
        ),
        (
            "model: {preset: opt-350m}\ntraining: {global_batch_size: 8, sequence_length: 64}\nsetup: make",
            ("setup: only with a command",),
        ),
        (
            "model: {preset: opt-350m}\n"
            "training: {global_batch_size: 8, sequence_length: 64, compile: true, dropout: 0.1}",
            ("compile needs dropout 0, got 0.1",),
        ),
    ],
)
def test_wrong_input_is_named(text: str, words: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        job(text)
    for word in words:
        assert word in str(caught.value)


def test_a_command_without_resources_reports_what_is_missing() -> None:
    with pytest.raises(RequestError, match="resources: is missing"):
        parse_job("name: any\nrun: torchrun train.py\n")
