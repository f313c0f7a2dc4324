"""How nodes on this machine are started, reached and removed."""

from __future__ import annotations

from sailor_cloud.provision.providers.interface import MachineProvider


class Local(MachineProvider):
    this_host = True
