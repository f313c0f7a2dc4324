from __future__ import annotations

import json

import pytest

from factories.documents import document
from sailor_cloud.errors import RequestError
from sailor_cloud.model.document import PlanDocument


def test_a_document_survives_its_json() -> None:
    original = document()
    assert PlanDocument.from_json(original.to_json()) == original


def test_the_same_document_gives_the_same_text() -> None:
    assert document().to_json() == document().to_json()


def test_the_plan_is_written_as_the_design_page_says() -> None:
    written = json.loads(document().to_json())
    first = written["plan"]["pipelines"][0]["stages"][0]
    assert first == {"first_layer": 0, "end_layer": 4, "node": "n0", "devices": [0], "recompute": False}
    assert written["job"]["constraints"]["deadline"] == "600s"


def test_another_schema_version_is_refused_with_both_numbers() -> None:
    changed = document().to_dict() | {"schema_version": 99}
    with pytest.raises(RequestError, match=r"plan.json: schema_version: is 99, this version reads 1"):
        PlanDocument.from_json(json.dumps(changed), origin="plan.json")


def test_a_fault_deep_in_a_document_is_named_by_its_path() -> None:
    changed = document().to_dict()
    changed["plan"]["pipelines"][0]["microbatches"] = "many"
    with pytest.raises(RequestError, match=r"plan\.pipelines\.0\.microbatches"):
        PlanDocument.from_json(json.dumps(changed))


def test_text_that_is_no_json_says_so() -> None:
    with pytest.raises(RequestError, match="is not JSON"):
        PlanDocument.from_json("{")
