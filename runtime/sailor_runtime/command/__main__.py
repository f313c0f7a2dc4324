"""`python -m sailor_runtime.command`: runs a user's command on one node, and leaves no process of it behind.

The agent starts it instead of ranks. Like a rank, it writes events to a file and reads a control file. SIGTERM is a
request to stop, like that of the control file. `END_NOW`, which it also gets when the agent dies, immediately ends the
command and all its processes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from sailor_runtime.command import tree
from sailor_runtime.command.checkpoints import Checkpoints, StoreError, open_store, step_of
from sailor_runtime.command.environment import environment
from sailor_runtime.command.output import Output
from sailor_runtime.command.steps import ReportedSteps
from sailor_runtime.object_store import leave
from sailor_runtime.spec import CommandSpec, read_spec

_POLL_S = 0.1
_LOOK_S = 0.5
_MOST_READS = 64
# A command has failed if it has started too few processes by then, or reports a step before it has enough.
_PROCESSES_BY_S = 300.0
# Nodes other than the first may write and save nothing, so their running processes count as a sign of life, reported at
# this interval.
_SIGN_S = 60.0


# A loss scaler may skip a step or two; weights that are not numbers stay so.
_MOST_NAN_LINES = 5


class FailedError(Exception):
    """The command or its setup can't continue; `details` go into the event."""

    def __init__(self, what: str, **details: Any) -> None:
        self.what, self.details = what, details
        super().__init__(what)


class EndedError(Exception):
    """END_NOW was received."""


