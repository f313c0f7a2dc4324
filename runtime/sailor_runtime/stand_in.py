"""Processors that emulate accelerators. Standard library only.

`CPU-fast` and `CPU-slow` always are processors. With the variable below, as on the machines of `sailor_cloud.testing`,
every other accelerator is one processor thread too.
"""

from __future__ import annotations

import os

ACCELERATORS = "SAILOR_CLOUD_ACCELERATORS"
METADATA = "SAILOR_CLOUD_METADATA"
# The command that ends a machine that emulates a cloud's.
POWER_OFF = "SAILOR_CLOUD_POWER_OFF"


def runs_on_cpu(accelerator: str) -> bool:
    """Whether devices of this accelerator are processor threads of the node."""
    return accelerator.startswith("CPU-") or os.environ.get(ACCELERATORS) == "cpu"
