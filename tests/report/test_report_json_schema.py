from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from factories.documents import document
from factories.priced_documents import gcp_document
from sailor_cloud.cli.setup.schema import schema_text

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize("example", sorted(path.name for path in (ROOT / "examples").glob("*.yaml")))
def test_the_examples_keep_to_the_schema(example: str) -> None:
    validator = Draft202012Validator(json.loads(schema_text("job")))
    job = yaml.safe_load((ROOT / "examples" / example).read_text())
    assert [fault.message for fault in validator.iter_errors(job)] == []


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
