"""Connects to nodes without a public address, through a program of their cloud with SSH on stdin and stdout.

The program is designed as the ProxyCommand of an SSH client.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from sailor_cloud.errors import Problem, RequestError
from sailor_cloud.model.document import PlanDocument
from sailor_cloud.model.job import NetworkAccess
from sailor_cloud.model.offer import Provider
from sailor_cloud.provision import providers
from sailor_cloud.provision.access.instances import Instance
from sailor_cloud.run.folder import RunFolder

_GRACE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tunnel:
    """A program whose stdin and stdout are a connection to a node's SSH; its other output goes to `log`."""

    program: tuple[str, ...]
    log: Path

    def open(self) -> OpenTunnel:
        """Start the program in its own session: the terminal's Ctrl-C is only for the controller."""
        ours, its = socket.socketpair()
        with its, open(self.log, "ab", opener=_private) as log:
            process = subprocess.Popen(
                self.program, stdin=its.fileno(), stdout=its.fileno(), stderr=log, start_new_session=True
            )
        return OpenTunnel(socket=ours, process=process)

    def last_output(self) -> str:
        """Return the last line of the log; empty if there is none."""
        try:
            lines = self.log.read_text(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTunnel:
    """A running tunnel program, and our end of its connection."""

    socket: socket.socket
    process: subprocess.Popen[bytes]

    def close(self) -> None:
        """End the program and its children, and wait: after two seconds they are killed."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def is_private(document: PlanDocument) -> bool:
    """Whether a job's nodes on clouds have no public address."""
    return document.job.cloud.network is NetworkAccess.PRIVATE


def tunnel_to(folder: RunFolder, instance: Instance, *, port: int) -> Tunnel:
    """Return the tunnel to an instance's port, without starting it."""
    program = tuple(providers.of(instance.provider).tunnel(instance, port))
    return Tunnel(program=program, log=folder.logs_dir / f"tunnel-{instance.node}.log")


def refuse_without_programs(document: PlanDocument, clouds: Iterable[Provider]) -> None:
    """Raise RequestError if nodes would be unreachable for lack of a program on this machine."""
    if not is_private(document):
        return
    problems = [
        Problem(
            path="cloud.network",
            message=f"is private, and nodes on {provider} are then reached through {name}, which is not on PATH",
            hint=f"install it ({source}), or leave cloud.network out, which opens port 22 to your own address alone",
        )
        for provider in sorted(set(clouds))
        for name, source in providers.of(provider).tunnel_programs.items()
        if shutil.which(name) is None
    ]
    if problems:
        raise RequestError(problems)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