class Supervisor:
    """One command from its setup to its end."""

    def __init__(self, spec: CommandSpec, node: str, home: Path, events: Path, control: Path) -> None:
        self._spec, self._home, self._control = spec, home, control
        [self._node] = [other for other in spec.nodes if other.id == node]
        self._events = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._code = home / spec.code if spec.code else home / "work"
        self._code.mkdir(parents=True, exist_ok=True)
        number = spec.working_nodes.index(self._node)
        attempt = f"{spec.run}/{spec.generation}"
        self._checkpoints = Checkpoints(home / "checkpoints", open_store(spec.checkpoint.directory), number, attempt)
        self._environment = environment(spec, self._node, home, self._checkpoints.folder)
        logs = home / "logs"
        self._output = Output(
            lambda rank: logs / f"g{spec.generation}-rank{rank}.log",
            self._node.first_rank,
            self._node.processes,
            leads=number == 0,
        )
        self._stop_requested_at: float | None = None
        self._terminated = False
        self._ran_s = 0.0
        self._steps = ReportedSteps()
        self._ranks: set[int] = set()
        self._most_processes = 0
        self._enough = False
        self._signs = (0, 0.0, 0)
        self._leads = number == 0
        self._copying: threading.Thread | None = None
        self._copy_problem = ""

    def terminate(self, signum: int, frame: object) -> None:
        """Handle SIGTERM. The command may get it too, and must not count as finished if it then ends by itself."""
        self._terminated = True

    def run(self) -> int:
        """Return the exit code: 0 if the command ended well or on request."""
        try:
            wanted = [variable.name for variable in self._spec.environment if variable.value is None]
            if missing := [name for name in wanted if name not in os.environ]:
                tail = f"the job takes {', '.join(missing)} from the node's environment, where it is not set"
                raise FailedError("environment", tail=tail)
            self._report("progress", phase="bringing checkpoints")
            found = self._checkpoints.restore()
            self._setup()
            self._report("training", phase="train", checkpoint=found[-1] if found else None)
            status = self._supervised(self._spec.command)
            self._check_end(status)
        except FailedError as failure:
            left = tree.end_descendants(os.getpid())
            self._final_copy(clean=False)
            return self._ended("failed", what=failure.what, left=left, **failure.details)
        except (StoreError, OSError) as error:
            tree.end_descendants(os.getpid())
            return self._ended("failed", what="what runs the command", tail=str(error))
        left = tree.end_descendants(os.getpid())
        if left and self._stop_requested_at is None:
            self._report("left_behind", processes=left)
        self._final_copy(clean=status == 0)
        return self._ended("finished" if self._stop_requested_at is None else "requested")

    def _ended(self, reason: str, **failed: Any) -> int:
        """Report how the command ended; if some of its processes can't be ended, nothing else may start here."""
        if rest := tree.descendants(os.getpid()):
            numbers = ", ".join(map(str, rest))
            tail = f"its processes {numbers} can't be ended, not even with sudo -n kill; start them without sudo"
            reason, failed = "failed", {**failed, "what": "command", "final": True, "tail": tail}
        self._report("ended", reason=reason, **failed, **({"ran_s": self._ran_s} if failed else {}))
        return 1 if failed else 0

    def _setup(self) -> None:
        """Run `setup` once for these files on this node."""
        done = self._home / "setup.done"
        wanted = json.dumps([self._spec.setup, self._spec.code])
        if self._spec.setup is None or (done.exists() and done.read_text() == wanted):
            return
        self._report("progress", phase="setup")
        status = self._supervised(self._spec.setup, setup=True)
        left = tree.end_descendants(os.getpid())
        if self._stop_requested_at is not None:
            return
        if status != 0:
            raise FailedError("setup", phase="setup", tail=self._output.tail, left_behind=left, **_exit_fields(status))
        done.write_text(wanted)

    def _supervised(self, command: str, *, setup: bool = False) -> int:
        """Run a shell command to its end; return its exit code, negative for a signal."""
        self._stop_requested_here()
        if self._stop_requested_at is not None:
            return 0
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        process = subprocess.Popen(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=write_end,
            stderr=subprocess.STDOUT,
            cwd=self._code,
            env=self._environment,
            start_new_session=True,
        )
        os.close(write_end)
        begun, looked, writing = time.monotonic(), 0.0, True
        status: int | None = None
        # After a stop request its children may still save after it has ended itself, as bash does immediately.
        while status is None or (self._stop_requested_at is not None and tree.descendants(os.getpid())):
            select.select([read_end] if writing else [], [], [], _POLL_S)
            # At the end all writers have closed the pipe, and only the command itself is waited for.
            writing = writing and self._drain(read_end)
            ended = tree.collect()
            over = process.pid in ended
            if over:
                status = os.waitstatus_to_exitcode(ended[process.pid])
            now = time.monotonic()
            self._ran_s = now - begun
            if now - looked >= _LOOK_S or over:
                looked = now
                self._look(setup=setup, ended=status is not None)
            self._stop_requested_here(process.pid)
            if self._stop_requested_at is not None and time.time() > self._stop_requested_at + self._spec.grace_s:
                tree.end_descendants(os.getpid())
                status = -signal.SIGKILL if status is None else status
                break
        process.returncode = status
        # Processes that the command left running keep the pipe open, so only its present content is read.
        self._drain(read_end)
        os.close(read_end)
        for event in self._output.end():
            self._report(**event)
        return status

    def _drain(self, pipe: int) -> bool:
        """Read the present output, with a limit for commands that never pause; False at the output's end."""
        for _ in range(_MOST_READS):
            try:
                data = os.read(pipe, 1 << 16)
            except BlockingIOError:
                return True
            if not data:
                return False
            for event in self._output.take(data):
                self._steps.add(event["step"], time.time())
                if event.pop("first", False):
                    self._check_processes()
                self._report(**event)
            if self._output.nan_lines >= _MOST_NAN_LINES:
                raise FailedError(
                    "command",
                    final=True,
                    tail=f"the last {self._output.nan_lines} losses that it has reported, up to step "
                    f"{self._steps.newest}, are no numbers; a checkpoint saved since then may hold such weights",
                )
        return True

    def _look(self, *, setup: bool, ended: bool) -> None:
        below = tree.descendants(os.getpid())
        if not setup and not ended:
            self._count(below)
            if self._ran_s >= _PROCESSES_BY_S:
                self._check_processes()
            self._copy(tree.written_files(below))
        newest = max(_changes(self._checkpoints.folder), default=0.0)
        often_s = min(_SIGN_S, self._spec.stall_s / 3)
        alive = int(time.monotonic() / often_s) if below and not self._leads else 0
        signs = (self._output.lines, newest, alive)
        if signs != self._signs:
            self._signs = signs
            self._report("progress")

    def _count(self, below: list[int]) -> None:
        """Count the processes of the training, by the variables that launchers set."""
        if self._enough:
            return
        self._most_processes = max(self._most_processes, len(below))
        for pid in below:
            found = tree.variables(pid)
            local, world = found.get("LOCAL_RANK", ""), found.get("WORLD_SIZE", "")
            if not local.isdigit():
                continue
            self._ranks.add(int(local))
            planned = self._spec.world_size
            if "RANK" in found and world.isdigit() and int(world) != planned:
                raise FailedError(
                    "command",
                    final=True,
                    tail=f"it has started {world} processes in total, and {planned} are planned: give its launcher "
                    f"--nnodes $NNODES and --nproc-per-node $NPROC_PER_NODE (or what it calls them), or start it with "
                    "torchrun, which takes them from the environment",
                )
        # Lightning starts all processes except the first, which is the command itself.
        ranks = len(self._ranks) + (bool(self._ranks) and 0 not in self._ranks)
        self._enough = ranks >= self._node.processes

    def _check_processes(self, *, over: bool = False) -> None:
        """Raise FailedError if the command has certainly started fewer processes than planned."""
        if self._enough:
            return
        self._count(tree.descendants(os.getpid()))
        planned, seen = self._node.processes, len(self._ranks) or max(1, self._most_processes)
        how = "start it with torchrun or another launcher; if one process uses all devices of a node, say "
        how += "processes_per_node: 1"
        if not self._enough and seen < planned:
            what = f"it has started {seen} of {planned} processes on node {self._node.id}"
            raise FailedError("command", final=True, tail=f"{what}: {how}")
        nodes = self._spec.working_nodes
        asked = self._spec.meets_at_port and len(nodes) > 1 and self._node is nodes[0] and not self._ranks
        if asked and not over and not tree.is_listening(self._spec.master_port):
            what = f"nothing listens on MASTER_PORT ({self._spec.master_port}), so each node trains by itself"
            raise FailedError("command", final=True, tail=f"{what}: {how}")
        # Later processes may be helpers, so the count no longer means anything.
        self._enough = True

    def _check_end(self, status: int) -> None:
        if self._stop_requested_at is not None:
            return
        if status != 0:
            raise FailedError("command", tail=self._output.tail, **_exit_fields(status))
        self._check_processes(over=True)

    def _copy(self, written: set[str]) -> None:
        """Copy complete checkpoints in a thread, which may take long."""
        if self._copying is not None and self._copying.is_alive():
            return
        self._copying = threading.Thread(target=self._copy_once, args=(written,), daemon=True)
        self._copying.start()

    def _copy_once(self, written: set[str], **how: Any) -> None:
        try:
            for saved in self._checkpoints.poll(written, **how):
                self._saved(saved)
            self._copy_problem = ""
        except (StoreError, OSError) as error:
            if str(error) != self._copy_problem:
                self._copy_problem = str(error)
                self._report("checkpoint_failed", step=self._steps.newest or 0, reason=str(error))

    def _final_copy(self, *, clean: bool) -> None:
        if self._copying is not None:
            self._copying.join()
        self._copy_once(set(), over=True, clean=clean, stop_requested_at=self._stop_requested_at)

    def _saved(self, saved: dict[str, Any]) -> None:
        step = step_of(saved["name"])
        written = [[0, 0]] * self._spec.plan_ranks
        written[self._node.plan_rank] = [saved["files"], saved["bytes"]]
        self._report(
            "checkpoint",
            step=self._steps.at(saved["changed_at"]) if step is None else step,
            path=f"{self._spec.checkpoint.directory}/{saved['name']}",
            written=written,
        )

    def _stop_requested_here(self, leader: int | None = None) -> None:
        """Forward a stop request once, as SIGTERM, to the command and its process group."""
        if self._stop_requested_at is not None:
            return
        asked = self._terminated
        with contextlib.suppress(FileNotFoundError, ValueError):
            asked = asked or json.loads(self._control.read_text())["stop"]
        if asked:
            self._stop_requested_at = time.time()
            if leader is not None:
                tree.signal_all(_group(leader), signal.SIGTERM)

    def _report(self, event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, "ts": time.time(), **fields}) + "\n"
        os.write(self._events, line.encode())


