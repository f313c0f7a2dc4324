"""The data that comes with the program, read once by a process of tests instead of by every command and plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar
from unittest import mock

from sailor_cloud import catalog, network, resources
from sailor_cloud.catalog import Catalog
from sailor_cloud.catalog.account import account_quotas
from sailor_cloud.catalog.providers import own_data
from sailor_cloud.network import Network

T = TypeVar("T")
# The shipped folder, and those of providers that a test adds and of the inventory that it has read.
Folders = tuple[Path, ...]


@contextlib.contextmanager
def read_once() -> Iterator[None]:
    """Let `catalog.load` and `network.load` hand out what they have read, unless a user's data would be in it."""
    catalogs: dict[Folders, Catalog] = {}
    networks: dict[Folders, Network] = {}
    with (
        mock.patch.object(catalog, "load", _remembering(catalog.load, catalogs)),
        mock.patch.object(network, "load", _remembering(network.load, networks)),
    ):
        yield


def _remembering(load: Callable[..., T], known: dict[Folders, T]) -> Callable[..., T]:
    def loaded(root: Path | None = None, **folders: Path | None) -> T:
        if root is not None or any(folders.values()) or not _shipped_alone():
            return load(root, **folders)
        shipped = (resources.data_root(), *own_data("pricing"), *own_data("bandwidth_profiles"))
        if shipped not in known:
            known[shipped] = load()
        return known[shipped]

    return loaded


def _shipped_alone() -> bool:
    """Tell whether this user has neither folders of data nor refreshed prices nor quotas."""
    own = resources.folders() != resources.DataFolders() or resources.refreshed_prices() is not None
    return not own and not account_quotas.own_file().is_file()
