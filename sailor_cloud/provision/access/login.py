"""How to log in to a machine. Loads nothing else of the package, because Terraform waits for programs that need it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

# Names the folder of the machines of `sailor_cloud.testing`, which can't listen on port 22 or create users.
FAKE_MACHINES = "SAILOR_CLOUD_FAKE_MACHINES"
USER = "sailor"
_SSH_PORT = 22
# Below Linux's range for outgoing connections (32768 and up), so no process gets it by chance.
UNPRIVILEGED_PORT = 20022


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How to log in to a machine; commands start in `workdir`."""

    port: int
    user: str
    workdir: str


def login(machine: str) -> Login:
    """Return the login of a machine: the user that the HCL creates, or as `sailor_cloud.testing` defines."""
    folder = os.environ.get(FAKE_MACHINES)
    if folder:
        return Login(port=UNPRIVILEGED_PORT, user=USER, workdir=str(Path(folder) / machine))
    return Login(port=_SSH_PORT, user=USER, workdir=f"/home/{USER}")
