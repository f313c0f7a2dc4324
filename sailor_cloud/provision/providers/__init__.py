"""How to buy, reach and remove each provider's machines: one folder each, found by name, loaded on demand."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from sailor_cloud.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sailor_cloud.provision.providers.interface import MachineProvider


def of(provider: str) -> MachineProvider:
    """Return a provider's half of provisioning. Raises ImportError if its package lacks the module."""
    # Imported late: Terraform waits for programs in this package, which need neither.
    from sailor_cloud.model.provider import Provider, module_of

    return _loaded(module_of(Provider(provider), "provision"))


def all_providers() -> Iterator[tuple[str, MachineProvider]]:
    """Yield all providers with their names."""
    from sailor_cloud.model.provider import names

    return ((name, of(name)) for name in names())


def missing_packages(provider: str) -> list[MissingPackageError]:
    """Return an error for each module that requests to a provider import and that is not installed."""
    return [MissingPackageError(module, extra) for module, extra in of(provider).packages.items() if _lacks(module)]


def _lacks(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:
        # A package above the module.
        return True


def on_this_machine(provider: str) -> bool:
    """Whether a provider's nodes are processes of this machine."""
    from sailor_cloud.catalog.providers import of as sold_by
    from sailor_cloud.model.provider import Provider

    return sold_by(Provider(provider)).on_this_machine


def is_cloud(provider: str) -> bool:
    """Whether a provider's nodes are bought: neither of this machine nor of a scheduler."""
    return not on_this_machine(provider) and of(provider).scheduler is None


@cache
def _loaded(module: str) -> MachineProvider:
    found: MachineProvider = import_module(module).PROVIDER
    return found
