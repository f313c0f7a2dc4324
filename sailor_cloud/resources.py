"""Finds the data folders, in a checkout and in an installed wheel, and the folder of runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.errors import RequestError

_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class DataFolders:
    """Folders of the user whose files take precedence over the shipped ones: --pricing, --network and --profiles."""

    pricing: Path | None = None
    network: Path | None = None
    profiles: Path | None = None


_NONE = DataFolders()
_FOLDERS: ContextVar[DataFolders] = ContextVar("folders", default=_NONE)


def folders() -> DataFolders:
    """Return the folders in effect, for readers without explicit ones."""
    return _FOLDERS.get()


def own_folder(name: str, given: Path | str | None) -> Path | None:
    """Return a folder of the user as a path. Raises RequestError with its name if there is no such folder."""
    if given is None:
        return None
    if not isinstance(given, str | os.PathLike):
        raise RequestError(f"{name} is the path of a folder, not {type(given).__name__}")
    if not Path(given).is_dir():
        raise RequestError(f"{name}: {given} is not a folder")
    return Path(given)


@contextmanager
def data_folders(
    *, pricing: Path | str | None = None, network: Path | str | None = None, profiles: Path | str | None = None
) -> Iterator[None]:
    """Set these folders for the block; one that is not given stays unchanged. Raises RequestError for a missing one."""
    outer = folders()
    token = _FOLDERS.set(
        DataFolders(
            pricing=own_folder("pricing", pricing) or outer.pricing,
            network=own_folder("network", network) or outer.network,
            profiles=own_folder("profiles", profiles) or outer.profiles,
        )
    )
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def data_root() -> Path:
    """Return the folder with `pricing`, `bandwidth_profiles`, `compute_profiles` and `terraform`."""
    installed = _PACKAGE / "_data"
    return installed if installed.is_dir() else _PACKAGE.parent


def runtime_root() -> Path:
    """Return the folder with the `sailor_runtime` package, without importing it."""
    checkout = _PACKAGE.parent / "runtime"
    return checkout if (checkout / "sailor_runtime").is_dir() else _PACKAGE.parent


def home() -> Path:
    """Return the folder of this user's runs: `$SAILOR_CLOUD_HOME`, else `~/.local/state/sailor-cloud`.

    It need not exist. The path is absolute: Terraform and nodes work in other folders. Raises RequestError if it is not
    a folder, or unreadable.
    """
    chosen = os.environ.get("SAILOR_CLOUD_HOME")
    folder = (Path(chosen).expanduser() if chosen else Path.home() / ".local" / "state" / "sailor-cloud").absolute()
    try:
        os.scandir(folder).close()
    except FileNotFoundError:
        return folder
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def writable_home() -> Path:
    """Create the folder of this user's runs and return it. Raises RequestError if it is not writable."""
    folder = home()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error, "be created") from error
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise _unusable(folder, error, "hold new files") from error
    return folder


def _unusable(folder: Path, error: OSError, use: str = "be used") -> RequestError:
    what = "set SAILOR_CLOUD_HOME to a folder that you can write"
    return RequestError(f"the folder of runs can't {use}: {folder}: {error.strerror}; {what}")


def refreshed_prices() -> Path | None:
    """Return the folder of this user's newest complete price refresh, None before the first; names sort by time."""
    folder = home() / "pricing"
    if not folder.is_dir():
        return None
    return max((path for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")), default=None)
