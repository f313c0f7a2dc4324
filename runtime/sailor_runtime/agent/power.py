"""Powers off a machine that is no longer needed."""

from __future__ import annotations

import os
import subprocess
import sys

from sailor_runtime.stand_in import ACCELERATORS, POWER_OFF

_REAL = "sudo -n systemctl poweroff"


def power_off() -> None:
    """Power this machine off; one that emulates a cloud's ends in its own way, or not at all."""
    command = os.environ.get(POWER_OFF, "" if os.environ.get(ACCELERATORS) == "cpu" else _REAL)
    if not command:
        return
    print(f"sailor_runtime: no controller needs this machine: {command}", file=sys.stderr, flush=True)  # noqa: T201
    subprocess.run(["sh", "-c", command], check=False)
