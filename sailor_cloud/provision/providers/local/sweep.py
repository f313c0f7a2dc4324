"""Finds the leftovers of a run on this machine."""

from __future__ import annotations

from pathlib import Path

from sailor_cloud.provision import processes
from sailor_cloud.provision.live_resources import FOLDER, LiveResource

REGION = "local"
PROCESS = "process"


def sweep_local(run_id: str, *, nodes_dir: Path | None = None) -> tuple[LiveResource, ...]:
    """Return the node folders, and the processes with the run's tag and a node's; empty if all are deleted."""
    running = [_running(process) for process in processes.on_nodes(run_id)]
    entries = sorted(nodes_dir.iterdir()) if nodes_dir is not None and nodes_dir.is_dir() else []
    folders = [_found(run_id, FOLDER, folder.name, folder.name, str(folder)) for folder in entries if folder.is_dir()]
    return (*running, *folders)


def sweep_without_folder(runs: Path) -> tuple[LiveResource, ...]:
    """Return the processes on nodes whose run had its folder in `runs` and has it no more."""
    running = processes.on_any_node()
    # A node's disk is the home of its processes; only a command may have changed that.
    homes = {(process.run_id, Path(process.home).resolve()) for process in running if process.home}
    ours = {
        run_id for run_id, home in homes if runs.resolve() / run_id in home.parents and not (runs / run_id).exists()
    }
    return tuple(_running(process) for process in running if process.run_id in ours)


def _running(process: processes.Process) -> LiveResource:
    return _found(process.run_id, PROCESS, str(process.pid), process.node, process.command[:200])


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
