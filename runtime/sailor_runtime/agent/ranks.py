"""The rank processes of one generation on this node."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sailor_runtime.agent.fork_server import ForkServer, Process
from sailor_runtime.command.tree import END_NOW, adopt_orphans, end_descendants
from sailor_runtime.spec import CommandSpec, RunSpec
from sailor_runtime.stand_in import runs_on_cpu

TRAINING = "sailor_runtime.training"
COMMAND = "sailor_runtime.command"
# A supervisor ends its command within this time after the request.
_SUPERVISOR_S = 20.0
# The kernel frees the memory of a killed process within seconds.
_KILLED_S = 30.0
_LOOK_S = 0.01
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_TAIL_BYTES = 4000
# Loaded before any fork, since few calls are safe between fork and exec.
_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class Rank:
    """One rank process, its files, and its output."""

    number: int
    process: Process
    events: Path
    log: Path
    offset: int = 0
    phase: str = "starting"
    ended: dict[str, Any] | None = None
    last_sign: float = field(default_factory=time.monotonic)
    # Whether it supervises a command: on END_NOW it ends the command's processes before itself.
    supervises: bool = False

    def new_events(self) -> list[dict[str, Any]]:
        """Return events since the last call; each is a sign of life."""
        try:
            with self.events.open("rb") as file:
                file.seek(self.offset)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        if not whole:
            return []
        self.offset += len(whole)
        self.last_sign = time.monotonic()
        events = []
        for line in whole.splitlines():
            # A temporarily full disk leaves half a line, which must not end the agent.
            with contextlib.suppress(ValueError):
                events.append(json.loads(line))
        return events

    def tail(self) -> str:
        """Return the end of the rank's log."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                return file.read().decode(errors="replace")
        except FileNotFoundError:
            return ""


class Starter:
    """Starts ranks on one node: as forks of its fork server if possible, else as separate processes."""

    def __init__(self, home: Path, module: str) -> None:
        self._home = home
        self._module = module
        self._fork_server: ForkServer | None = None

    def start(self, spec: RunSpec | CommandSpec, spec_path: Path, node: str, number: int, control: Path) -> Rank:
        """Start one rank, or a command's supervisor; it dies with the agent."""
        stem = f"g{spec.generation}-rank{number}"
        events, log = self._home / "events" / f"{stem}.jsonl", self._home / "logs" / f"{stem}.log"
        for path in (events, log):
            path.parent.mkdir(parents=True, exist_ok=True)
        events.unlink(missing_ok=True)
        arguments = ["--spec", str(spec_path), "--rank", str(number), "--events", str(events)]
        arguments += ["--control", str(control), "--home", str(self._home)]

        supervises = isinstance(spec, CommandSpec)
        if supervises:
            adopt_orphans()
            arguments += ["--node", node]

        def as_process() -> Process:
            with log.open("ab") as output:
                return subprocess.Popen(
                    [sys.executable, "-m", COMMAND if supervises else self._module, *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=self._home,
                    env=_environment(),
                    preexec_fn=_end_with_parent if supervises else _die_with_parent,
                )

        process: Process
        server = None if isinstance(spec, CommandSpec) else self._fork_server_for(spec, spec_path, node, number)
        if server is None:
            process = as_process()
        else:
            request = {"argv": arguments, "log": str(log), "cwd": str(self._home), "env": _environment()}
            process = server.fork(request, as_process)
        return Rank(number=number, process=process, events=events, log=log, supervises=supervises)

    def _fork_server_for(self, spec: RunSpec, spec_path: Path, node: str, number: int) -> ForkServer | None:
        [accelerator] = [other.accelerator for other in spec.nodes if other.id == node]
        if self._module != TRAINING or not runs_on_cpu(accelerator):
            return None
        if self._fork_server is None or not self._fork_server.alive:
            self._fork_server = ForkServer(
                [str(spec_path), str(number), str(self._home)],
                log=self._home / "logs" / "fork-server.log",
                environ=_environment(),
                at_birth=_die_with_parent,
            )
        return self._fork_server


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": _python_path(), "PYTHONUNBUFFERED": "1"}


def _python_path() -> str:
    """Return the module path, starting with the folder from which the agent itself was loaded."""
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join([own, *filter(None, [os.environ.get("PYTHONPATH")])])


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, END_NOW)


def kill(ranks: list[Rank]) -> list[Rank]:
    """End ranks, which leave other signals to their agent, and their children; return those that can't be ended.

    A process whose call to a driver never returns ignores even SIGKILL.
    """
    for rank in ranks:
        if rank.process.poll() is None:
            rank.process.send_signal(END_NOW) if rank.supervises else rank.process.kill()
    until = time.monotonic() + _KILLED_S
    left = []
    for rank in ranks:
        if rank.supervises:
            if not _ended(rank, time.monotonic() + _SUPERVISOR_S):
                rank.process.kill()
                until = time.monotonic() + _KILLED_S
            # Processes of a killed supervisor are now children of the agent.
            end_descendants(os.getpid())
        if not _ended(rank, until):
            left.append(rank)
    return left


def _ended(rank: Rank, until: float) -> bool:
    """Wait for a rank's end until a time; return whether it has ended."""
    while rank.process.poll() is None:
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_S)
    return True
