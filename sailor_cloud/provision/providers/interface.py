"""What a provider tells and does, so that its machines can be bought, reached and removed."""

from __future__ import annotations

from typing import ClassVar, Protocol

from sailor_cloud.provision.errors.rules import ErrorGuide


class MachineProvider(Protocol):
    """One provider's half of provisioning; `docs/add-a-provider.md` shows how one is written.

    Everything has the answer that fits where a provider has no such thing.
    """

    this_host: ClassVar[bool] = False
    """Whether machines are processes of the controller's own host, with its files and its Python."""

    errors: ClassVar[ErrorGuide] = ErrorGuide()
    """How errors are told apart that Terraform passes on."""
