"""Durations as users write them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, PlainSerializer

from sailor_cloud.units import LONGEST_S, parse_duration_s


def reject_boolean(value: Any) -> Any:
    """Reject `yes`, which YAML reads as a boolean and which would count as 1."""
    if isinstance(value, bool):
        raise ValueError(f"must be a number, got {'yes or true' if value else 'no or false'}")
    return value


def _seconds(value: Any) -> Any:
    reject_boolean(value)
    if isinstance(value, str):
        return parse_duration_s(value)
    if isinstance(value, int | float) and value > LONGEST_S:
        raise ValueError(f"{value:g} s is longer than a hundred years")
    return value


def _duration_text(seconds: float) -> str:
    whole = int(seconds)
    return f"{whole}s" if whole == seconds else f"{seconds}s"


Duration = Annotated[
    float,
    BeforeValidator(_seconds, json_schema_input_type=str),
    PlainSerializer(_duration_text, return_type=str, when_used="json"),
    Field(gt=0, description="A duration such as 90s, 10m, 24h or 1h30m."),
]
