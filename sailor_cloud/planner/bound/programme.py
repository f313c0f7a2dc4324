"""Linear programmes, solved by HiGHS."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# A solver of linear programmes per thread: making one takes as long as solving a small programme.
_LINEAR = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The optimum. `prices`: what a unit more of each row's limit would take off the cost, at least 0."""

    cost: float
    prices: Floats


def linear(cost: Floats, rows: Floats, limits: Floats) -> Solution | None:
    """Minimise cost @ x over x >= 0 with rows @ x <= limits; None where there is no such x."""
    import highspy

    highs = _linear_solver()
    _pass(highs, cost, rows, limits)
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    return Solution(
        cost=float(highs.getInfo().objective_function_value),
        prices=np.maximum(0.0, -np.array(highs.getSolution().row_dual)),
    )


def _linear_solver() -> Any:
    """Return this thread's solver, which prints nothing and solves the same programme the same way each time."""
    import highspy

    if not hasattr(_LINEAR, "highs"):
        solver: Any = highspy.Highs
        _LINEAR.highs = solver()
        # The programmes are too small for presolve to pay.
        for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("presolve", "off")):
            _LINEAR.highs.setOptionValue(name, value)
    return _LINEAR.highs


def _pass(highs: Any, cost: Floats, rows: Floats, limits: Floats) -> None:
    """Give a programme to a solver, columns compressed; what it knew of another one is gone.

    As plain arrays: to fill the solver's own record of a programme takes three times as long.
    """
    import highspy

    columns = rows.T
    filled = columns != 0.0
    begins = np.concatenate([[0], np.cumsum(filled.sum(axis=1))])[:-1].astype(np.int32)
    indices = np.nonzero(filled)[1].astype(np.int32)
    highs.passModel(
        len(cost),
        len(rows),
        len(indices),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMinimize),
        0.0,
        cost,
        np.zeros(len(cost)),
        np.full(len(cost), highspy.kHighsInf),
        np.full(len(limits), -highspy.kHighsInf),
        limits,
        begins,
        indices,
        columns[filled],
        np.zeros(len(cost), dtype=np.int32),
    )
