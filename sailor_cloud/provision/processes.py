"""Finds and ends the processes of a run by the tags in their environment.

The tag SAILOR_CLOUD_RUN is on everything that a run starts, SAILOR_CLOUD_NODE on everything on its local nodes. Reads
/proc, so it works only on Linux. A process that cleared its environment has no tag.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

RUN_TAG = "SAILOR_CLOUD_RUN"
NODE_TAG = "SAILOR_CLOUD_NODE"
_PROC = Path("/proc")
_POLL_S = 0.02
_KILLED_WITHIN_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """A living process; `start_ticks` distinguishes it from a later one with the same id."""

    pid: int
    parent: int
    start_ticks: int
    command: str
    run_id: str
    node: str
    home: str = ""


def of_run(run_id: str) -> tuple[Process, ...]:
    """Return every process with the run's tag."""
    return tuple(process for process in _all() if process.run_id == run_id)


def of_node(run_id: str, node: str) -> tuple[Process, ...]:
    return tuple(process for process in of_run(run_id) if process.node == node)


def on_nodes(run_id: str) -> tuple[Process, ...]:
    """Return the processes on the run's local nodes."""
    return tuple(process for process in of_run(run_id) if process.node)


def on_any_node() -> tuple[Process, ...]:
    """Return the processes on local nodes of all runs, also of other folders of runs."""
    return tuple(process for process in _all() if process.run_id and process.node)


def terraform_of(run_id: str) -> tuple[Process, ...]:
    """Return the Terraform processes of a run and their children, without the caller and its ancestors."""
    everything = {process.pid: process for process in _all()}
    own = {os.getpid()}
    pid = os.getppid()
    while pid in everything and pid not in own:
        own.add(pid)
        pid = everything[pid].parent
    return tuple(
        process
        for process in everything.values()
        if process.run_id == run_id and not process.node and process.pid not in own
    )


def descendants(root: int) -> tuple[Process, ...]:
    """Return all descendants of a process, tagged or not."""
    everything = list(_all())
    found: dict[int, Process] = {}
    frontier = {root}
    while frontier:
        below = [process for process in everything if process.parent in frontier and process.pid not in found]
        found.update((process.pid, process) for process in below)
        frontier = {process.pid for process in below}
    return tuple(found.values())


def end(find: Callable[[], Iterable[Process]], *, grace_s: float, limit_s: float = 10.0) -> tuple[Process, ...]:
    """End all processes that `find` returns: TERM, then KILL after the grace; return those that are left.

    Searches repeatedly, because a process may start another one while it is being ended.
    """
    begun = time.monotonic()
    signalled: set[tuple[int, int]] = set()
    while remaining := tuple(find()):
        waited = time.monotonic() - begun
        if waited > grace_s + _KILLED_WITHIN_S:
            return remaining
        for process in remaining:
            name = (process.pid, process.start_ticks)
            if waited > grace_s:
                send(process, signal.SIGKILL)
            elif name not in signalled:
                signalled.add(name)
                send(process, signal.SIGTERM)
        time.sleep(_POLL_S)
    return ()


def await_exit(find: Callable[[], Iterable[Process]], *, patience_s: float, grace_s: float) -> tuple[Process, ...]:
    """Wait for processes to exit; then interrupt the topmost once, then kill all; return those left.

    The wait comes first because the processes may have been interrupted already, and a second SIGINT makes Terraform
    drop everything.
    """
    begun = time.monotonic()
    warned = False
    while remaining := tuple(find()):
        waited = time.monotonic() - begun
        if waited > patience_s + grace_s + _KILLED_WITHIN_S:
            return remaining
        if waited > patience_s + grace_s:
            for process in remaining:
                send(process, signal.SIGKILL)
        elif waited > patience_s and not warned:
            warned = True
            inner = {process.pid for process in remaining}
            for process in remaining:
                if process.parent not in inner:
                    send(process, signal.SIGINT)
        time.sleep(_POLL_S)
    return ()


def send(process: Process, number: signal.Signals) -> None:
    """Signal a process unless it has ended or another process has its id by now."""
    now = read(process.pid)
    if now is not None and now.start_ticks == process.start_ticks:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            return


def read(pid: int) -> Process | None:
    """Return a living process; None if there is none, it is a zombie, or it belongs to another user."""
    folder = _PROC / str(pid)
    try:
        environment = _environment((folder / "environ").read_bytes())
        stat = (folder / "stat").read_text()
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return None
    # The second field is the name in brackets, which may itself contain brackets and spaces.
    state, parent, *rest = stat[stat.rindex(")") + 2 :].split()
    if state in "ZX":
        return None
    return Process(
        pid=pid,
        parent=int(parent),
        start_ticks=int(rest[17]),
        command=command,
        run_id=environment.get(RUN_TAG, ""),
        node=environment.get(NODE_TAG, ""),
        home=environment.get("HOME", ""),
    )


def variable(pid: int, name: str) -> str:
    """Return a variable of a process's environment; empty if it has none, or there is no such process."""
    try:
        return _environment((_PROC / str(pid) / "environ").read_bytes()).get(name, "")
    except OSError:
        return ""


def working_folder(pid: int) -> str:
    """Return the current path of a process's working folder; a deleted one's ends with ` (deleted)`."""
    return _link(f"{pid}/cwd")


def sees_our_files(pid: int) -> bool:
    """Return whether paths mean the same to a process as to us; in a container they may not."""
    return _link(f"{pid}/ns/mnt") == _link("self/ns/mnt") != ""


def _link(name: str) -> str:
    try:
        return os.readlink(_PROC / name)
    except OSError:
        return ""


def _all() -> Iterator[Process]:
    for entry in os.listdir(_PROC):
        if entry.isdigit() and (process := read(int(entry))) is not None:
            yield process


def _environment(raw: bytes) -> dict[str, str]:
    pairs = (part.partition("=") for part in raw.decode(errors="replace").split("\0"))
    return {name: value for name, _, value in pairs}