def _exit_fields(status: int) -> dict[str, int]:
    return {"signal": -status} if status < 0 else {"exit_code": status}


def _group(leader: int) -> list[int]:
    """Return the processes of the command's own group; a launcher forwards signals to others."""
    found = []
    for pid in [leader, *tree.descendants(os.getpid())]:
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == leader:
                found.append(pid)
    return sorted(set(found))


def _changes(folder: Path) -> list[float]:
    """Return the modification times of the folder's entries; the command may remove any of them meanwhile."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for path in folder.iterdir():
            with contextlib.suppress(FileNotFoundError):
                found.append(path.stat().st_mtime)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m sailor_runtime.command")
    for name in ("spec", "events", "control", "home"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--rank", type=int)
    options = parser.parse_args()

    def end_now(signum: int, frame: object) -> None:
        raise EndedError

    signal.signal(tree.END_NOW, end_now)
    tree.adopt_orphans()
    spec = read_spec(options.spec.read_text())
    assert isinstance(spec, CommandSpec)
    try:
        supervisor = Supervisor(spec, options.node, options.home, options.events, options.control)
        signal.signal(signal.SIGTERM, supervisor.terminate)
        return supervisor.run()
    except EndedError:
        signal.signal(tree.END_NOW, signal.SIG_IGN)
        tree.end_descendants(os.getpid())
        return 1


if __name__ == "__main__":
    leave(main())
