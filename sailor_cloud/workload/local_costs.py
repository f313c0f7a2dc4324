"""Measured overheads of training on the local provider, in addition to the layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.catalog.files.tables import constants

FILE = "local_machine.csv"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalCosts:
    """Units as in the names, at speed 1; the file has the measurement of each.

    `message_core_s`: of a rank for each tensor that it sends or receives. `sums_core_s`: of a rank for an iteration's
    all-reduces. `controller_cores` and `node_cores`: for processes other than ranks, the second for each node.
    `start_s` and `start_core_s` (of each node): until ranks are ready. `check_iterations`: iterations that the check of
    the first steps and the calibration take, in seconds and in bytes. `reference_…`: of the process that the check
    compares with. `error_p50`, `error_p90`: relative errors of the iteration time because of the machine.
    """

    timed_work_s: float
    message_core_s: float
    sums_core_s: float
    controller_cores: float
    node_cores: float
    start_s: float
    start_core_s: float
    check_iterations: float
    reference_flops_per_s: float
    reference_cores: float
    error_p50: float
    error_p90: float


def read_local_costs(path: Path) -> LocalCosts:
    """Read the table of constants. Raises DataError."""
    return constants(path, LocalCosts, "what local training takes")
