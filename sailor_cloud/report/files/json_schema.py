"""The JSON Schemas of job files and of PlanDocuments, for editors and for programs that read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from sailor_cloud.model.document import SCHEMA_VERSION, PlanDocument
from sailor_cloud.model.job import Job

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema(*, presets: Sequence[str], accelerators: Sequence[str], zones: Sequence[str]) -> dict[str, Any]:
    """Return the schema of a job file; editors suggest the given names, and the command validates any others."""
    schema = Job.model_json_schema()
    parts = schema["$defs"]
    _drop_unknown_keywords(schema)
    _offer(parts["ModelSource"]["properties"]["preset"], presets)
    resource = parts["Resource"]["properties"]
    resource["zones"]["items"] = _suggested(zones)
    counts = resource["accelerators"]["additionalProperties"]
    resource["accelerators"]["properties"] = dict.fromkeys(accelerators, counts)
    batch = parts["Training"].pop("required")
    # With --on a cluster's nodes replace the resources.
    schema["required"].remove("resources")
    return {
        "$schema": DIALECT,
        **schema,
        **_model_or_command(batch),
        "title": "sailor-cloud job file",
        "$id": _name("job"),
    }


def _model_or_command(batch: Sequence[str]) -> dict[str, Any]:
    """Return the rule that a model needs these fields of `training`, and that a job without a model needs `run`."""
    return {
        "if": {"required": ["model"], "properties": {"model": {"type": "object"}}},
        "then": {"required": ["training"], "properties": {"training": {"required": batch}}},
        "else": {"required": ["run"], "properties": {"run": {"type": "string"}}},
    }


def document_schema() -> dict[str, Any]:
    """Return the schema of the output of `plan --json`."""
    schema = TypeAdapter(PlanDocument).json_schema(mode="serialization")
    schema["properties"]["schema_version"] = {"const": SCHEMA_VERSION, "title": "Schema Version"}
    return {"$schema": DIALECT, **schema, "title": "sailor-cloud PlanDocument", "$id": _name("plan")}


def as_text(schema: dict[str, Any]) -> str:
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"


def _name(kind: str) -> str:
    return f"sailor-cloud/{kind}-v{SCHEMA_VERSION}.schema.json"


def _suggested(names: Sequence[str]) -> dict[str, Any]:
    return {"anyOf": [{"enum": list(names)}, {"type": "string"}]}


def _offer(schema: dict[str, Any], names: Sequence[str]) -> None:
    for place, choice in enumerate(schema["anyOf"]):
        if choice.get("type") == "string":
            schema["anyOf"][place : place + 1] = _suggested(names)["anyOf"]
            return


def _drop_unknown_keywords(value: Any) -> None:
    """Remove limits that pydantic writes next to a choice of types: JSON Schema has no such keyword there."""
    if isinstance(value, dict):
        if "anyOf" in value:
            value.pop("gt", None)
        for child in value.values():
            _drop_unknown_keywords(child)
    elif isinstance(value, list):
        for child in value:
            _drop_unknown_keywords(child)
