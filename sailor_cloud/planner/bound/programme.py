"""Linear programs, solved by HiGHS."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# One solver per thread: creating one takes as long as solving a small program.
_LINEAR = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """The optimum. `prices`: by how much one more unit of each row's limit would reduce the cost, at least 0."""

    cost: float
    prices: Floats


def linear(cost: Floats, rows: Floats, limits: Floats) -> Solution | None:
    """Minimise cost @ x over x >= 0 with rows @ x <= limits; None if there is no such x.

    Raises RuntimeError if the solver gives up: a bound must not take that for "there is none".
    """
    import highspy

    highs = _linear_solver()
    _pass(highs, cost, rows, limits)
    highs.run()
    status = highs.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        return None
    if status != highspy.HighsModelStatus.kOptimal:
        raise RuntimeError(f"HiGHS did not solve a linear program: {highs.modelStatusToString(status)}")
    return Solution(
        cost=float(highs.getInfo().objective_function_value),
        prices=np.maximum(0.0, -np.array(highs.getSolution().row_dual)),
    )


def _linear_solver() -> Any:
    """Return this thread's solver, which prints nothing and is deterministic."""
    import highspy

    if not hasattr(_LINEAR, "highs"):
        solver: Any = highspy.Highs
        _LINEAR.highs = solver()
        # The programs are too small for presolve to pay.
        for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0), ("presolve", "off")):
            _LINEAR.highs.setOptionValue(name, value)
    return _LINEAR.highs


def _pass(highs: Any, cost: Floats, rows: Floats, limits: Floats) -> None:
    """Pass a program to a solver, columns compressed; it replaces the previous one.

    Plain arrays are three times as fast as the solver's own record of a program.
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
