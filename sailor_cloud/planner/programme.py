"""Linear and integer programmes, solved by HiGHS."""

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
    amounts: Floats
    prices: Floats


def linear(cost: Floats, rows: Floats, limits: Floats) -> Solution | None:
    """Minimise cost @ x over x >= 0 with rows @ x <= limits; None where there is no such x."""
    highs = _linear_solver()
    _pass(highs, cost, rows, np.full(len(limits), -np.inf), limits)
    highs.run()
    if not _is_optimal(highs):
        return None
    found = highs.getSolution()
    return Solution(
        cost=float(highs.getInfo().objective_function_value),
        amounts=np.array(found.col_value),
        prices=np.maximum(0.0, -np.array(found.row_dual)),
    )


def integer(cost: Floats, rows: Floats, least: Floats, most: Floats, *, nodes: int, gap: float) -> Floats | None:
    """Minimise cost @ x over whole x >= 0 with least <= rows @ x <= most.

    The search tree ends after `nodes` nodes, or when the best x is within a share `gap` of the bound; None where
    none was found by then.
    """
    import highspy

    highs = _solver()
    _pass(highs, cost, rows, least, most, whole=True)
    highs.setOptionValue("mip_max_nodes", nodes)
    highs.setOptionValue("mip_rel_gap", gap)
    # It takes longer than the rest of so small a programme.
    highs.setOptionValue("mip_heuristic_run_feasibility_jump", False)
    highs.run()
    primal = highs.getInfo().primal_solution_status
    if primal != highspy.SolutionStatus.kSolutionStatusFeasible:
        return None
    amounts: Floats = np.rint(np.array(highs.getSolution().col_value))
    return amounts


def _linear_solver() -> Any:
    """Return this thread's solver of linear programmes; they are too small for presolve to pay."""
    if not hasattr(_LINEAR, "highs"):
        _LINEAR.highs = _solver()
        _LINEAR.highs.setOptionValue("presolve", "off")
    return _LINEAR.highs


def _solver() -> Any:
    """Return a solver that prints nothing and solves the same programme the same way each time."""
    import highspy

    solver: Any = highspy.Highs
    highs = solver()
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        highs.setOptionValue(name, value)
    return highs


def _pass(highs: Any, cost: Floats, rows: Floats, least: Floats, most: Floats, *, whole: bool = False) -> None:
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
        least,
        most,
        begins,
        indices,
        columns[filled],
        np.full(len(cost), int(whole), dtype=np.int32),
    )


def _is_optimal(highs: Any) -> bool:
    import highspy

    return bool(highs.getModelStatus() == highspy.HighsModelStatus.kOptimal)
