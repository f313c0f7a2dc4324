"""What came of plans in network zones: errors, order, and whether both are as good as is asked for."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from sailor_cloud.network.curve_fit import FittedCurve

MOST_ERROR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One plan. Seconds of computing are the average over ranks as predicted, and those of rank 0 as measured."""

    plan: str
    ranks: int
    predicted_s: float
    measured_s: float
    predicted_compute_s: float
    measured_compute_s: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0


def mean_error(rows: list[Row]) -> float:
    return statistics.mean(abs(row.error) for row in rows)


def orders(rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return the plans from the fastest to the slowest, as predicted and as measured."""
    predicted = [row.plan for row in sorted(rows, key=lambda row: row.predicted_s)]
    return predicted, [row.plan for row in sorted(rows, key=lambda row: row.measured_s)]


def passed(rows: list[Row]) -> bool:
    predicted, measured = orders(rows)
    return mean_error(rows) <= MOST_ERROR and predicted == measured


def report(
    wanted_mbit_per_s: Mapping[tuple[str, str], float], curves: Mapping[tuple[str, str], FittedCurve], rows: list[Row]
) -> str:
    predicted, measured = orders(rows)
    lines = ["| from | to | set, Mbit/s | measured, Mbit/s |", "|---|---|---|---|"]
    for (src, dst), curve in curves.items():
        wanted = wanted_mbit_per_s.get((src, dst)) or wanted_mbit_per_s[dst, src]
        lines.append(f"| {src} | {dst} | {wanted:.1f} | {curve.max_bytes_per_s * 8 / 1e6:.2f} |")
    lines += ["", "| plan | ranks | predicted s | measured s | error | of it computing, predicted and measured s |"]
    lines += ["|---|---|---|---|---|---|"]
    for row in rows:
        computing = f"{row.predicted_compute_s:.3f}, {row.measured_compute_s:.3f}"
        times = f"{row.predicted_s:.3f} | {row.measured_s:.3f} | {100 * row.error:+.1f} %"
        lines.append(f"| {row.plan} | {row.ranks} | {times} | {computing} |")
    order = "the same" if predicted == measured else f"not the same: measured {', '.join(measured)}"
    lines += ["", f"Mean error {100 * mean_error(rows):.1f} %. Order of the plans, predicted and measured: {order}."]
    aim = f"mean error of at most {100 * MOST_ERROR:.0f} % and the same order"
    lines += ["", f"{'PASSED' if passed(rows) else 'MISSED'}: {aim}."]
    return "\n".join(lines) + "\n"
