from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from factories.documents import document
from factories.priced_documents import gcp_document
from sailor_cloud.cli.setup.schema import schema_text
from sailor_cloud.errors import RequestError
from sailor_cloud.model.job import Job
from sailor_cloud.model.job_file import job_of_values

ROOT = Path(__file__).resolve().parents[2]
JOBS = Draft202012Validator(json.loads((ROOT / "docs" / "schemas" / "job-v1.schema.json").read_text()))


@pytest.mark.parametrize("kind", ["job", "plan"])
def test_the_published_schema_is_the_one_that_the_program_prints(kind: str) -> None:
    published = ROOT / "docs" / "schemas" / f"{kind}-v1.schema.json"
    assert published.read_text(encoding="utf-8") == schema_text(kind), (
        f"run 'sailor-cloud schema {kind} -o {published}'"
    )


@pytest.mark.parametrize("kind", ["job", "plan"])
def test_schemas_are_schemas(kind: str) -> None:
    Draft202012Validator.check_schema(json.loads(schema_text(kind)))


def test_documents_keep_to_the_schema() -> None:
    validator = Draft202012Validator(json.loads(schema_text("plan")))
    for made in (document(), document(steps=None), gcp_document()):
        validator.validate(json.loads(made.to_json()))
    broken = json.loads(document().to_json())
    broken["schema_version"] = 2
    del broken["plan"]["pipelines"][0]["stages"][0]["node"]
    assert len(list(validator.iter_errors(broken))) == 2


def job_faults(job: Any) -> list[str]:
    """Return where the published schema refuses a job, after checking that the product accepts it."""
    job_of_values(job, on=None if "resources" in job else "slurm")
    return [fault.message for fault in JOBS.iter_errors(job)]


def job_blocks() -> dict[str, dict[str, Any]]:
    """Return the blocks of job files in the documentation; the quickstart's job completes those that are a part."""
    whole = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    found = {}
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for number, text in enumerate(re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)):
            block = yaml.safe_load(text)
            if isinstance(block, dict) and block.keys() <= Job.model_fields.keys():
                rest = {name for name in ("name", "training", "resources") if name not in block}
                rest |= set() if {"model", "run"} & block.keys() else {"model"}
                rest -= {"training"} if "run" in block else set()
                found[f"{page.name} {number}"] = {**{name: whole[name] for name in rest}, **block}
    return found


def test_examples_and_the_job_blocks_of_the_docs_keep_to_the_schema() -> None:
    files = [*(ROOT / "examples").glob("*.yaml"), *(ROOT / "examples" / "run").glob("*/job.yaml")]
    jobs = {str(path.relative_to(ROOT)): yaml.safe_load(path.read_text()) for path in files} | job_blocks()
    assert {name: faults for name, job in jobs.items() if (faults := job_faults(job))} == {}
    assert len(jobs) > 18


def test_the_schema_requires_a_batch_of_models_alone_and_resources_of_no_job() -> None:
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    command = {"name": "command", "run": "python train.py", "training": {"steps": 30}}
    assert job_faults(command) == []
    for wrong in (
        {**job, "training": {"steps": 30}},
        {**command, "model": job["model"]},
        {name: value for name, value in job.items() if name != "training"},
        {name: value for name, value in job.items() if name != "model"},
    ):
        with pytest.raises(RequestError):
            job_of_values(wrong, on="slurm")
        assert not JOBS.is_valid(wrong)


def test_editors_suggest_known_names_and_report_unknown_fields() -> None:
    schema = json.loads(schema_text("job"))
    resource = schema["$defs"]["Resource"]["properties"]
    assert "A100-40" in resource["accelerators"]["properties"]
    assert "us-central1-a" in resource["zones"]["items"]["anyOf"][0]["enum"]
    assert "gpt2" in schema["$defs"]["ModelSource"]["properties"]["preset"]["anyOf"][0]["enum"]
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    job["budget"] = 3
    faults = [fault.message for fault in Draft202012Validator(schema).iter_errors(job)]
    assert faults == ["Additional properties are not allowed ('budget' was unexpected)"]
