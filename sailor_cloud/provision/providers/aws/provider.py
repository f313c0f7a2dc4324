"""How machines of Amazon Web Services are bought, reached and removed."""

from __future__ import annotations

from sailor_cloud.provision.providers.aws.errors import ERRORS
from sailor_cloud.provision.providers.interface import MachineProvider


class Aws(MachineProvider):
    errors = ERRORS
