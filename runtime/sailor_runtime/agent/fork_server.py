"""Ranks as forks of one process that has already imported torch, so that a generation starts without imports.

Importing torch and deepspeed takes seconds of processor time in every rank. If a node's devices are processors, one
fork server per node imports them once, and every rank of every generation is a fork of it. A process that has used CUDA
can't be forked, so ranks on other accelerators are separate processes.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol


class Process(Protocol):
    """The part of subprocess.Popen that the agent needs of a rank's process."""

    returncode: int | None

    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self) -> int: ...


class ForkServer:
    """The process from which ranks are forked; it dies with the agent, and its ranks with it."""

    def __init__(
        self, arguments: Sequence[str], *, log: Path, environ: Mapping[str, str], at_birth: Callable[[], None]
    ) -> None:
        self._socket, theirs = socket.socketpair()
        with log.open("ab") as output, theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "sailor_runtime.training.fork_server", str(theirs.fileno()), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=dict(environ),
                pass_fds=[theirs.fileno()],
                preexec_fn=at_birth,
            )
        self._socket.setblocking(False)
        self._unread = b""
        self._asked: list[ForkedRank] = []
        self._forked: dict[int, ForkedRank] = {}

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, request: Mapping[str, Any], instead: Callable[[], Process]) -> ForkedRank:
        """Request a rank; `instead` starts it another way if the server dies first."""
        rank = ForkedRank(self, instead)
        self._asked.append(rank)
        line = json.dumps(request).encode() + b"\n"
        try:
            self._socket.setblocking(True)
            self._socket.sendall(line)
            self._socket.setblocking(False)
        except OSError:
            # The server is dying; the next poll of the rank reports it.
            self._process.wait()
        return rank

    def poll(self, timeout_s: float = 0.0) -> None:
        """Read the server's answers, waiting up to `timeout_s` for them."""
        readable, _, _ = select.select([self._socket], [], [], timeout_s)
        if not readable:
            return
        try:
            data = self._socket.recv(65_536)
        except (BlockingIOError, ConnectionResetError):
            data = b""
        if not data:
            # The other end is open as long as the server lives.
            self._process.wait()
            for rank in self._forked.values():
                rank.returncode = -signal.SIGKILL if rank.returncode is None else rank.returncode
            return
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "forked" in message:
                rank = self._asked.pop(0)
                rank.pid = message["forked"]
                self._forked[message["forked"]] = rank
            else:
                self._forked.pop(message["exited"]).returncode = message["status"]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


class ForkedRank:
    """A rank that the server forks; the server reaps it and reports how it ended."""

    def __init__(self, server: ForkServer, instead: Callable[[], Process]) -> None:
        self.pid: int | None = None
        self.returncode: int | None = None
        self._fork_server = server
        self._instead = instead
        self._other: Process | None = None

    def poll(self) -> int | None:
        if self.returncode is None and self._other is None:
            self._fork_server.poll()
            if self.pid is None and not self._fork_server.alive:
                # A server that can't import torch needs no report: the rank will say what is wrong.
                self._other = self._instead()
        if self._other is not None:
            self.returncode = self._other.poll()
        return self.returncode

    def kill(self) -> None:
        if self._other is not None:
            self._other.kill()
        elif self.pid is not None:
            os.kill(self.pid, signal.SIGKILL)
        else:
            # Not forked yet: without the server it never will be.
            self._fork_server.end()

    def wait(self) -> int:
        """Return the exit status once there is one; a rank that is not forked yet never will be."""
        while self.returncode is None:
            if self._other is not None:
                self.returncode = self._other.wait()
            elif self.pid is None and not self._fork_server.alive:
                self.returncode = -signal.SIGKILL
            else:
                self._fork_server.poll(0.05)
        return self.returncode
