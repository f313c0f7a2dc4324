"""Fits a bandwidth curve to timed messages, and adds it to a table of curves."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np

from sailor_cloud.network.records import Curve, CurveScope
from sailor_cloud.units import GB, MB

COLUMNS = tuple(field.name for field in fields(Curve))
_KEY = COLUMNS[:6]
# Shorter messages are pure latency; they give the round trip, not the curve.
_LEAST_CURVE_BYTES = 2**14
# A parabola through noisy points may fall below the measurements; then the median rate represents all sizes.
_LEAST_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedCurve:
    """Coefficients as in Link; `error` is the largest relative error of the curve at a measured size."""

    a: float
    b: float
    c: float
    min_bytes: int
    max_bytes: int
    max_bytes_per_s: float
    rtt_ms: float | None
    error: float


def fit_curve(points: Iterable[tuple[int, float]]) -> FittedCurve:
    """Return the least-squares parabola of GB/s over log2 of MB through (bytes, seconds of one way).

    If the shortest message is too short for the curve, it gives the round trip. Raises ValueError with fewer than three
    sizes on the curve.
    """
    ordered = sorted(points)
    timed = [(nbytes, seconds) for nbytes, seconds in ordered if nbytes >= _LEAST_CURVE_BYTES]
    if len(timed) < 3:
        raise ValueError(f"a curve needs three sizes of at least {_LEAST_CURVE_BYTES} bytes, got {len(timed)}")
    sizes = np.array([nbytes for nbytes, _ in timed], dtype=np.float64)
    rates = sizes / np.array([seconds for _, seconds in timed]) / GB
    x = np.log2(sizes / MB)
    # Errors count relative to the rate, since most messages are small.
    a, b, c = np.polyfit(x, rates, 2, w=1.0 / rates)
    fitted = np.minimum((a * x + b) * x + c, rates.max())
    if (fitted < _LEAST_SHARE * rates).any():
        a, b, c = 0.0, 0.0, float(np.median(rates))
        fitted = np.full_like(rates, c)
    shortest = ordered[0]
    return FittedCurve(
        a=float(a),
        b=float(b),
        c=float(c),
        min_bytes=timed[0][0],
        max_bytes=timed[-1][0],
        max_bytes_per_s=float(rates.max() * GB),
        rtt_ms=2e3 * shortest[1] if shortest[0] < _LEAST_CURVE_BYTES else None,
        error=float(np.abs(fitted / rates - 1.0).max()),
    )


def write_curves(
    path: Path,
    base: Path,
    curve: FittedCurve,
    places: Sequence[tuple[CurveScope, str, str, str, str]],
    *,
    source: str,
    as_of: str,
) -> None:
    """Write the table at `base` with one measured curve of one pair added at `places`.

    A place is (scope, source zone, source accelerator, destination zone, destination accelerator). The complete table
    is written, because a folder's table replaces the shipped one. `path` may be `base`.
    """
    with base.open(encoding="utf-8", newline="") as file:
        rows = {tuple(row[name] for name in _KEY): row for row in csv.DictReader(file, strict=True)}
    for scope, src_zone, src, dst_zone, dst in places:
        key = (scope.value, src_zone, src, dst_zone, dst, "1")
        values = (f"{curve.a:.6g}", f"{curve.b:.6g}", f"{curve.c:.6g}", curve.min_bytes, curve.max_bytes)
        rate, rtt = f"{curve.max_bytes_per_s:.6g}", "" if curve.rtt_ms is None else f"{curve.rtt_ms:.6g}"
        content = (*key, *values, rate, rtt, "yes", source, as_of)
        rows[key] = dict(zip(COLUMNS, map(str, content), strict=True))
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())
