"""How a node on a cloud is logged into."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Names the folder of the machines of `sailor_cloud.testing`, which can't listen on port 22 or make users.
FAKE_MACHINES = "SAILOR_CLOUD_FAKE_MACHINES"
USER = "sailor"
_SSH_PORT = 22
# Below the range that Linux hands out to outgoing connections (32768 and up), so nobody gets it by chance.
UNPRIVILEGED_PORT = 20022


@dataclass(frozen=True, slots=True, kw_only=True)
class WayIn:
    """`workdir` is the folder in which commands start."""

    port: int
    user: str
    workdir: str


def way_in(machine: str) -> WayIn:
    """Return how a machine is logged into: as the user that the HCL makes, or as `sailor_cloud.testing` has it."""
    folder = os.environ.get(FAKE_MACHINES)
    if folder:
        return WayIn(port=UNPRIVILEGED_PORT, user=USER, workdir=str(Path(folder) / machine))
    return WayIn(port=_SSH_PORT, user=USER, workdir=f"/home/{USER}")
