"""What a command finds in its environment: what launchers read, and what only we can tell it."""

from __future__ import annotations

import importlib.util
import os
import sys
import venv
from pathlib import Path

from sailor_runtime.spec import CommandNode, CommandSpec


def library(home: Path) -> Path:
    """Return where Python finds what `setup` has installed on a node."""
    return home / "packages" / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def installing(home: Path) -> dict[str, str]:
    """Return variables with which packages are installed for this node alone, whoever owns Python.

    They go into a virtual environment that sees all that this interpreter has. There pip installs another version
    beside the one it finds, and elsewhere it would replace that: on this machine or a shared disk the owner's own.
    """
    packages, own = home / "packages", Path(sys.executable).parent
    if not (packages / "bin" / "pip").exists():
        brings_pip = importlib.util.find_spec("pip") is None
        venv.EnvBuilder(symlinks=True, with_pip=brings_pip).create(packages)
        seen = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
        sees = f"import site; list(map(site.addsitedir, {[path for path in seen if path != str(library(home))]}))\n"
        (library(home) / "outside.pth").write_text(sees)
        # Programs such as torchrun, which otherwise start the interpreter that they were installed with.
        for program in own.iterdir() if sys.prefix != sys.base_prefix else ():
            if (
                program.is_file()
                and not program.name.startswith("pip")
                and _first_line(program).startswith(f"#!{own}/")
            ):
                _run_here(packages, program.name, f'"{program}"')
        if not brings_pip:
            _run_here(packages, "pip3", "-m pip")
            _run_here(packages, "pip", "-m pip")
    return {
        "PATH": os.pathsep.join([str(packages / "bin"), str(own), os.environ.get("PATH", os.defpath)]),
        "VIRTUAL_ENV": str(packages),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def _first_line(program: Path) -> str:
    with program.open(errors="replace") as file:
        return file.readline(1000)


def _run_here(packages: Path, name: str, what: str) -> None:
    program = packages / "bin" / name
    program.write_text(f'#!/bin/sh\nexec "{packages}/bin/python" {what} "$@"\n')
    program.chmod(0o755)


def environment(spec: CommandSpec, node: CommandNode, home: Path, checkpoints: Path) -> dict[str, str]:
    """Return the variables of a command, and write the file with all nodes that some launchers read.

    The job's own go before those of the node, and the ones that the plan decides before the job's.
    """
    nodes = spec.working_nodes
    count, rank, processes = str(len(nodes)), str(nodes.index(node)), str(node.processes)
    address, port = spec.master_address, str(spec.master_port)
    known = filter(None, [_without_ours(os.environ.get("PYTHONPATH", ""))])
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
        # torchrun takes its defaults from these alone; without them every node would train by itself.
        "PET_NNODES": count,
        "PET_NODE_RANK": rank,
        "PET_NPROC_PER_NODE": processes,
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": port,
        # Every process gets a log of its own, and its lines come to us with its local rank in front.
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
    return {**os.environ, **paths, **given, **launcher, **ours}


def _without_ours(paths: str) -> str:
    """Leave the runtime's own folder out: a user's code has nothing to look for there."""
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(path for path in paths.split(os.pathsep) if path and path != own)
