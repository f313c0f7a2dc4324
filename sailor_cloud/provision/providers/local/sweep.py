"""Finds the leftovers of a run on this machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC
from pathlib import Path

from sailor_cloud.provision import processes
from sailor_cloud.provision.live_resources import EXPIRES_FORM, FOLDER, LiveResource
from sailor_cloud.provision.providers.local.spec import SPEC_VARIABLE, VmSpec

REGION = "local"
PROCESS = "process"


def sweep_local(run_id: str, *, nodes_dir: Path | None = None) -> tuple[LiveResource, ...]:
    """Return the node folders, and the processes with the run's tag and a node's; empty if all are deleted."""
    running = [_running(process) for process in processes.on_nodes(run_id)]
    entries = sorted(nodes_dir.iterdir()) if nodes_dir is not None and nodes_dir.is_dir() else []
    folders = [_found(run_id, FOLDER, folder.name, folder.name, str(folder)) for folder in entries if folder.is_dir()]
    return (*running, *folders)


def sweep_without_folder(runs: Path) -> tuple[LiveResource, ...]:
    """Return the processes on nodes whose run had its folder in `runs` and has it no more.

    Nothing if `runs` does not exist: its disk may not be mounted.
    """
    if not runs.is_dir():
        return ()
    running = [process for process in processes.on_any_node() if processes.sees_our_files(process.pid)]
    # A node's disk is the home of its processes; only a command may have changed that.
    homes = {(process.run_id, Path(process.home).resolve()) for process in running if process.home}
    ours = {
        run_id for run_id, home in homes if runs.resolve() / run_id in home.parents and not (runs / run_id).exists()
    }
    ours -= {process.run_id for process in running if _has_disk(process)}
    return tuple(_running(process) for process in running if process.run_id in ours)


def _has_disk(process: processes.Process) -> bool:
    """Return whether a process works in its node's folder; that of a renamed run is elsewhere, but exists."""
    return Path(processes.working_folder(process.pid)).parts[-2:] == ("nodes", process.node)


def _running(process: processes.Process) -> LiveResource:
    found = _found(process.run_id, PROCESS, str(process.pid), process.node, process.command[:200])
    return replace(found, expires=_expires(process))


def _expires(process: processes.Process) -> str:
    """Return when a node ends by itself, from its specification, which only its own programs have."""
    try:
        expiry = VmSpec.from_json(processes.variable(process.pid, SPEC_VARIABLE)).expiry
    except (ValueError, TypeError):
        return ""
    return expiry.astimezone(UTC).strftime(EXPIRES_FORM)


def _found(run_id: str, kind: str, name: str, node: str, detail: str) -> LiveResource:
    return LiveResource(
        provider="local",
        region=REGION,
        type=kind,
        name=name,
        run_id=run_id,
        node=node,
        detail=detail,
    )
