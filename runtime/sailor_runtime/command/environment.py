"""The environment of a command: the variables of launchers, and our own."""

from __future__ import annotations

import os
from pathlib import Path

from sailor_runtime.packages import installing, library
from sailor_runtime.spec import NCCL_SOCKETS, CommandNode, CommandSpec


def environment(spec: CommandSpec, node: CommandNode, home: Path, checkpoints: Path) -> dict[str, str]:
    """Return the variables of a command, and write the file with all nodes that some launchers read.

    The job's own override those of the node; the plan's override the job's.
    """
    nodes = spec.working_nodes
    count, rank, processes = str(len(nodes)), str(nodes.index(node)), str(node.processes)
    address, port = spec.master_address, str(spec.master_port)
    known = filter(None, [_without_runtime(os.environ.get("PYTHONPATH", ""))])
    paths = {
        **installing(home),
        "PYTHONPATH": os.pathsep.join([str(library(home)), *known]),
        "PYTHONUNBUFFERED": "1",
    }
    launcher = {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
        "NNODES": count,
        "NODE_RANK": rank,
        "NPROC_PER_NODE": processes,
        "WORLD_SIZE": str(spec.world_size),
        # torchrun takes its defaults only from these; without them every node would train by itself.
        "PET_NNODES": count,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": processes,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        # Every process gets its own log, and its output reaches us with a prefix of its local rank.
        "PET_TEE": "3",
        "PET_LOG_DIR": str(home / "launcher-logs"),
        "PET_SHUTDOWN_TIMEOUT": str(max(1, int(spec.grace_s) - 2)),
    }
    hosts = home / "hostfile"
    hosts.write_text("".join(f"{other.address} slots={other.processes}\n" for other in nodes))
    ours = {
        "SAILOR_HOSTFILE": str(hosts),
        "SAILOR_PLAN": node.plan,
        "SAILOR_CHECKPOINTS": str(checkpoints),
        "SAILOR_GRACE_S": f"{spec.grace_s:g}",
    }
    if spec.budget_usd is not None:
        ours["SAILOR_BUDGET_USD"] = f"{spec.budget_usd:g}"
    given = {variable.name: variable.value for variable in spec.environment if variable.value is not None}
    network = NCCL_SOCKETS if spec.sockets else {}
    return {**os.environ, **network, **paths, **given, **launcher, **ours}


def _without_runtime(paths: str) -> str:
    """Leave the runtime's own folder out: a user's code must not import from it."""
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(path for path in paths.split(os.pathsep) if path and path != own)
