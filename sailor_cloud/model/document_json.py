"""Writes and reads a PlanDocument as JSON."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.document import SCHEMA_VERSION, PlanDocument


@cache
def _adapter() -> TypeAdapter[PlanDocument]:
    return TypeAdapter(PlanDocument)


def to_dict(document: PlanDocument) -> dict[str, Any]:
    return cast(dict[str, Any], _adapter().dump_python(document, mode="json"))


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
