from __future__ import annotations

import re
from pathlib import Path

import pytest

from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import parse_job, read_job

GOOD = """
name: tiny
model: {preset: sailor-opt-350}
training: {global_batch_size: 8, sequence_length: 64, steps: 10}
constraints: {budget_usd: 9, deadline: 1h30m}
resources:
  - {provider: local, zones: [local-a], accelerators: {CPU-fast: 1}}
"""


def problems_of(text: str) -> dict[str, str]:
    with pytest.raises(RequestError) as caught:
        parse_job(text, origin="job.yaml")
    assert caught.value.exit_code == 2
    return {problem.path: f"{problem.message} ({problem.hint})" for problem in caught.value.problems}


def test_a_job_is_read_with_its_units() -> None:
    job = parse_job(GOOD)
    assert job.constraints.deadline == 5400
    assert job.resources[0].accelerators == {"CPU-fast": 1}


def test_a_job_survives_json() -> None:
    job = parse_job(GOOD)
    assert Job.model_validate_json(job.model_dump_json()) == job


def test_all_faults_are_reported_together_each_with_its_path() -> None:
    found = problems_of(
        GOOD.replace("global_batch_size: 8", "global_batch: 8, schedule: linear").replace("local,", "gcs,")
    )
    assert "did you mean 'global_batch_size'?" in found["job.yaml: training.global_batch"]
    assert "is missing" in found["job.yaml: training.global_batch_size"]
    assert "'constant' or 'cosine'" in found["job.yaml: training.schedule"]
    assert "'gcp', 'aws', 'local', 'slurm' or 'kubernetes'" in found["job.yaml: resources[0].provider"]


@pytest.mark.parametrize("line", ["data: {source: ftp://host/text}", "checkpoint: {to: hdfs://host/run}"])
def test_a_place_is_a_path_or_in_a_bucket(line: str) -> None:
    [message] = problems_of(GOOD + line).values()
    assert "must be a path, gs://bucket/folder" in message
    known = line.replace("ftp", "gs").replace("hdfs", "s3")
    assert "://" in parse_job(GOOD + known).model_dump_json()


def test_weights_are_named_by_a_path_or_a_url() -> None:
    assert parse_job(GOOD.replace("350}", "350, weights: gs://bucket/model}")).model.weights == "gs://bucket/model"
    assert "job.yaml: model.weights" in problems_of(GOOD.replace("350}", "350, weights: hf://a/b}"))


@pytest.mark.parametrize(
    ("cloud", "path", "message"),
    [
        ("{state: {bucket: s3://states}}", "cloud.state", "an s3:// bucket needs its region"),
        ("{state: {bucket: gs://states, region: us-east-1}}", "cloud.state", "a gs:// bucket takes none"),
        ("{state: {bucket: gs://states/mine}}", "cloud.state.bucket", "without a folder"),
        ("{gcp: {project: p, service_account: me}}", "cloud.gcp.service_account", "the e-mail of a service account"),
        ("{gcp: {project: p, billing_export: t}}", "cloud.gcp.billing_export", "PROJECT.DATASET.TABLE"),
    ],
)
def test_capacity_of_a_cloud_account_is_written_as_entries(cloud: str, path: str, message: str) -> None:
    assert message in problems_of(f"{GOOD}cloud: {cloud}")[f"job.yaml: {path}"]


@pytest.mark.parametrize(
    ("text", "seconds"), [("10 minutes", 600.0), ("1 hour 30 min", 5400.0), ("2 days", 172800.0), ("1 second", 1.0)]
)
def test_a_duration_may_have_its_units_in_words(text: str, seconds: float) -> None:
    assert parse_job(GOOD.replace("1h30m", text)).constraints.deadline == seconds


def test_a_name_that_yaml_reads_as_a_date_is_shown_as_written() -> None:
    (problem,) = problems_of(re.sub(r"(?m)^name: .*", "name: 2024-01-01", GOOD)).values()
    assert problem == "must be text, got 2024-01-01 (put it in quotes)"


def test_a_wrong_duration_shows_how_to_write_one() -> None:
    found = problems_of(GOOD.replace("1h30m", "soon"))
    assert "'soon' is not a duration; write for example 90s" in found["job.yaml: constraints.deadline"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{preset: gpt2, config: b}", "exactly one of preset, config or inline sizes"),
        ("{model_type: gpt2, vocab_size: 9}", "inline sizes lack hidden_size, num_hidden_layers"),
        ("{}", "exactly one of preset, config or inline sizes"),
    ],
)
def test_a_model_needs_one_source(model: str, message: str) -> None:
    assert message in problems_of(GOOD.replace("{preset: sailor-opt-350}", model))["job.yaml: model"]


def test_a_model_has_no_more_layers_than_the_planner_has_tables_for() -> None:
    sizes = "vocab_size: 9, hidden_size: 8, num_attention_heads: 1, num_hidden_layers: 100000"
    found = problems_of(GOOD.replace("{preset: sailor-opt-350}", f"{{model_type: gpt2, {sizes}}}"))
    assert found["job.yaml: model.num_hidden_layers"].startswith("must be less than or equal to 1000, got 100000")


def test_a_family_that_is_not_trained_here_says_what_else_there_is() -> None:
    found = problems_of(GOOD.replace("{preset: sailor-opt-350}", "{model_type: mamba, vocab_size: 9}"))
    told = found["job.yaml: model.model_type"]
    assert "is 'mamba' (did you mean 'llama'? one of 'gpt2'," in told
    assert "others train by their own script in 'run', or as layers in model: {module: my_package.model:build}" in told


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "must be a mapping"),
        ("", "is empty"),
        ('{"schema_version": 1, "plan": null}', "is a plan, not a job file"),
    ],
)
def test_a_file_that_is_no_job_says_so(text: str, message: str) -> None:
    assert message in problems_of(text)["job.yaml"]


def test_a_key_that_is_there_twice_is_named_with_both_lines() -> None:
    with pytest.raises(RequestError) as caught:
        parse_job("name: a\ngoal: minimize-cost\ngoal: minimize-time\n", origin="job.yaml")
    assert str(caught.value) == "job.yaml: has the key 'goal' twice, in lines 2 and 3"


def test_an_alias_inside_its_own_target_is_reported_as_a_loop() -> None:
    with pytest.raises(RequestError) as caught:
        parse_job("name: a\nmodel: &a [*a]\n", origin="job.yaml")
    assert str(caught.value) == "job.yaml: has the alias *a within &a, a loop, at line 2, column 12"


def test_an_anchor_may_be_used_after_its_end() -> None:
    used = GOOD.replace("zones: [local-a]", "zones: &z [local-a]").rstrip("\n")
    job = parse_job(used + "\n  - {provider: local, zones: *z, accelerators: {CPU-slow: 1}}\n")
    assert [entry.zones for entry in job.resources] == [("local-a",), ("local-a",)]


@pytest.mark.parametrize("name", ["llama.md", "llama.html"])
def test_a_report_is_no_job_and_no_plan(name: str, tmp_path: Path) -> None:
    report = tmp_path / name
    report.write_text("# llama: `feasible`\n" * 10_000)
    with pytest.raises(RequestError, match="is a page or a report, not a job file; give the job file"):
        read_job(report)
    with pytest.raises(RequestError, match=r"is a report, not a plan .*plan JOB -o plan\.json"):
        PlanDocument.read(report)
