"""The local stand-in for a VM: an SSH server process on its own loopback address with its own folder."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    # Terraform waits for this folder's programs: they must not load what only the controller needs.
    if name != "PROVIDER":
        raise AttributeError(name)
    from sailor_cloud.provision.providers.local.provider import Local

    return Local()
