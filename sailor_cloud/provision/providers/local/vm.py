"""Starts, supervises and stops one local node; Terraform runs `start` and `stop`.

`supervise` is to the node what a cloud's host is to a VM: it adopts every process that was started on the node. It ends
all of them at the node's expiry or when the SSH server dies, without a request. Standard library only, because
Terraform waits for these programs.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from sailor_cloud.provision import processes
from sailor_cloud.provision.providers.local.spec import SPEC_VARIABLE, VmInfo, VmSpec

_START_LIMIT_S = 60.0
_GRACE_S = 2.0
_POLL_S = 0.03
# The longest interval between checks, so that a machine that slept still ends its nodes on time.
_LONGEST_SLEEP_S = 5.0
_PR_SET_CHILD_SUBREAPER = 36
# A separate login environment: a node must not depend on the user's variables.
_INHERITED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH")


def start(spec: VmSpec) -> int:
    """Start the node and wait until SSH answers; a running node is adopted."""
    if _answers(spec):
        return 0
    left = processes.end(lambda: processes.of_node(spec.run_id, spec.node), grace_s=_GRACE_S)
    if left:
        return _fail(f"node {spec.node}: processes {[process.pid for process in left]} of an earlier start do not end")
    spec.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    (spec.path / "tmp").mkdir(mode=0o700, exist_ok=True)
    spec.node_file.unlink(missing_ok=True)
    # Terraform waits until no process has its pipes open, so the node gets the log instead of them.
    with open(spec.log, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as log:
        supervisor = subprocess.Popen(
            [sys.executable, "-m", "sailor_cloud.provision.providers.local.vm", "supervise"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=spec.path,
            env=_environment(spec),
            start_new_session=True,
            umask=0o077,
        )
    limit = time.monotonic() + _START_LIMIT_S
    while time.monotonic() < limit:
        if supervisor.poll() is not None:
            return _fail(f"node {spec.node} ended with status {supervisor.returncode}; see {spec.log}")
        if _answers(spec):
            return 0
        time.sleep(_POLL_S)
    supervisor.terminate()
    return _fail(f"node {spec.node} does not answer within {_START_LIMIT_S:.0f} s; see {spec.log}")


def stop(spec: VmSpec) -> int:
    """End the node; one that has ended already is no error."""
    problem = remove(spec.run_id, spec.node, spec.path)
    return _fail(problem) if problem else 0


def remove(run_id: str, node: str, folder: Path | None) -> str:
    """End every process of a node and delete its folder, if it has one; return what is left, or an empty string."""
    left = processes.end(lambda: processes.of_node(run_id, node), grace_s=_GRACE_S)
    if left:
        return f"node {node}: processes {[process.pid for process in left]} do not end"
    if folder is None:
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    return f"node {node}: {folder} can't be deleted" if folder.exists() else ""


def supervise(spec: VmSpec) -> int:
    """Run the SSH server and keep the node's processes until the expiry, a TERM or the end of the server."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wake = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    signal.pthread_sigmask(signal.SIG_BLOCK, wake)
    server = subprocess.Popen([sys.executable, "-m", "sailor_cloud.provision.providers.local.server"])
    reason = "server ended"
    while not _reaped(server.pid):
        left_s = (spec.expiry - datetime.now(UTC)).total_seconds()
        if left_s <= 0:
            reason = "expired"
            break
        caught = signal.sigtimedwait(wake, min(left_s, _LONGEST_SLEEP_S))
        if caught is not None and caught.si_signo != signal.SIGCHLD:
            reason = f"signal {caught.si_signo}"
            break
    print(f"{datetime.now(UTC).isoformat()} node {spec.node} ends: {reason}", file=sys.stderr, flush=True)  # noqa: T201
    end_everything(spec, except_pid=os.getpid())
    return 0


def end_everything(spec: VmSpec, *, except_pid: int) -> None:
    """End all processes of the node, tagged or descendants, except the caller."""

    def found() -> Sequence[processes.Process]:
        _reaped(0)
        everything = {*processes.of_node(spec.run_id, spec.node), *processes.descendants(except_pid)}
        return [process for process in everything if process.pid != except_pid]

    processes.end(found, grace_s=_GRACE_S)


def _reaped(pid: int) -> bool:
    """Collect ended children, adopted ones too; return whether this one is among them."""
    seen = False
    try:
        while (ended := os.waitpid(-1, os.WNOHANG)[0]) != 0:
            seen = seen or ended == pid
    except ChildProcessError:
        return True
    return seen


def _environment(spec: VmSpec) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    own = {"HOME": spec.folder, "TMPDIR": f"{spec.folder}/tmp", SPEC_VARIABLE: spec.to_json()}
    # The supervisor must find this package even if it is not installed but only on the path.
    paths = {"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {}
    return {**kept, **paths, **own, processes.RUN_TAG: spec.run_id, processes.NODE_TAG: spec.node}


def _answers(spec: VmSpec) -> bool:
    info = VmInfo.read(spec.path)
    if info is None or info.run_id != spec.run_id or info.node != spec.node:
        return False
    alive = processes.read(info.pid)
    if alive is None or (alive.run_id, alive.node) != (spec.run_id, spec.node):
        return False
    try:
        with socket.create_connection((info.address, info.port), timeout=5.0) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def _fail(message: str) -> int:
    print(message, file=sys.stderr)  # noqa: T201 - Terraform shows what this program prints
    return 1


def main() -> int:
    actions = {"start": start, "stop": stop, "supervise": supervise}
    return actions[sys.argv[1]](VmSpec.from_environment())


if __name__ == "__main__":
    sys.exit(main())
