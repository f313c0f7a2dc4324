"""Writes a fitted compute profile as JSON, next to the table of its layers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.model.offer import Precision
from sailor_cloud.workload.features import FEATURES
from sailor_cloud.workload.fit import Fitted, Floats

SCHEMA = 1
_DIGITS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOrigin:
    """The origin of a profile; `as_of` is the date of the measurements.

    `models`: those that the profile covers; none means any.
    """

    accelerator: str
    stack: str
    precision: Precision
    fitted_on: str
    as_of: str
    source: str
    models: tuple[str, ...] = ()


def write_profile(path: Path, origin: ProfileOrigin, fitted: Fitted) -> None:
    """Write one profile, without coefficients that are zero."""
    coefficients: dict[str, object] = {
        kind.value: {
            "forward": _named(fitted.forward[kind]),
            "backward": _named(fitted.backward[kind]),
        }
        for kind in fitted.forward
    }
    coefficients["update"] = {
        "per_layer": _rounded(fitted.update[0]),
        "per_parameter": _rounded(fitted.update[1]),
    }
    content = {
        "schema": SCHEMA,
        "accelerator": origin.accelerator,
        "stack": origin.stack,
        "dtype": origin.precision.value,
        **({"models": list(origin.models)} if origin.models else {}),
        "fitted_on": origin.fitted_on,
        "coefficients": coefficients,
        "error_p50": round(fitted.error_p50, 4),
        "error_p90": round(fitted.error_p90, 4),
        "as_of": origin.as_of,
        "source": origin.source,
    }
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _named(values: Floats) -> dict[str, float]:
    return {name: _rounded(value) for name, value in zip(FEATURES, values, strict=True) if value > 0.0}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
