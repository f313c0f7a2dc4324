"""How machines of Google Cloud are bought, reached and removed."""

from __future__ import annotations

from sailor_cloud.provision.providers.gcp.errors import ERRORS
from sailor_cloud.provision.providers.interface import MachineProvider


class Gcp(MachineProvider):
    errors = ERRORS
