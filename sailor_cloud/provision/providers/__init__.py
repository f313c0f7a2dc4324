"""The registry of how each provider's machines are bought, reached and removed; a provider is loaded when asked for."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sailor_cloud.provision.providers.interface import MachineProvider

BUILT_IN = ("gcp", "aws", "local")


@cache
def of(provider: str) -> MachineProvider:
    """Return a provider's half of provisioning."""
    found: MachineProvider = import_module(f"{__name__}.{provider}").PROVIDER
    return found


def names() -> tuple[str, ...]:
    """Return the names of all providers."""
    return BUILT_IN
