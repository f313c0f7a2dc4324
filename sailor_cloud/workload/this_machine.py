"""Measures the machine for local nodes: the cores that this process may use, and their speed."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from sailor_cloud.errors import RequestError
from sailor_cloud.model.machine import LocalMachine
from sailor_cloud.workload.local_costs import LocalCosts

logger = logging.getLogger(__name__)

# Names a machine in place of the measured one: cores, and their speed.
VARIABLE = "SAILOR_CLOUD_MACHINE"

_WORK = Path(__file__).with_name("timed_work.py")
# At most this many processes run at once, so that shared resources slow them as they slow ranks.
_AT_ONCE = 4
# The resolution of the recorded speed, so that noise does not change a plan.
_STEP = 0.05


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def this_machine(costs: LocalCosts) -> LocalMachine:
    """Return the cores that this process may use and their speed, rounded to 5 %; takes about half a second.

    Speed is in processor time, as if nothing else ran; a warning says if the machine is busy. The variable
    SAILOR_CLOUD_MACHINE, as in `4 cores at 1.0`, replaces the measurement. Raises RequestError for another form of it.
    """
    given = os.environ.get(VARIABLE)
    if given is not None:
        return _parsed(given)
    cores = usable_cores()
    _warn_if_busy()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-P", str(_WORK), str(min(cores, _AT_ONCE))]
    printed = subprocess.run(command, stdout=subprocess.PIPE, env=environment, text=True, check=True).stdout
    seconds = [float(line) for line in printed.split()]
    speed = costs.timed_work_s * len(seconds) / sum(seconds)
    return LocalMachine(cores=cores, speed=max(_STEP, round(round(speed / _STEP) * _STEP, 2)))


def _warn_if_busy() -> None:
    load, all_cores = os.getloadavg()[0], os.cpu_count() or 1
    if load > all_cores:
        text = "this machine is busy: load average %.1f on %d core%s; nodes on it will be slower than planned"
        logger.warning(text, load, all_cores, "s" if all_cores > 1 else "")


def _parsed(text: str) -> LocalMachine:
    try:
        cores, speed = text.split(" cores at ")
        machine = LocalMachine(cores=int(cores), speed=float(speed))
    except ValueError:
        machine = LocalMachine(cores=0, speed=0.0)
    if machine.cores < 1 or not 0.0 < machine.speed < float("inf"):
        raise RequestError(f"{VARIABLE} is {text!r}; it takes cores and speed, as in '4 cores at 1.0'")
    return machine
