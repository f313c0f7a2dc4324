"""Where a run's controller works: its folder may have been copied, and a lock holds for one folder alone."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from sailor_cloud.run.folder import LockHolder, RunFolder, RunLockedError
from sailor_cloud.run.journal import read

_MACHINE_ID = Path("/etc/machine-id")


def workplace(folder: RunFolder) -> dict[str, str]:
    """Return this machine and the run's folder, for the journal of a controller."""
    return {"machine": _machine(), "machine_name": socket.gethostname(), "works_in": str(folder.path.absolute())}


def other_machine(folder: RunFolder) -> str:
    """Return the name of another machine on which the run's newest controller worked; empty if it was this one."""
    known = _newest(folder)
    machine = known.get("machine", "")
    return known.get("machine_name", machine) if machine and machine != _machine() else ""


def holder(folder: RunFolder) -> LockHolder | None:
    """Return the process that works on the run, in this folder or in the one on this machine that it is a copy of."""
    own, original = folder.lock_holder(), _original(folder)
    return own if own is not None or original is None else original.lock_holder()


def refuse_copy(folder: RunFolder) -> None:
    """Raise RunLockedError if a controller works on the run in another folder on this machine."""
    original = _original(folder)
    if original is not None and original.lock_holder() is not None:
        copied = f"it works in {original.path}, and {folder.path} is a copy of that folder"
        raise RunLockedError(f"{original.locked_message()}; {copied}")


def warning(folder: RunFolder) -> str:
    """Return what to know before a run of another machine is ended or taken over; empty for one of this machine."""
    name = other_machine(folder)
    if not name:
        return ""
    return (
        f"run {folder.run_id} was begun, or taken over, on {name}; if its controller still works there, end it first: "
        "it would replace nodes that are removed from here"
    )


def _original(folder: RunFolder) -> RunFolder | None:
    """Return the folder on this machine in which the newest controller worked; None if it is this one, or gone."""
    known = _newest(folder)
    if known.get("machine") != _machine() or "works_in" not in known:
        return None
    place = Path(known["works_in"])
    with contextlib.suppress(OSError, ValueError):
        if place.is_dir() and not os.path.samefile(place, folder.path):
            return RunFolder(run_id=folder.run_id, path=place)
    return None


def _newest(folder: RunFolder) -> dict[str, str]:
    names = ("machine", "machine_name", "works_in")
    found = [entry.data for entry in read(folder.journal_file) if "works_in" in entry.data]
    return {name: value for name in names if isinstance(value := found[-1].get(name), str)} if found else {}


def _machine() -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if known := _MACHINE_ID.read_text().strip():
            return known
    return socket.gethostname()
