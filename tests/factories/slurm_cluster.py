"""A real Slurm on this machine: a controller, and a slurmd for each of its nodes, all as root and without munge."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

REQUIRED = "SAILOR_CLOUD_TEST_SLURM"
_INSTALL = "apt-get install --yes slurm-wlm"
# Heterogeneous jobs are started by the backfill scheduler alone, which looks every 30 s unless told otherwise.
_CONF = """
ClusterName=lab
SlurmctldHost={host}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CryptoType=crypto/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
SchedulerType=sched/backfill
SlurmdTimeout=4
SlurmctldTimeout=10
KillWait=10
MinJobAge=300
ReturnToService=1
GresTypes=gpu
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
PrologFlags=NoHold
"""


@dataclass(slots=True)
class SlurmCluster:
    folder: Path
    nodes: dict[str, int]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def run(self, *command: str) -> str:
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout

    def lose(self, node: str) -> None:
        """Kill a node's slurmd and everything that it has started, as a machine does that loses its power."""
        daemon = self.daemons.pop(node)
        for pid in [*_started_by(node), daemon.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        daemon.wait()

    def start(self, name: str) -> None:
        """Start the controller, whose name is empty, or a node's slurmd."""
        of = ["slurmd", "-N", name] if name else ["slurmctld"]
        with (self.folder / "daemons.log").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [*of, "-D", "-f", str(self.conf)], stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def until(self, shown: str, nodes: int) -> None:
        """Wait until Slurm shows so many nodes in a state."""
        until = time.monotonic() + 120
        while True:
            command = ["sinfo", "--noheader", "--Node", "--format=%N %T "]
            found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
            if found.count(f" {shown} ") == nodes:
                return
            assert time.monotonic() < until, f"{found}\n{(self.folder / 'daemons.log').read_text()[-3000:]}"
            time.sleep(0.1)


def _started_by(node: str) -> Iterator[int]:
    """Yield what steps of a node have started, which has its name in its environment, and slurmstepd above that."""
    wanted, found = f"SLURMD_NODENAME={node}".encode(), set()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                if Path(f"/proc/{parent}/cmdline").read_bytes().startswith(b"slurmstepd"):
                    found.add(parent)
        except OSError:
            continue
    yield from found


def skip_without_slurm() -> None:
    """Skip a test where Slurm is not installed; CI installs it, and there it must not be missing."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch", "sinfo") if shutil.which(name) is None]
    if os.geteuid() != 0:
        missing.append("root")
    if not missing:
        return
    text = f"SKIPPED: no {', '.join(missing)}; '{_INSTALL}' as root installs it"
    if os.environ.get(REQUIRED):
        pytest.fail(text)
    pytest.skip(text)


@contextmanager
def slurm_cluster(folder: Path, groups: dict[str, tuple[int, str, int]], *, conf: str = "") -> Iterator[SlurmCluster]:
    """Run a Slurm cluster: by feature, how many nodes, the type of their GPUs (empty: none), and how many of those.

    The last value of a setting counts, so `conf` may replace some.
    """
    for name in ("state", "gpus"):
        (folder / name).mkdir(parents=True)
    host = socket.gethostname().split(".")[0]
    ports = _free_ports(1 + sum(count for count, _, _ in groups.values()))
    # Slurm's sockets lie in the spool folders, and the path of a socket has 108 bytes at most.
    spool = tempfile.mkdtemp(prefix="slurm-")
    lines = [_CONF.format(host=host, port=ports.pop(), folder=folder, spool=spool) + conf]
    gres, nodes = ["AutoDetect=off"], {}
    most = max((devices for _, _, devices in groups.values()), default=0)
    for number in range(most):
        # A device file is all that Slurm asks of a GPU; with a bare count it calls the node invalid.
        os.mknod(folder / "gpus" / f"gpu{number}", 0o666 | 0o020000, os.makedev(1, 3))
    for feature, (count, kind, devices) in groups.items():
        for index in range(1, count + 1):
            name = f"{feature}{index}"
            nodes[name] = ports.pop()
            has = f" Gres=gpu:{kind}:{devices}" if kind else ""
            lines.append(
                f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={nodes[name]} CPUs=1 RealMemory=64 "
                f"Feature={feature}{has}"
            )
            if kind:
                last = f"-{devices - 1}" if devices > 1 else ""
                files = f"{folder}/gpus/gpu[0{last}]" if last else f"{folder}/gpus/gpu0"
                gres.append(f"NodeName={name} Name=gpu Type={kind} File={files}")
    lines.append(f"PartitionName=all Nodes={','.join(nodes)} Default=YES MaxTime=60 State=UP OverSubscribe=NO")
    (folder / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "gres.conf").write_text("\n".join(gres) + "\n")
    cluster = SlurmCluster(folder=folder, nodes=nodes)
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(cluster.conf)
    try:
        for name in ("", *cluster.nodes):
            cluster.start(name)
        cluster.until("idle", len(nodes))
        yield cluster
    finally:
        for node in list(cluster.daemons):
            if node != "":
                cluster.lose(node)
        controller = cluster.daemons.pop("", None)
        if controller is not None:
            controller.kill()
            controller.wait()
        shutil.rmtree(spool, ignore_errors=True)
        if before is None:
            del os.environ["SLURM_CONF"]
        else:
            os.environ["SLURM_CONF"] = before


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports
