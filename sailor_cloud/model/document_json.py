"""Writes and reads a PlanDocument as JSON."""

from __future__ import annotations

import json
from dataclasses import fields
from datetime import date
from enum import Enum
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.document import SCHEMA_VERSION, PlanDocument


@cache
def _adapter() -> TypeAdapter[PlanDocument]:
    return TypeAdapter(PlanDocument)


def to_dict(document: PlanDocument) -> dict[str, Any]:
    """Return the document as plain JSON values, as the adapter would, which takes longer to build than to use."""
    return {field.name: _plain(getattr(document, field.name)) for field in fields(document)}


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case None | str() | int() | float():
            return value
        case tuple():
            return [_plain(each) for each in value]
        case dict():
            return {name: _plain(each) for name, each in value.items()}
        case date():
            return value.isoformat().replace("+00:00", "Z")
        case BaseModel():
            return value.model_dump(mode="json")
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}


def dump_json(document: PlanDocument) -> str:
    return json.dumps(to_dict(document), indent=2, ensure_ascii=False) + "\n"


def load_json(text: str | bytes, *, origin: str) -> PlanDocument:
    try:
        raw = json.loads(text)
    except ValueError as error:
        hint = "a plan document is what 'sailor-cloud plan JOB -o plan.json' writes"
        raise RequestError([Problem(path=origin, message=f"is not JSON: {error}", hint=hint)]) from error
    version = raw.get("schema_version") if isinstance(raw, dict) else None
    if version != SCHEMA_VERSION:
        raise RequestError(
            [
                Problem(
                    path=f"{origin}: schema_version",
                    message=f"is {version!r}, this version reads {SCHEMA_VERSION}",
                    hint="write the document again with 'sailor-cloud plan JOB -o FILE'",
                )
            ]
        )
    try:
        return _adapter().validate_python(raw, strict=False)
    except ValidationError as error:
        problems = [
            Problem(path=f"{origin}: {'.'.join(str(part) for part in fault['loc'])}", message=fault["msg"])
            for fault in error.errors()
        ]
        raise RequestError(problems) from error
